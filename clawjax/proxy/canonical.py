"""What the three dialects have in common: a request, and a finished answer.

Each dialect turns an HTTP body into one `Request` and one `Answer` into a body
or an event sequence; the session in between knows no dialect. The message list
of a request is kept raw (`items`): `Request.turns` makes canonical turns from
any turn boundary on, so that a growing conversation is converted once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from clawjax import types
from clawjax.chat import parsing

IMAGE = '[image omitted: this model reads text only]'
_BLANK_LINES = re.compile(r'[ \t\r]*\n[ \t\r\n]*\n|[ \t\r]+\n')
# U+0085, U+2028 and U+2029; JSON escapes the others itself.
_LINE_BREAKS = re.compile(rb'\xc2\x85|\xe2\x80[\xa8\xa9]')
_ESCAPED = {c.encode(): f'\\u{ord(c):04x}'.encode() for c in '\x85\u2028\u2029'}
_NOT_ID = re.compile(r'[^A-Za-z0-9]')
# Made once: `json.loads` and `dumps` make theirs anew for such options.
_READER = json.JSONDecoder(strict=False)
_WRITER = json.JSONEncoder(sort_keys=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
  """One turn of a conversation.

  Attributes:
    messages: one message, or the tool results that share a turn.
    end: number of raw items up to and including this turn.
    apart: the same as two turns, when text that stood beside tool results
      was put into the last of them; see the rule `text_in_result`.
  """

  messages: tuple[types.Message, ...]
  end: int
  apart: tuple[Turn, ...] = ()

  @property
  def role(self) -> str:
    return self.messages[0].role


@dataclasses.dataclass
class Request:
  """A request to the model in canonical form.

  Attributes:
    dialect: 'messages', 'chat' or 'responses'.
    model: name asked for; echoed, never checked.
    system: blocks of leading system text, before any rule.
    tools: offered tools (rendered whether or not calls are allowed).
    late_tools: tools that the conversation itself adds; callable, but not
      rendered with the others.
    items: the raw message list.
    start: index of the first raw item that is not part of `system`.
    convert: `convert(items, start)` gives the turns from a turn boundary on.
    joins: `joins(items, i)`: item i goes on the turn of item i - 1.
    stream: events wanted.
    max_tokens: most tokens to sample, None: the rest of the window.
    stop: stop strings for visible text.
    thinking: False: asked for no thinking; None: nothing said.
    allow_calls: calls in the answer are read as such.
    parallel: more than one call may be delivered.
    sampling: the client's own wishes (temperature, ...), recorded.
    headers: lower-case names.
    prefill: text that the answer goes on (a trailing assistant message).
    extra: what the dialect needs again for its answer.
    notes: what was normalised while parsing.
    retried: the client's SDK says that this is another try.
    ignored: what nothing is done with: unknown fields, tool types.
  """

  dialect: str
  model: str
  system: tuple[str, ...]
  tools: tuple[types.Tool, ...]
  items: list[Any]
  start: int
  convert: Callable[[Sequence[Any], int], list[Turn]]
  joins: Callable[[Sequence[Any], int], bool]
  stream: bool = False
  max_tokens: int | None = None
  stop: tuple[str, ...] = ()
  thinking: bool | None = None
  allow_calls: bool = True
  parallel: bool = True
  sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  prefill: str | None = None
  late_tools: tuple[types.Tool, ...] = ()
  extra: dict[str, Any] = dataclasses.field(default_factory=dict)
  notes: list[str] = dataclasses.field(default_factory=list)
  retried: bool = False
  ignored: list[str] = dataclasses.field(default_factory=list)

  def turns(self, start: int) -> list[Turn]:
    """Canonical turns from raw item `start` (a turn boundary) on."""
    return self.convert(self.items, start)


@dataclasses.dataclass(frozen=True)
class Answer:
  """A finished, recorded answer, ready to be said in any dialect.

  Attributes:
    id: unique tail of all ids that the answer carries.
    model: name to echo.
    parsed: the whole answer.
    pieces: what is delivered: text and calls (with ids) in order.
    reasoning: thinking that is delivered.
    finish: 'stop', 'stop_string', 'length' or 'context_full'.
    stop_text: the stop string that matched, or ''.
    prompt_tokens, cached_tokens, output_tokens, reasoning_tokens: counts.
    created: Unix seconds.
  """

  id: str
  model: str
  parsed: parsing.Parsed
  pieces: tuple[str | types.ToolCall, ...]
  reasoning: str
  finish: str
  stop_text: str
  prompt_tokens: int
  output_tokens: int
  cached_tokens: int = 0
  reasoning_tokens: int = 0
  created: int = 0
  logprobs: Sequence[tuple[str, float]] = ()

  @property
  def text(self) -> str:
    """Visible text in one piece."""
    return '\n\n'.join(p for p in self.pieces if isinstance(p, str))

  @property
  def calls(self) -> tuple[types.ToolCall, ...]:
    """Delivered calls."""
    return tuple(p for p in self.pieces if isinstance(p, types.ToolCall))


def rest(whole: str, told: str) -> str:
  """What is left to say of `whole` when `told` has gone out.

  Raises:
    RuntimeError: something else was told (a fault of `proxy.live`).
  """
  if not whole.startswith(told):
    raise RuntimeError(f'streamed {told[-40:]!r}, which the answer is not')
  return whole[len(told) :]


def request_id() -> str:
  """A new id for an error or a response without a call."""
  return 'req_' + secrets.token_hex(12)


# ---- JSON ------------------------------------------------------------------


def loads(body: bytes) -> Any:
  """JSON of a request body.

  Raises:
    ValueError: not JSON, not UTF-8, or nested too deep.
  """
  try:
    return orjson.loads(body)
  except orjson.JSONDecodeError:
    pass  # Lone surrogates and huge numbers: the slow reader takes them.
  try:
    return json.loads(body)
  except RecursionError as e:
    raise ValueError('nested too deep') from e


def dumps(value: Any) -> bytes:
  """Compact JSON in UTF-8."""
  try:
    return orjson.dumps(value)
  except TypeError:  # A huge integer, or a lone surrogate.
    text = json.dumps(value, ensure_ascii=False, separators=(',', ':'))
    return text.encode('utf-8', 'replace')


def event_data(value: Any) -> bytes:
  """JSON for a `data:` line of an event stream.

  Some clients split a stream wherever Unicode breaks a line, not only where
  the standard does; such characters are therefore escaped.
  """
  data = dumps(value)
  return _LINE_BREAKS.sub(lambda m: _ESCAPED[m[0]], data)


# ---- reading loosely typed bodies ------------------------------------------


def text_of(value: Any) -> str:
  """A string as it is, anything else as ''."""
  return value if isinstance(value, str) else ''


def list_of(value: Any) -> list[Any]:
  """A list as it is, anything else as []."""
  return value if isinstance(value, list) else []


def dict_of(value: Any) -> Mapping[str, Any]:
  """A mapping as it is, anything else as {}."""
  return value if isinstance(value, dict) else {}


def positive_int(value: Any) -> int | None:
  """A whole number of at least 1, else None."""
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    return None
  if value != value or value in (float('inf'), float('-inf')) or value < 1:
    return None
  return int(value)


# ---- what a turn is recognised by ------------------------------------------


def same_text(text: str) -> str:
  """Text as it is compared: no outer white space, blank lines collapsed."""
  return _BLANK_LINES.sub('\n', text.strip())


def same_arguments(text: str) -> str:
  """Arguments as they are compared: key order, spacing and number spelling
  (clients in JavaScript hold doubles) do not count."""
  try:
    value = _READER.decode(text) if text.strip() else {}
    return _WRITER.encode(_plain(value))
  except (ValueError, RecursionError, OverflowError):
    return text.strip()


def _plain(value: Any) -> Any:
  if isinstance(value, dict):
    return {k: _plain(v) for k, v in value.items()}
  if isinstance(value, list):
    return [_plain(v) for v in value]
  if isinstance(value, int) and not isinstance(value, bool):
    return float(value)
  return value


def digest(parts: Sequence[str]) -> bytes:
  """16 bytes that stand for a sequence of strings."""
  hasher = hashlib.blake2b(digest_size=16)
  for part in parts:
    raw = part.encode('utf-8', 'surrogatepass')
    hasher.update(len(raw).to_bytes(8, 'little'))
    hasher.update(raw)
  return hasher.digest()


def turn_key(messages: Sequence[types.Message]) -> bytes:
  """Digest of what a turn is recognised by; call ids do not count."""
  first = messages[0]
  if first.role == 'assistant':
    parts = ['assistant', same_text(first.content)]
    for call in first.calls:
      parts += [call.name, same_arguments(call.arguments)]
    return digest(parts)
  return digest([first.role, *(m.content for m in messages)])


def id_key(call_id: str) -> str:
  """A call id as harnesses leave it (some drop the underscore)."""
  return _NOT_ID.sub('', call_id)
