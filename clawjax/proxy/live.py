"""What of an unfinished answer is certain: text streamed as it is sampled.

  live = Live(tokenizer, request, prompt_tail)
  reasoning, text = live.feed(new_ids)      # what may be sent now

The answer is parsed once, when it is whole (`answers.py`); until then only
that is sent which no later token can change:

- Half a character waits for its other half.
- Thinking goes out as it comes, but for newlines and what may be the start of
  `</think>` or of a call. From a call drafted inside thinking on all waits: it
  may be promoted, and a `</think>` inside its strings is data.
- Visible text goes out up to the first mark of a call, the first stop string,
  or what may become either. Newlines wait for what follows, because those
  beside a call belong to the format; a leading one waits for the end when
  nothing was thought and a call may still come.

Calls, and text after a mark, come with the whole answer. `certain` is a pure
function of the text so far, so the rule can be tested against the parser: what
it gives for any prefix is a prefix of what it gives for the whole, and of the
parsed answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from clawjax.chat import parse_calls, parsing, tokenizers
from clawjax.proxy import canonical

_THINK, _THINK_END = '<think>', '</think>'
_MARKS = (parse_calls.OPEN, parse_calls.FUNCTION)
_HALF = '\ufffd'


def _begun(text: str, words: Sequence[str]) -> int:
  """Index from which the end of `text` may be the start of a word."""
  longest = max(map(len, words), default=1) - 1
  for start in range(max(0, len(text) - longest), len(text)):
    if any(w.startswith(text[start:]) for w in words):
      return start
  return len(text)


def _first(text: str, words: Sequence[str]) -> int:
  """Index of the first of some words, len(text) if there is none."""
  return min((i for w in words if (i := text.find(w)) >= 0), default=len(text))


def certain(
  text: str, *, is_open: bool, tools: bool, stops: Sequence[str] = ()
) -> tuple[str, str]:
  """Thinking and visible text that hold whatever comes after `text`.

  Args:
    text: the answer so far, without half a character at its end.
    is_open: the prompt ends inside a thinking block.
    tools: calls may come.
    stops: stop strings.
  """
  text = text.removeprefix(parsing.BOM)
  body = text.lstrip()
  if _THINK.startswith(body):  # Also the empty text.
    return '', ''
  thought = ''
  if is_open or body.startswith(_THINK):
    text = body[len(_THINK) :] if body.startswith(_THINK) else text
    end, mark = text.find(_THINK_END), _first(text, _MARKS)
    if end < 0 or mark < end:
      held = text[: min(mark, _begun(text, (_THINK_END, *_MARKS)))]
      return held.strip('\n'), ''
    thought, text = text[:end], text[end + len(_THINK_END) :]
  words = (*stops, *(_MARKS if tools else ()))
  shown = text[: min(_first(text, words), _begun(text, words))]
  if thought:
    shown = shown.lstrip('\n')
  elif tools and shown.startswith('\n'):
    shown = ''
  return thought.strip('\n'), shown.rstrip('\n') if shown.strip() else ''


class Live:
  """The certain part of one answer, as its ids come in."""

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    request: canonical.Request,
    prompt_tail: str,
  ):
    self._tokenizer = tokenizer
    self._open = parsing.thinking_is_open(prompt_tail)
    self._tools = request.allow_calls and bool(
      request.tools or request.late_tools
    )
    self._stops = request.stop
    self._text = ''
    self._half: list[int] = []  # Ids whose text is not whole yet.
    self._ended = False
    self._sent = (0, 0)

  def feed(self, ids: Sequence[int] | np.ndarray) -> tuple[str, str]:
    """Takes new ids; gives the thinking and text to be sent now."""
    for token in map(int, ids):
      if self._ended or token in self._tokenizer.eos_ids:
        self._ended = True
        break
      self._half.append(token)
    text = self._tokenizer.decode(self._half)
    if not text or text.endswith(_HALF):
      return '', ''
    self._half.clear()
    self._text += text
    whole = certain(
      self._text, is_open=self._open, tools=self._tools, stops=self._stops
    )
    new = whole[0][self._sent[0] :], whole[1][self._sent[1] :]
    self._sent = len(whole[0]), len(whole[1])
    return new


class Feed:
  """Carries ids from the engine, perhaps from its thread, to one stream.

  Attributes:
    news: set while there is something to take.
  """

  def __init__(self, live: Live):
    self.news = asyncio.Event()
    self._live = live
    self._loop = asyncio.get_running_loop()
    self._ids: list[int] = []

  def put(self, ids: Sequence[int], logprobs: object, version: int) -> None:
    """Takes new ids; from any thread."""
    del logprobs, version
    if not self._loop.is_closed():
      self._loop.call_soon_threadsafe(self._add, list(ids))

  def _add(self, ids: list[int]) -> None:
    self._ids += ids
    self.news.set()

  def take(self) -> tuple[str, str]:
    """Thinking and text that have become certain."""
    ids, self._ids = self._ids, []
    self.news.clear()
    return self._live.feed(ids)
