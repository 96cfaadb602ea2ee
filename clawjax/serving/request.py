"""One request on its way through the scheduler, and what it becomes.

  waiting -> prefilling -> decoding -> done (a Sample or an EngineError)
     ^____________________________|   pre-empted: pages given back, tokens kept

All fields belong to the scheduler's thread, except `cancelled`, which anyone
may set.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np

from clawjax.errors import EngineError
from clawjax.serving.prefix import Node
from clawjax.types import Finish, Sample, SamplingParams

MAX_STOP_IDS = 8
OnTokens = Callable[[list[int], list[float], int], None]
Deliver = Callable[[Sample | None, Exception | None], None]


@dataclasses.dataclass(frozen=True)
class KeptSample(Sample):
  """A sample with the sets that its tokens were drawn from.

  Attributes:
    kept: per token the int32 ids that top_k, top_p and min_p had left,
      likeliest first, or None where there were more than the engine records
      (then the cut cannot be replayed exactly).
  """

  kept: tuple[np.ndarray | None, ...] = ()


@dataclasses.dataclass(eq=False)
class Request:
  """A prompt, how to continue it, and how far that has come.

  Attributes:
    prompt: int32 [N].
    params: how to sample.
    limit: most tokens to draw, the window considered.
    deliver: called once, in the scheduler's thread, with a sample or an error.
    session_id: fairness key.
    priority: higher goes first.
    order: number of arrival.
    cancelled: the caller has gone.
    ids: prompt and drawn tokens.
    logprobs, raw_logprobs: per drawn token.
    versions: policy version per drawn token.
    kept: set that each token was drawn from, where recorded.
    path: locked nodes of the prefix tree that this sequence reads.
    own: its private pages, after those of `path`.
    cached: tokens whose keys and values are in pages.
    routes: experts of the cached tokens, pieces in order.
    reused: prompt tokens taken from the prefix cache.
    stale: some cached keys come from older weights.
    text_from: stop strings have been looked for up to this drawn token.
    skipped: rounds in which others were prefilled first.
    counted: its prompt stands in the counters already.
    on_tokens: told of new tokens after each burst (a streaming caller).
  """

  prompt: np.ndarray
  params: SamplingParams
  limit: int
  deliver: Deliver
  session_id: str = ''
  priority: int = 0
  order: int = 0
  cancelled: bool = False
  ids: list[int] = dataclasses.field(default_factory=list)
  logprobs: list[float] = dataclasses.field(default_factory=list)
  raw_logprobs: list[float] = dataclasses.field(default_factory=list)
  versions: list[int] = dataclasses.field(default_factory=list)
  kept: list[np.ndarray | None] = dataclasses.field(default_factory=list)
  path: list[Node] = dataclasses.field(default_factory=list)
  own: list[int] = dataclasses.field(default_factory=list)
  cached: int = 0
  routes: list[np.ndarray] = dataclasses.field(default_factory=list)
  reused: int = 0
  stale: bool = False
  text_from: int = 0
  skipped: int = 0
  counted: bool = False
  on_tokens: OnTokens | None = None

  def __post_init__(self):
    self.ids = self.prompt.tolist()

  @property
  def drawn(self) -> int:
    """Tokens drawn so far."""
    return len(self.logprobs)

  @property
  def left_to_prefill(self) -> int:
    """Tokens to prefill: all but the last, which decode feeds."""
    return len(self.ids) - 1 - self.cached

  @property
  def budget(self) -> int:
    """Tokens that may still be drawn."""
    return self.limit - self.drawn

  @property
  def table(self) -> list[int]:
    """Page numbers in order."""
    return [node.page for node in self.path] + self.own

  def cut(self, drawn: int) -> None:
    """Forgets all drawn tokens after the first `drawn`."""
    del self.ids[len(self.prompt) + drawn :]
    for row in (self.logprobs, self.raw_logprobs, self.versions, self.kept):
      del row[drawn:]

  def sample(self, finish: Finish) -> Sample:
    """What the caller gets."""
    versions = np.asarray(self.versions, np.int32)
    first = int(versions[0]) if len(versions) else 0
    size = len(self.prompt)
    routes = prompt_routes = None
    if self.params.return_routes and self.routes:
      known = np.concatenate(self.routes)[: len(self.ids)]
      every = np.full((len(self.ids), *known.shape[1:]), -1, np.int16)
      every[: len(known)] = known
      prompt_routes, routes = every[:size], every[size:]
    kind = Sample
    if self.kept:
      kind = partial(KeptSample, kept=tuple(self.kept))
    return kind(
      token_ids=np.asarray(self.ids[size:], np.int32),
      logprobs=np.asarray(self.logprobs, np.float32),
      raw_logprobs=np.asarray(self.raw_logprobs, np.float32),
      finish=finish,
      policy_version=first,
      token_versions=versions if (versions != first).any() else None,
      routes=routes,
      prompt_routes=prompt_routes,
      reused_tokens=self.reused,
    )


def check_request(
  prompt: np.ndarray,
  params: SamplingParams,
  *,
  vocab: int,
  window: int,
  has_text: bool,
) -> None:
  """Refuses what the engine could not serve.

  Args:
    prompt: int32 [N].
    params: how to sample.
    vocab: V of the model.
    window: most tokens of prompt and answer together.
    has_text: whether ids can be decoded, for stop strings.

  Raises:
    EngineError: 'too_long' or 'bad_request'.
  """

  def refuse(text: str, kind: str = 'bad_request') -> None:
    raise EngineError(text, kind=kind)

  if prompt.ndim != 1 or not len(prompt):
    refuse(f'wanted at least one prompt id in a row, got shape {prompt.shape}')
  if prompt.min() < 0 or prompt.max() >= vocab:
    refuse(
      f'wanted prompt ids in [0, {vocab}), got {prompt.min()} to {prompt.max()}'
    )
  if len(prompt) >= window:
    refuse(
      f'the prompt has {len(prompt)} tokens and the window {window}, which '
      'leaves no room for an answer',
      'too_long',
    )
  if params.stop and not has_text:
    refuse('stop strings need a tokenizer: give the scheduler decode_text')
  if len(params.stop_ids) > MAX_STOP_IDS:
    refuse(
      f'wanted at most {MAX_STOP_IDS} stop ids, got {len(params.stop_ids)}'
    )
  if (
    not np.isfinite(params.temperature)
    or params.temperature < 0
    or not 0 < params.top_p <= 1
    or params.top_k < 0
    or not 0 <= params.min_p <= 1
    or (params.max_tokens is not None and params.max_tokens < 1)
    or not 0 <= params.seed < 2**64
  ):
    refuse(f'sampling out of range: {params}')
