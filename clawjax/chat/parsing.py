"""Sampled text to reasoning, visible text and tool calls.

One parser for serving, training and evaluation. `parse_output` looks at a
complete answer once: first it splits thinking from visible text (a draft call
inside thinking is not a call), then it reads calls from the visible text
(`parse_calls.py`). Where no specification decides, the policies are:

- A complete call at the very end of thinking that never closes, or after whose
  end nothing visible follows, is promoted and flagged.
- Truncation at the token limit wins: thinking that was cut stays thinking, a
  call that was cut is dropped.
- Thinking opened by the prompt, never closed, natural stop: reasoning only.
- What cannot be parsed stays visible text and is flagged; nothing is repaired.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from clawjax import types
from clawjax.chat import parse_calls, tokenizers

_THINK = '<think>'
_THINK_END = '</think>'
BOM = '\ufeff'
_CONTROL = (tokenizers.IM_END, tokenizers.ENDOFTEXT)
_MALFORMED = frozenset({'INVALID_JSON', 'INVALID_XML', 'DROPPED_PARAMETER'})
CUT_FINISHES = ('length', 'context_full')


@dataclasses.dataclass(frozen=True)
class Parsed:
  """An answer in parts.

  Attributes:
    reasoning: thinking, without newlines at its ends.
    content: visible text; stretches between calls are joined by a blank line.
    calls: tool calls in order; `arguments` is always one valid JSON object.
    malformed: a tool call was attempted and could not be read.
    flags: names of what was odd ('INVALID_JSON', 'CUT_CALL', 'PROMOTED',
      'THINK_OPEN', 'TEXT_AFTER_CALL', 'SECOND_THINK', ...).
    pieces: visible text and calls in the order they were sampled; no piece
      of text is empty.
    stop_text: the stop string that ended the visible text, or ''.
  """

  reasoning: str = ''
  content: str = ''
  calls: tuple[types.ToolCall, ...] = ()
  malformed: bool = False
  flags: tuple[str, ...] = ()
  pieces: tuple[str | types.ToolCall, ...] = ()
  stop_text: str = ''


def thinking_is_open(prompt_tail: str) -> bool:
  """Whether a rendered prompt ends inside a thinking block."""
  turn = prompt_tail[prompt_tail.rfind(tokenizers.IM_START) + 1 :]
  return turn.rfind(_THINK) > turn.rfind(_THINK_END)


def _final_calls(text: str, offered: parse_calls.Offered) -> int | None:
  """Start of the run of complete calls that ends `text`, None if none does."""
  found = parse_calls.Reader(text, offered).scan(cut=True)
  if 'CUT_CALL' in found.flags:
    return None
  start = None
  for piece in reversed(found.pieces):
    if piece.call is not None:
      start = piece.start
    elif piece.text.strip():
      break
  return start


def _think_end(text: str, offered: parse_calls.Offered) -> int:
  """Start of the `</think>` that closes thinking, -1 if none does.

  A complete call drafted inside thinking is read over: tags inside its JSON
  strings are data.
  """
  reader = parse_calls.Reader(text, offered)
  at = 0
  while True:
    end = text.find(_THINK_END, at)
    draft = text.find(parse_calls.OPEN, at)
    if end < 0 or draft < 0 or end < draft:
      return end
    at = reader.block_end(draft) or draft + len(parse_calls.OPEN)


def _split_thinking(
  text: str,
  offered: parse_calls.Offered,
  *,
  is_open: bool,
  cut: bool,
  flags: list[str],
) -> tuple[str, str]:
  """Reasoning and visible text."""
  body = text.lstrip()
  if body.startswith(_THINK):
    text = body[len(_THINK) :]
  elif not is_open:
    return '', text
  end = _think_end(text, offered)
  if end >= 0:
    reasoning, visible = text[:end], text[end + len(_THINK_END) :]
    if visible.strip() or not offered:
      return reasoning, visible
    final = _final_calls(reasoning, offered)
    if final is None:
      return reasoning, visible
    flags.append('PROMOTED')
    return reasoning[:final], reasoning[final:]
  flags.append('THINK_OPEN')
  if cut or not offered:
    return text, ''
  final = _final_calls(text, offered)
  if final is None:
    return text, ''
  flags.append('PROMOTED')
  return text[:final], text[final:]


def parse_output(
  text: str,
  *,
  tools: Any,
  finish: str,
  prompt_tail: str = '',
  stop: Iterable[str] = (),
  control: bool = True,
) -> Parsed:
  """Parses one complete answer.

  Args:
    text: decoded answer; the sampled stop token may still be in it.
    tools: offered tools (`types.Tool`, or dicts in the OpenAI or Anthropic
      shape); without any, nothing is read as a call.
    finish: 'stop', 'length' or 'context_full'.
    prompt_tail: end of the rendered prompt, which tells whether thinking is
      already open.
    stop: stop strings; they count in visible text only.
    control: a spelled `<|im_end|>` or `<|endoftext|>` ends the answer. The
      proxy, which cuts at ids, passes False.

  Returns:
    What the client may see; never raises for any text.
  """
  offered = parse_calls.Offered(tools)
  cut = finish in CUT_FINISHES
  flags: list[str] = []
  text = text.removeprefix(BOM)
  text = tokenizers.clean(text)
  reasoning, visible = _split_thinking(
    text,
    offered,
    is_open=thinking_is_open(prompt_tail),
    cut=cut,
    flags=flags,
  )
  ends = _CONTROL if control else ()
  for token in ends:
    if token in reasoning:  # Thinking that ran into the end of the turn.
      reasoning = reasoning[: reasoning.index(token)]
      visible = ''
  stops = tuple(s for s in stop if s)
  if offered:
    reader = parse_calls.Reader(visible, offered)
    scan = reader.scan(cut=cut, stops=stops + ends)
  else:
    limit, stop_text = parse_calls.find_stop(visible, 0, stops + ends)
    piece = parse_calls.Piece(text=visible[:limit])
    scan = parse_calls.Scan([piece], [], limit, stop_text)
  return _assemble(
    reasoning,
    scan,
    flags + scan.flags,
    scan.stop_text if scan.stop_text in stops else '',
  )


def _assemble(
  reasoning: str, scan: parse_calls.Scan, flags: list[str], stop_text: str
) -> Parsed:
  pieces: list[str | types.ToolCall] = []
  for piece in scan.pieces:
    if piece.call is not None:
      pieces.append(piece.call)
    elif piece.text.strip():
      pieces.append(piece.text)
  calls = tuple(p for p in pieces if isinstance(p, types.ToolCall))
  if (
    calls or reasoning or 'CUT_CALL' in flags
  ):  # Newlines beside blocks belong to the format.
    pieces = [p.strip('\n') if isinstance(p, str) else p for p in pieces]
  shown = [p for p in pieces if isinstance(p, str)]
  if calls and isinstance(pieces[-1], str):
    flags.append('TEXT_AFTER_CALL')
  if reasoning and any(_THINK in p for p in shown):
    flags.append('SECOND_THINK')
  return Parsed(
    reasoning=reasoning.strip('\n'),
    content='\n\n'.join(shown),
    calls=calls,
    malformed=bool(_MALFORMED & set(flags)),
    flags=tuple(dict.fromkeys(flags)),
    pieces=tuple(pieces),
    stop_text=stop_text,
  )
