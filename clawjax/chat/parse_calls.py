"""Tool calls in visible text: Hermes JSON and Qwen3-Coder XML.

`Reader.scan` cuts visible text into pieces, in order: text, calls, and what could not
be read. Rules that are easy to get wrong:

- The JSON decoder decides where an object ends, never a tag or a bracket
  count: tags inside a JSON string are data.
- A closing XML tag counts only where the structure goes on after it; anything
  else in an open value is data.
- Invalid JSON is not repaired: the raw block stays text and is flagged. Its
  neighbours are still delivered.
- A call that the token limit cut is dropped, and everything after it with it.
- `<function=` without its wrapper counts only for a tool that was offered.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from clawjax import types
from clawjax.chat import coerce, tokenizers

OPEN = '<tool_call>'
CLOSE = '</tool_call>'
FUNCTION = '<function='
_FUNCTION_END = '</function>'
_PARAMETER = '<parameter='
_PARAMETER_END = '</parameter>'
_MARK = re.compile(re.escape(OPEN) + '|' + re.escape(FUNCTION))
_SPACE = re.compile(r'\s*')
_NAME = re.compile(r'\s*([^>\s<]+)\s*>')
# What may follow a closing parameter tag for it to count.
_AFTER_VALUE = re.compile(
  r'</parameter>(?=\s*(?:<parameter=|</function>|</tool_call>|\Z))'
)
_DECODER = json.JSONDecoder(strict=False)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


@dataclasses.dataclass(frozen=True)
class Piece:
  """A stretch of visible text: `text`, or `call` when that is not None.

  `start` is the index where the stretch (for a call: its block) begins.
  """

  text: str = ''
  call: types.ToolCall | None = None
  start: int = 0


@dataclasses.dataclass
class Scan:
  """What `Reader.scan` found.

  Attributes:
    pieces: text and calls in order.
    flags: what was odd, by name; 'INVALID_JSON', 'INVALID_XML' and
      'DROPPED_PARAMETER' mean that a call was malformed.
    held: index from which the text may still change as more is sampled
      (streaming); len(text) when nothing is open.
    stop_text: the stop string that ended the text, or ''.
  """

  pieces: list[Piece]
  flags: list[str]
  held: int
  stop_text: str = ''


class _BadCall(Exception):
  """A block looks like a call and is none; `cut`: for want of more text."""

  def __init__(self, flag: str, *, cut: bool = False):
    super().__init__(flag)
    self.flag = flag
    self.cut = cut


class Offered:
  """The offered tools, by name, with their schemas."""

  def __init__(self, tools: Any):
    self.schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools or ():
      name, schema = _name_and_schema(tool)
      if name:
        self.schemas[name] = schema

  def __contains__(self, name: str) -> bool:
    return name in self.schemas

  def __bool__(self) -> bool:
    return bool(self.schemas)

  def schema(self, name: str) -> Mapping[str, Any]:
    return self.schemas.get(name, {})

  def properties(self, name: str) -> Mapping[str, Any]:
    found = self.schema(name).get('properties')
    return found if isinstance(found, Mapping) else {}


def _name_and_schema(tool: Any) -> tuple[str, Mapping[str, Any]]:
  if isinstance(tool, types.Tool):
    return tool.name, tool.parameters
  if not isinstance(tool, Mapping):
    return '', {}
  inner = tool.get('function')
  source = inner if isinstance(inner, Mapping) else tool
  schema = source.get('parameters', source.get('input_schema'))
  name = source.get('name')
  return (
    name if isinstance(name, str) else '',
    schema if isinstance(schema, Mapping) else {},
  )


def _skip(text: str, at: int) -> int:
  match = _SPACE.match(text, at)
  return match.end() if match else at


def _dumps(value: Any) -> str:
  return tokenizers.clean(_ENCODER.encode(value))


# ---- Hermes ----------------------------------------------------------------


def _ran_out(error: json.JSONDecodeError, text: str) -> bool:
  """Whether the decoder failed only because the text ended."""
  if error.msg.startswith('Unterminated string'):
    return True
  rest = text[error.pos :]
  if error.msg.startswith('Invalid \\'):
    # An escape that was cut, such as `\u12`.
    return '\\' in text[-6:] and len(rest) < 7
  tail = rest.strip()
  words = ('true', 'false', 'null')
  return not tail or any(w.startswith(tail) for w in words)


def _decode(text: str, at: int) -> tuple[Any, int]:
  try:
    return _DECODER.raw_decode(text, at)
  except json.JSONDecodeError as e:
    raise _BadCall('INVALID_JSON', cut=_ran_out(e, text)) from e
  except (ValueError, RecursionError) as e:  # Huge numbers, deep nesting.
    raise _BadCall('INVALID_JSON') from e


def _arguments(value: Mapping[str, Any]) -> dict[str, Any]:
  raw = value.get('arguments', value.get('parameters'))
  if isinstance(raw, str):  # Encoded twice, or empty.
    try:
      raw = json.loads(raw, strict=False) if raw.strip() else {}
    except (ValueError, RecursionError) as e:
      raise _BadCall('INVALID_JSON') from e
  if raw is None:
    raw = {}
  if not isinstance(raw, dict):
    raise _BadCall('INVALID_JSON')
  return raw


def _hermes_call(
  value: Any, offered: Offered, flags: list[str]
) -> types.ToolCall:
  name = value.get('name') if isinstance(value, dict) else None
  if not isinstance(name, str) or not name.strip():
    raise _BadCall('INVALID_JSON')
  if name not in offered and name.strip() in offered:
    name = name.strip()
  arguments = _arguments(value)
  known = offered.properties(name)
  if any(k not in known and k.strip() in known for k in arguments):
    fixed: dict[str, Any] = {}
    for key, item in arguments.items():
      bare = key.strip()
      free = bare in known and bare not in arguments and bare not in fixed
      fixed[bare if key not in known and free else key] = item
    if fixed.keys() != arguments.keys():
      flags.append('STRIPPED_KEY')
    arguments = fixed
  try:
    return types.ToolCall(name=name, arguments=_dumps(arguments))
  except (ValueError, RecursionError) as e:  # NaN and infinity are not JSON.
    raise _BadCall('INVALID_JSON') from e


def _hermes(
  text: str, at: int, offered: Offered, flags: list[str]
) -> tuple[list[types.ToolCall], int]:
  """Reads the block whose first object starts at `at`."""
  calls: list[types.ToolCall] = []
  while True:
    value, at = _decode(text, at)
    many = value if isinstance(value, list) and value else [value]
    calls += [_hermes_call(v, offered, flags) for v in many]
    after = _skip(text, at)
    if text.startswith(CLOSE, after):
      break
    if text.startswith('{', after):
      flags.append('EXTRA_OBJECT')
      at = after
      continue
    if after >= len(text) or text.startswith(OPEN, after):
      flags.append('UNCLOSED')
      return calls, at
    # Something else stands between the object and its closing tag, if any.
    end = text.find(CLOSE, after)
    opened = text.find(OPEN, after)
    if end < 0 or 0 <= opened < end:
      flags.append('UNCLOSED')
      return calls, at
    flags.append('EXTRA_DATA')
    after = end
    break
  return calls, after + len(CLOSE)


# ---- Qwen3-Coder -----------------------------------------------------------


def _unframed(value: str) -> str:
  """Removes the one newline that the template adds on each side."""
  return value.removeprefix('\n').removesuffix('\n')


def _could_be_tag(tail: str) -> bool:
  return any(tag.startswith(tail) for tag in (_PARAMETER, _FUNCTION_END, CLOSE))


class _Xml:
  """Reads `<function=` elements of one text.

  The places where a value may end are found once for the whole text, so that
  a long text of unclosed values costs no more than its length.
  """

  def __init__(self, text: str, offered: Offered):
    self.text = text
    self.offered = offered
    self._ends: list[tuple[int, int]] | None = None

  def _value_end(self, start: int) -> tuple[int, int]:
    if self._ends is None:
      self._ends = [m.span() for m in _AFTER_VALUE.finditer(self.text)]
    i = bisect.bisect_left(self._ends, (start, 0))
    if i == len(self._ends):
      raise _BadCall('INVALID_XML', cut=True)
    return self._ends[i]

  def read(self, at: int, flags: list[str]) -> tuple[types.ToolCall, int]:
    """Reads the element whose `<function=` starts at `at`."""
    text = self.text
    head = _NAME.match(text, at + len(FUNCTION))
    if head is None:
      raise _BadCall('INVALID_XML', cut=text.find('>', at) < 0)
    name = head.group(1)
    schema = self.offered.schema(name)
    known = self.offered.properties(name)
    arguments: dict[str, Any] = {}
    at = head.end()
    while True:
      at = _skip(text, at)
      if text.startswith(_FUNCTION_END, at):
        at += len(_FUNCTION_END)
        break
      if text.startswith(CLOSE, at):  # `</function>` forgotten.
        flags.append('UNCLOSED')
        break
      if at >= len(text):
        raise _BadCall('INVALID_XML', cut=True)
      if text.startswith(_PARAMETER, at):
        key = _NAME.match(text, at + len(_PARAMETER))
        start = key.end() if key else at + len(_PARAMETER)
        end, at = self._value_end(start)
        if key:
          arguments[key.group(1)] = coerce.coerce(
            _unframed(text[start:end]), known.get(key.group(1)), schema
          )
        else:
          flags.append('DROPPED_PARAMETER')
        continue
      # Stray text between parameters: skip to where the structure goes on.
      tags = (_PARAMETER, _FUNCTION_END, CLOSE)
      found = [i for tag in tags if (i := text.find(tag, at)) >= 0]
      if not found:
        raise _BadCall('INVALID_XML', cut=_could_be_tag(text[at:]))
      flags.append('DROPPED_PARAMETER')
      at = min(found)
    return types.ToolCall(name=name, arguments=_dumps(arguments)), at


# ---- the scan --------------------------------------------------------------


class Reader:
  """Reads the calls of one text; see the top of the file."""

  def __init__(self, text: str, offered: Offered):
    self.text = text
    self.offered = offered
    self._xml = _Xml(text, offered)

  def block_end(self, at: int) -> int | None:
    """End of the complete call that stands at the mark `at`, if one does."""
    try:
      found = self._block(at, [])
    except _BadCall:
      return None
    return found[1] if found else None

  def _block(
    self, at: int, flags: list[str]
  ) -> tuple[list[types.ToolCall], int] | None:
    """Reads what stands at a mark; None: it is prose, not an attempt."""
    text = self.text
    if text.startswith(FUNCTION, at):
      head = _NAME.match(text, at + len(FUNCTION))
      if head is None or head.group(1) not in self.offered:
        return None
      call, end = self._xml.read(at, flags)
      after = _skip(text, end)
      if text.startswith(CLOSE, after):  # The closer of a forgotten opener.
        end = after + len(CLOSE)
      flags.append('NO_WRAPPER')
      return [call], end
    inside = _skip(text, at + len(OPEN))
    if text.startswith(('{', '['), inside):
      return _hermes(text, inside, self.offered, flags)
    calls: list[types.ToolCall] = []
    while text.startswith(FUNCTION, inside):
      call, end = self._xml.read(inside, flags)
      calls.append(call)
      inside = _skip(text, end)
      if text.startswith(CLOSE, inside):
        return calls, inside + len(CLOSE)
      if not text.startswith(FUNCTION, inside):
        flags.append('UNCLOSED')
        return calls, end
    return None

  def _raw_end(self, at: int) -> int:
    """End of a block that could not be read: its closer or the next opener."""
    close = self.text.find(CLOSE, at)
    opened = self.text.find(OPEN, at + 1)
    if close >= 0 and (opened < 0 or close < opened):
      return close + len(CLOSE)
    return opened if opened >= 0 else len(self.text)

  def scan(self, *, cut: bool, stops: tuple[str, ...] = ()) -> Scan:
    """Splits the text into text and calls.

    Args:
      cut: the token limit ended the text, so that an open call is dropped.
      stops: strings that end the text where they stand outside of calls.
    """
    text = self.text
    pieces: list[Piece] = []
    flags: list[str] = []
    start = at = 0
    held = len(text)
    end, stop_text = find_stop(text, 0, stops)
    while True:
      mark = _MARK.search(text, at)
      if mark is None or mark.start() >= end:
        break
      here = mark.start()
      noted: list[str] = []
      try:
        found = self._block(here, noted)
      except _BadCall as bad:
        if bad.cut:
          held = min(held, here)
        if bad.cut and cut:
          flags.append('CUT_CALL')
          end, stop_text = here, ''
          break
        flags.append(bad.flag)
        at = max(self._raw_end(here), mark.end())
        # The raw block is text as it stands: stops inside it do not count.
        end, stop_text = find_stop(text, at, stops)
        continue
      if found is None:
        at = mark.end()
        continue
      flags += noted
      calls, after = found
      pieces.append(Piece(text=text[start:here], start=start))
      pieces += [Piece(call=c, start=here) for c in calls]
      start = at = after
      if 'UNCLOSED' in noted:
        held = min(held, here)
      end, stop_text = find_stop(text, at, stops)
    pieces.append(Piece(text=text[start:end], start=start))
    return Scan(pieces=pieces, flags=flags, held=held, stop_text=stop_text)


def find_stop(text: str, start: int, stops: tuple[str, ...]) -> tuple[int, str]:
  """Index and text of the first stop string; (len(text), '') if none."""
  found = [(i, s) for s in stops if (i := text.find(s, start)) >= 0]
  return min(found) if found else (len(text), '')
