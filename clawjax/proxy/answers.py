"""An engine's sample to a parsed answer, with the ids that count.

Ids are cut in two cases only, and always at their end: what an engine sampled
past the end of the turn, and what it sampled past a stop string in visible
text. Text is made from ids once, whole, so that no character is split.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from clawjax import errors, types
from clawjax.chat import parsing, tokenizers
from clawjax.proxy import canonical


@dataclasses.dataclass(frozen=True)
class Read:
  """A sample, read.

  Attributes:
    sample: what is kept of it.
    parsed: its parts.
    finish: as in `canonical.Answer`.
    text: the decoded answer, without a sampled end of turn.
  """

  sample: types.Sample
  parsed: parsing.Parsed
  finish: str
  text: str


def checked(sample: types.Sample, eos_ids: tuple[int, ...]) -> types.Sample:
  """A sample with one finite log-prob per token, ending at its first stop id.

  Raises:
    CaptureError: a log-prob is missing or not finite.
  """
  ids = np.asarray(sample.token_ids, np.int32)
  logprobs = np.asarray(sample.logprobs, np.float32)
  if ids.ndim != 1 or ids.shape != logprobs.shape:
    raise errors.CaptureError(
      f'wanted one log-prob per token, got {logprobs.shape} for {ids.shape}'
    )
  if not np.isfinite(logprobs).all():
    raise errors.CaptureError('wanted finite log-probs, got nan or infinity')
  if ids is not sample.token_ids or logprobs is not sample.logprobs:
    sample = dataclasses.replace(sample, token_ids=ids, logprobs=logprobs)
  first = next((i for i, x in enumerate(ids.tolist()) if x in eos_ids), None)
  if first is not None and first + 1 < len(ids):
    sample = cut(sample, first + 1)
  return sample


def cut(sample: types.Sample, n: int) -> types.Sample:
  """The first `n` tokens of a sample."""

  def head(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else values[:n]

  return dataclasses.replace(
    sample,
    token_ids=sample.token_ids[:n],
    logprobs=sample.logprobs[:n],
    raw_logprobs=head(sample.raw_logprobs),
    token_versions=head(sample.token_versions),
    routes=head(sample.routes),
  )


def read(
  sample: types.Sample,
  request: canonical.Request,
  tokenizer: tokenizers.Tokenizer,
  *,
  prompt_tail: str,
  room: int,
) -> Read:
  """Checks, parses and, at a stop string, cuts a sample.

  Args:
    sample: what the engine gave.
    request: what was asked (tools, stop strings).
    tokenizer: decodes.
    prompt_tail: the generation prompt as text.
    room: tokens between the prompt and the end of the window.

  Raises:
    CaptureError: see `checked`.
  """
  sample = checked(sample, tokenizer.eos_ids)
  ids = sample.token_ids
  ended = len(ids) > 0 and int(ids[-1]) in tokenizer.eos_ids
  finish = 'stop' if ended else str(sample.finish)
  text = tokenizer.decode(ids[:-1] if ended else ids)
  tools = request.tools + request.late_tools if request.allow_calls else ()

  def parse(text: str, finish: str) -> parsing.Parsed:
    return parsing.parse_output(
      text,
      tools=tools,
      finish=finish,
      prompt_tail=prompt_tail,
      stop=request.stop,
      control=False,
    )

  parsed = parse(text, finish)
  if parsed.stop_text:
    n = _shortest(
      len(ids),
      lambda n: bool(parse(tokenizer.decode(ids[:n]), 'stop').stop_text),
    )
    sample, finish = cut(sample, n), 'stop_string'
  elif finish == 'length' and len(ids) >= room:
    finish = 'context_full'
  elif finish not in ('stop', 'length', 'context_full'):
    finish = 'length'
  return Read(sample, parsed, finish, text)


def _shortest(n: int, holds: Callable[[int], bool]) -> int:
  """Smallest length for which a monotone property holds."""
  low, high = 0, n
  while low < high:
    middle = (low + high) // 2
    if holds(middle):
      high = middle
    else:
      low = middle + 1
  return low


def answer(
  read: Read,
  request: canonical.Request,
  tokenizer: tokenizers.Tokenizer,
  *,
  answer_id: str,
  prompt_tokens: int,
  created: float,
) -> canonical.Answer:
  """What is delivered of a read sample."""
  pieces: list[str | types.ToolCall] = []
  calls = 0
  for piece in read.parsed.pieces:
    if isinstance(piece, types.ToolCall):
      if calls and not request.parallel:
        break
      piece = dataclasses.replace(piece, id=f'{answer_id}{calls:02d}')
      calls += 1
    pieces.append(piece)
  logprobs: list[tuple[str, float]] = []
  if request.extra.get('logprobs'):
    pairs = zip(
      read.sample.token_ids.tolist(), read.sample.logprobs.tolist(), strict=True
    )
    logprobs = [(tokenizer.decode([i]), value) for i, value in pairs]
  return canonical.Answer(
    id=answer_id,
    model=request.model,
    parsed=read.parsed,
    pieces=tuple(pieces),
    reasoning=read.parsed.reasoning,
    finish=read.finish,
    stop_text=read.parsed.stop_text,
    prompt_tokens=prompt_tokens,
    cached_tokens=min(read.sample.reused_tokens, prompt_tokens),
    output_tokens=len(read.sample.token_ids),
    reasoning_tokens=_reasoning_tokens(read, tokenizer),
    created=int(created),
    logprobs=logprobs,
  )


def _reasoning_tokens(read: Read, tokenizer: tokenizers.Tokenizer) -> int:
  if not read.parsed.reasoning:
    return 0
  found = np.flatnonzero(read.sample.token_ids == tokenizer.id_of('</think>'))
  if not len(found) or 'THINK_OPEN' in read.parsed.flags:
    return len(read.sample.token_ids)
  return int(found[0]) + 1
