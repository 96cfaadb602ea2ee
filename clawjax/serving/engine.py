"""The device half of serving: prefill a chunk, decode a burst, swap weights.

The engine owns the weights and the pages of keys and values, and a handful of
compiled programs over them. It keeps no notion of a request: whoever calls it
(the scheduler, or the JetStream adapter) says which pages hold which tokens.

  prefill  T tokens of one sequence go in; their keys and values land in pages.
           No logits: the last token of a prompt is left for decode.
  decode   a burst of up to N steps for a batch of sequences. Each step feeds
           every row's last token and draws its next one. The burst ends early
           when fewer rows than wanted are still going.
  copy     one page onto another (a shared page that must be extended).

Shapes are bucketed (chunk length; batch and context of a burst), so the number
of programs is small and does not depend on the requests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from clawjax.errors import EngineError
from clawjax.models import experts, qwen3
from clawjax.models.sharding import Sharding
from clawjax.serving import programs, sampler


@dataclasses.dataclass(frozen=True)
class Batch:
  """The rows of a burst, all host arrays.

  Attributes:
    table_BP: int32 page numbers; entries beyond the sequence are 0.
    length_B: int32 tokens in the cache, the fed token excluded.
    token_B: int32 token to feed first, at position `length_B`.
    index_B: int32 number of the next token within its answer.
    budget_B: int32 most tokens to draw; 0 marks padding.
    stop_BE: int32 ids that end a row, filled up with -1.
    draws: how each row samples.
  """

  table_BP: np.ndarray
  length_B: np.ndarray
  token_B: np.ndarray
  index_B: np.ndarray
  budget_B: np.ndarray
  stop_BE: np.ndarray
  draws: sampler.Draws


@dataclasses.dataclass(frozen=True)
class Burst:
  """What a burst drew; row b is valid up to `count_B[b]`.

  Attributes:
    token_BN: int32.
    logprob_BN: float32 under the sampling distribution.
    raw_logprob_BN: float32 under the plain softmax.
    count_B: int32 tokens drawn, and tokens added to the cache.
    stopped_B: bool, the last token was a stop id.
    finite_B: bool, every log-prob of the row is a number.
    routes_BNLA: int16 experts of the *fed* tokens (dense models: None).
    kept_BNR: int32 ids that each draw chose from, likeliest first, filled up
      with -1; None unless the engine records them.
    kept_count_BN: int32 how many there were, R or not; None likewise.
    steps: steps that the device ran.
  """

  token_BN: np.ndarray
  logprob_BN: np.ndarray
  raw_logprob_BN: np.ndarray
  count_B: np.ndarray
  stopped_B: np.ndarray
  finite_B: np.ndarray
  routes_BNLA: np.ndarray | None
  steps: int
  kept_BNR: np.ndarray | None = None
  kept_count_BN: np.ndarray | None = None


class Engine:
  """Weights, pages and the compiled programs over them."""

  def __init__(
    self,
    config: qwen3.Config,
    params: Any,
    *,
    slots: int = 8,
    window: int = 2048,
    page_size: int = 16,
    pages: int | None = None,
    burst: int = 16,
    max_chunk: int = 512,
    version: int = 0,
    cache_dtype: str | None = None,
    record_kept: int = 0,
    sharding: Sharding | None = None,
    attention: Literal['auto', 'gather', 'kernel'] = 'auto',
  ):
    """Copies `params` and sets aside the pages.

    Args:
      config: the model.
      params: its parameters (`qwen3.init`); they stay the caller's own.
      slots: most sequences that decode together.
      window: most tokens of a sequence; rounded up to whole pages.
      page_size: tokens per page.
      pages: pages of the pool; None: room for twice the slots at full window.
      burst: most steps per device call.
      max_chunk: most tokens per prefill call; a power of two.
      version: policy version of `params`.
      cache_dtype: number format of keys and values; None: the model's.
      record_kept: R, most ids recorded per draw of the set that top_k, top_p
        and min_p left, for replay in the loss; 0 records none.
      sharding: mesh for weights and pages (heads along its tensor axis); None:
        the default device.
      attention: see `programs.py`; 'auto' takes the kernel on TPUs.
    """
    # Unrolled layers: a scan would copy every layer's pages on each call.
    self.config = config.replace(scan_layers=False, remat='none')
    if config.expert_impl == 'auto' and jax.default_backend() == 'cpu':
      self.config = self.config.replace(expert_impl='roomy')
    self.slots = slots
    self.page_size = page_size
    self.pages_per_row = _round_up(-(-window // page_size), 16)
    self.window = window
    if pages is None:
      pages = 1 + 2 * slots * self.pages_per_row
    if pages <= self.pages_per_row:
      raise EngineError(
        f'wanted more than {self.pages_per_row} pages, one window of {window} '
        f'tokens, got {pages}; raise pages or lower window',
        kind='too_long',
      )
    self.pages = pages
    self.burst = burst
    self.record_kept = record_kept
    self.chunks = _buckets(32, max_chunk, 4)
    self.batches = _buckets(1, slots, 4)
    self.contexts = _contexts(self.pages_per_row, page_size)
    dtype = jnp.dtype(cache_dtype or config.dtype)
    if attention == 'auto':
      attention = 'kernel' if jax.default_backend() == 'tpu' else 'gather'
    place = programs.Place(attention, sharding)
    shape = place.pool_shape(pages, page_size, config)
    self._where = self._pools_where = None
    if sharding is not None:
      self._where = sharding.of(qwen3.table(self.config))
      self._pools_where = sharding.named(place.pool_axes)
    self._pools = [
      jnp.zeros(shape, dtype, device=self._pools_where)
      for _ in range(config.layers)
    ]
    self._params: Any = None
    self.version = version
    self.load_params(params, version)
    self._prefill = jax.jit(
      partial(programs.prefill, config=self.config, place=place),
      donate_argnames='pools',
    )
    self._decode = jax.jit(
      partial(
        programs.decode,
        config=self.config,
        burst=burst,
        record_kept=record_kept,
        place=place,
      ),
      donate_argnames='pools',
    )
    self._copy = jax.jit(programs.copy_page, donate_argnames='pools')

  def load_params(self, params: Any, version: int) -> None:
    """Takes a copy of `params`; the old weights serve until it is complete.

    Args:
      params: same structure and shapes as at the start, layers listed or
        stacked. The caller may donate its own arrays afterwards.
      version: policy version of these weights.

    Raises:
      EngineError: the tree does not fit; the old weights stay.
    """
    params = qwen3.unstack_layers(params)
    want = qwen3.abstract(self.config)
    if jax.tree.structure(params) != jax.tree.structure(want):
      raise EngineError(
        'wanted the parameter tree of this model, got '
        f'{jax.tree.structure(params)}',
        kind='bad_params',
      )
    for (path, spec), leaf in zip(
      jax.tree_util.tree_leaves_with_path(want),
      jax.tree.leaves(params),
      strict=True,
    ):
      if spec.shape != np.shape(leaf):
        raise EngineError(
          f'wanted {jax.tree_util.keystr(path)} of shape {spec.shape}, got '
          f'{np.shape(leaf)}',
          kind='bad_params',
        )
    # A copy on the engine's own mesh, whatever mesh the parameters came on.
    if self._where is not None:
      params = jax.device_put(params, self._where)
    copied = jax.tree.map(lambda x, s: jnp.array(x, s.dtype), params, want)
    if jax.default_backend() != 'cpu':  # (There it would copy for nothing.)
      places = jax.tree.map(lambda x: x.sharding, copied)
      copied = jax.device_put(copied, experts.formats(places))
    self._params = jax.block_until_ready(copied)
    self.version = version

  def chunk_for(self, left: int) -> int:
    """The chunk length to run next when `left` tokens are to be prefilled.

    Either a bucket that holds all of them without much padding, or the
    largest one that they fill.
    """
    for size in self.chunks:
      if size >= left:
        smaller = [c for c in self.chunks if c <= left]
        if left > 0.6 * size or not smaller:
          return size
        return smaller[-1]
    return self.chunks[-1]

  def prefill(
    self, tokens_T: np.ndarray, start: int, table: Sequence[int]
  ) -> np.ndarray | None:
    """Puts the keys and values of consecutive tokens into pages.

    Args:
      tokens_T: int32, at most the largest chunk.
      start: position of the first one; what is before is in the pages.
      table: page numbers of the sequence, covering these tokens.

    Returns:
      int16 [T, L, A] experts used, or None for a dense model.
    """
    count = len(tokens_T)
    size = next(c for c in self.chunks if c >= count)
    # Padding repeats the tokens: copies of one id would all want the same
    # experts, and more of them than there is room for.
    tokens = np.resize(np.asarray(tokens_T, np.int32), size)
    table_P = np.zeros(self.pages_per_row, np.int32)
    table_P[: len(table)] = table
    self._pools, routes = self._prefill(
      self._params,
      pools=self._pools,
      tokens_T=tokens,
      table_P=table_P,
      start=np.int32(start),
      count=np.int32(count),
    )
    return None if routes is None else np.asarray(routes)[:count]

  def decode(self, batch: Batch, *, steps: int, min_active: int = 1) -> Burst:
    """Runs a burst; see `Batch` and `Burst`.

    Args:
      batch: its size is one of `batches`, its pages one of `contexts`.
      steps: most steps, at most `burst`.
      min_active: stop early when fewer rows than this are still going.
    """
    self._pools, out = self._decode(
      self._params,
      pools=self._pools,
      batch=dict(vars(batch)),
      version=np.int32(self.version),
      steps=np.int32(min(steps, self.burst)),
      min_active=np.int32(max(1, min_active)),
    )
    out = jax.device_get(out)
    return Burst(**{**out, 'steps': int(out['steps'])})

  def copy_page(self, source: int, target: int) -> None:
    """Copies one page onto another in every layer."""
    self._pools = self._copy(
      pools=self._pools, source=np.int32(source), target=np.int32(target)
    )


def _contexts(most: int, page_size: int) -> tuple[int, ...]:
  """Pages of 256, 384, 512, 768, 1024, ... tokens, up to `most`: a decode step
  on a CPU reads the whole context that it is compiled for."""
  out, size = [], -(-256 // page_size)
  while size < most:
    out += [size, size + size // 2]
    size *= 2
  return (*[pages for pages in out if pages < most], most)


def _round_up(value: int, step: int) -> int:
  return -(-value // step) * step


def _buckets(first: int, last: int, ratio: int) -> tuple[int, ...]:
  out, size = [], first
  while size < last:
    out.append(size)
    size *= ratio
  return (*out, last)
