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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clawjax.errors import EngineError
from clawjax.models import qwen3
from clawjax.serving import paged, sampler


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
    """
    # Unrolled layers: a scan would copy every layer's pages on each call.
    self.config = config.replace(scan_layers=False, remat='none')
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
    self.chunks = _buckets(32, max_chunk, 4)
    self.batches = _buckets(2, slots, 4)
    self.contexts = _buckets(
      min(self.pages_per_row, max(1, 512 // page_size)), self.pages_per_row, 2
    )
    dtype = jnp.dtype(cache_dtype or config.dtype)
    shape = (pages, page_size, 2 * config.kv_heads, config.head_size)
    self._pools = [jnp.zeros(shape, dtype) for _ in range(config.layers)]
    self._params: Any = None
    self.version = version
    self.load_params(params, version)
    self._prefill = jax.jit(
      partial(_prefill, config=self.config), donate_argnames='pools'
    )
    self._decode = jax.jit(
      partial(_decode, config=self.config, burst=burst),
      donate_argnames='pools',
    )
    self._copy = jax.jit(_copy, donate_argnames='pools')

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
    copied = jax.tree.map(lambda x, s: jnp.array(x, s.dtype), params, want)
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
    tokens = np.zeros(size, np.int32)
    tokens[:count] = tokens_T
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
      batch=dataclasses.asdict(batch) | {'draws': batch.draws},
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


def _round_up(value: int, step: int) -> int:
  return -(-value // step) * step


def _buckets(first: int, last: int, ratio: int) -> tuple[int, ...]:
  out, size = [], first
  while size < last:
    out.append(size)
    size *= ratio
  return (*out, last)


def _prefill(params, pools, tokens_T, table_P, start, count, *, config):
  size = pools[0].shape[1]
  slot_T = jnp.arange(tokens_T.shape[0])
  position_T = start + slot_T
  real_T = slot_T < count
  page_T = jnp.where(real_T, table_P[position_T // size], 0)
  offset_T = position_T % size

  def attend(pool, q_BTHC, k_BTKC, v_BTKC):
    pool = paged.write(pool, paged.join(k_BTKC[0], v_BTKC[0]), page_T, offset_T)
    out_THC = paged.prefill_attention(
      q_BTHC[0],
      pool,
      table_P,
      start,
      start + count,
      block_pages=16,
    )
    return out_THC[None], pool

  _, pools, routes = qwen3.apply(
    params,
    config,
    tokens_T[None],
    position_T[None],
    attend=attend,
    layer_states=pools,
  )
  return pools, None if routes is None else routes[0].astype(jnp.int16)


def _decode(params, pools, batch, version, steps, min_active, *, config, burst):
  table_BP, length_B = batch['table_BP'], batch['length_B']
  draws, budget_B = batch['draws'], batch['budget_B']
  rows, size = table_BP.shape[0], pools[0].shape[1]
  contexts = [paged.gather(pool, table_BP) for pool in pools]
  kv_heads, width = config.kv_heads, config.head_size
  tail = jnp.zeros((rows, kv_heads, burst, width), pools[0].dtype)
  experts = (config.layers, config.experts_per_token) if config.experts else ()
  out = {
    'token_BN': jnp.zeros((rows, burst), jnp.int32),
    'logprob_BN': jnp.zeros((rows, burst), jnp.float32),
    'raw_logprob_BN': jnp.zeros((rows, burst), jnp.float32),
    'count_B': jnp.zeros(rows, jnp.int32),
    'stopped_B': jnp.zeros(rows, bool),
    'finite_B': jnp.ones(rows, bool),
  }
  if experts:
    out['routes_BNLA'] = jnp.zeros((rows, burst, *experts), jnp.int16)

  def step(carry):
    i, token_B, active_B, tails, out = carry

    def attend(state, q_BTHC, k_BTKC, v_BTKC):
      context, (k_tail, v_tail) = state
      k_new = k_BTKC.transpose(0, 2, 1, 3).astype(k_tail.dtype)
      v_new = v_BTKC.transpose(0, 2, 1, 3).astype(v_tail.dtype)
      k_tail = jax.lax.dynamic_update_slice(k_tail, k_new, (0, 0, i, 0))
      v_tail = jax.lax.dynamic_update_slice(v_tail, v_new, (0, 0, i, 0))
      mixed_BHC = paged.decode_attention(
        q_BTHC[:, 0], context, length_B, (k_tail, v_tail), i
      )
      return mixed_BHC[:, None], (k_tail, v_tail)

    hidden_BTD, tails, routes = qwen3.apply(
      params,
      config,
      token_B[:, None],
      (length_B + i)[:, None],
      attend=attend,
      layer_states=list(zip(contexts, tails, strict=True)),
    )
    logits_BV = qwen3.logits(params, config, hidden_BTD[:, 0])
    drawn = sampler.sample(logits_BV, draws, version, batch['index_B'] + i)
    stop_B = (drawn.token_B[:, None] == batch['stop_BE']).any(-1) & active_B
    finite_B = jnp.isfinite(drawn.logprob_B) & jnp.isfinite(drawn.raw_logprob_B)
    count_B = out['count_B'] + active_B

    def put(name, value):
      return out[name].at[:, i].set(value.astype(out[name].dtype))

    new = {
      'token_BN': put('token_BN', drawn.token_B),
      'logprob_BN': put('logprob_BN', drawn.logprob_B),
      'raw_logprob_BN': put('raw_logprob_BN', drawn.raw_logprob_B),
      'count_B': count_B,
      'stopped_B': out['stopped_B'] | stop_B,
      'finite_B': out['finite_B'] & (finite_B | ~active_B),
    }
    if experts:
      new['routes_BNLA'] = put('routes_BNLA', routes[:, 0])
    active_B &= ~stop_B & finite_B & (count_B < budget_B)
    return i + 1, drawn.token_B, active_B, tails, new

  def going(carry):
    i, _, active_B, _, _ = carry
    return (i < steps) & (active_B.sum() >= min_active)

  i, _, _, tails, out = jax.lax.while_loop(
    going,
    step,
    (
      jnp.int32(0),
      batch['token_B'],
      budget_B > 0,
      [(tail, tail) for _ in pools],
      out,
    ),
  )
  # The tail's keys and values move to the pages; what a row did not draw goes
  # to scratch.
  slot_N = jnp.arange(burst)
  position_BN = length_B[:, None] + slot_N
  page_BN = jnp.take_along_axis(
    table_BP,
    jnp.minimum(position_BN // size, table_BP.shape[1] - 1),
    axis=1,
  )
  page_BN = jnp.where(slot_N < out['count_B'][:, None], page_BN, 0)
  offset_BN = position_BN % size
  pools = [
    paged.write(
      pool,
      paged.join(k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)),
      page_BN,
      offset_BN,
    )
    for pool, (k, v) in zip(pools, tails, strict=True)
  ]
  return pools, {'routes_BNLA': None, **out, 'steps': i}


def _copy(pools, source, target):
  return [pool.at[target].set(pool[source]) for pool in pools]
