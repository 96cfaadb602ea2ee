"""What the engine compiles: prefill a chunk, decode a burst, copy a page.

Pure functions from (parameters, pools, host arrays) to (pools, results); the
pools are donated. Two ways to attend, same numbers:

  gather  decode gathers each row's context once per burst and keeps the new
          keys in a tail (see `paged.py`); for CPUs, and the plain twin.
  kernel  every step writes its keys to the pages and JAX's ragged paged
          attention kernel reads them there; for TPUs.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from clawjax.models import qwen3
from clawjax.models.sharding import Sharding
from clawjax.serving import paged, sampler


@dataclasses.dataclass(frozen=True)
class Place:
  """Where and how a program runs.

  Attributes:
    attention: 'gather' or 'kernel'; see the top of the file.
    sharding: the mesh; heads are cut along its tensor axis. None: one device.
  """

  attention: Literal['gather', 'kernel'] = 'gather'
  sharding: Sharding | None = None

  def pool_shape(self, pages, page_size, config):
    """Of one layer; see `paged.py`."""
    if self.attention == 'kernel':
      return pages, page_size, 2 * config.kv_heads, config.head_size
    return pages, 2 * config.kv_heads, page_size, config.head_size

  @property
  def pool_axes(self):
    """Logical axes of a pool."""
    if self.attention == 'kernel':
      return None, None, 'kv_heads', None
    return None, 'kv_heads', None, None

  def page_size(self, pools):
    """Tokens per page."""
    return pools[0].shape[1 if self.attention == 'kernel' else 2]

  def over_heads(self, body, *args, heads: tuple[int | None, ...]):
    """Runs `body` on each device's own heads.

    Args:
      body: function of arrays; its result is [N, H, C].
      *args: arrays.
      heads: per argument, which axis is heads; None: replicated.
    """
    if self.sharding is None:
      return body(*args)
    axis = self.sharding.axes('heads')

    def spec(at):
      return P() if at is None else P(*[None] * at, axis)

    return jax.shard_map(
      body,
      mesh=self.sharding.mesh,
      in_specs=tuple(map(spec, heads)),
      out_specs=P(None, axis),
      check_vma=False,
    )(*args)

  def paged_kernel(self, q_NHC, pool, table_BP, length_B, starts):
    """Rows of queries over their pages; the queries' own keys included.

    Args:
      q_NHC: the rows' queries one after the other.
      pool: one layer's pages.
      table_BP: int32.
      length_B: int32 tokens in the cache, with these queries' own.
      starts: int32 [B + 1], where each row's queries begin in N.
    """
    from jax.experimental.pallas.ops.tpu import ragged_paged_attention as rpa

    def body(q, pool, table, length, starts):
      return rpa.ragged_paged_attention(
        q,
        pool,
        length,
        table,
        starts,
        jnp.array([table.shape[0]], jnp.int32),
        sm_scale=q.shape[-1] ** -0.5,
        # Named, because the kernel's own table asks which TPU this is, and a
        # machine that only compiles has none.
        num_kv_pages_per_block=max(
          1, min(table.shape[1], 512 // pool.shape[1])
        ),
        num_queries_per_block=min(64, q.shape[0]),
        vmem_limit_bytes=64 * 2**20,
      )

    return self.over_heads(
      body,
      q_NHC,
      pool,
      table_BP,
      length_B,
      starts,
      heads=(1, 2, None, None, None),
    )


def prefill(params, pools, tokens_T, table_P, start, count, *, config, place):
  size = place.page_size(pools)
  slot_T = jnp.arange(tokens_T.shape[0])
  position_T = start + slot_T
  real_T = slot_T < count
  page_T = jnp.where(real_T, table_P[position_T // size], 0)
  offset_T = position_T % size

  def attend(pool, q_BTHC, k_BTKC, v_BTKC):
    new = (paged.join(k_BTKC[0], v_BTKC[0]), page_T, offset_T)
    if place.attention == 'kernel':
      pool = paged.write_for_kernel(pool, *new)
      out_THC = place.paged_kernel(
        q_BTHC[0],
        pool,
        table_P[None],
        (start + count)[None],
        jnp.stack([jnp.int32(0), count]),
      )
    else:
      pool = paged.write(pool, *new)
      out_THC = paged.prefill_attention(
        q_BTHC[0], pool, table_P, start, start + count, block_pages=16
      )
    return out_THC[None], pool

  _, pools, routes = qwen3.apply(
    params,
    config,
    tokens_T[None],
    position_T[None],
    attend=attend,
    layer_states=pools,
    sharding=place.sharding,
  )
  return pools, None if routes is None else routes[0].astype(jnp.int16)


class _InTail:
  """New keys and values of a burst stay in a tail until it ends."""

  def __init__(self, pools, table_BP, length_B, burst, place):
    self._pools, self._table_BP, self._length_B = pools, table_BP, length_B
    self._contexts = [paged.gather(pool, table_BP) for pool in pools]
    kv_heads, width = pools[0].shape[1] // 2, pools[0].shape[3]
    shape = (table_BP.shape[0], kv_heads, burst, width)
    tail = jnp.zeros(shape, pools[0].dtype)
    self.states = [(tail, tail) for _ in pools]

  def with_context(self, states):
    return list(zip(self._contexts, states, strict=True))

  def attend(self, i, active_B):
    def run(state, q_BTHC, k_BTKC, v_BTKC):
      context, (k_tail, v_tail) = state
      k_new = k_BTKC.transpose(0, 2, 1, 3).astype(k_tail.dtype)
      v_new = v_BTKC.transpose(0, 2, 1, 3).astype(v_tail.dtype)
      k_tail = jax.lax.dynamic_update_slice(k_tail, k_new, (0, 0, i, 0))
      v_tail = jax.lax.dynamic_update_slice(v_tail, v_new, (0, 0, i, 0))
      mixed_BHC = paged.decode_attention(
        q_BTHC[:, 0], context, self._length_B, (k_tail, v_tail), i
      )
      return mixed_BHC[:, None], (k_tail, v_tail)

    return run

  def end(self, states, count_B):
    """The pools with each row's first `count_B` tail entries in its pages."""
    slot_N = jnp.arange(states[0][0].shape[2])
    position_BN = self._length_B[:, None] + slot_N
    drawn_BN = slot_N < count_B[:, None]
    size = self._pools[0].shape[2]
    page_BN = paged.page_at(self._table_BP, position_BN, size, drawn_BN)
    return [
      paged.write(
        pool,
        paged.join(k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)),
        page_BN,
        position_BN % size,
      )
      for pool, (k, v) in zip(self._pools, states, strict=True)
    ]


class _InPages:
  """New keys and values go to the pages at every step."""

  def __init__(self, pools, table_BP, length_B, burst, place):
    self.states = pools
    self._table_BP, self._length_B = table_BP, length_B
    self._place = place

  def with_context(self, states):
    return states

  def attend(self, i, active_B):
    position_B = self._length_B + i
    size = self.states[0].shape[1]
    page_BN = paged.page_at(
      self._table_BP, position_B[:, None], size, active_B[:, None]
    )
    rows = jnp.arange(self._table_BP.shape[0] + 1, dtype=jnp.int32)

    def run(pool, q_BTHC, k_BTKC, v_BTKC):
      kv = paged.join(k_BTKC[:, 0], v_BTKC[:, 0])
      pool = paged.write_for_kernel(pool, kv, page_BN[:, 0], position_B % size)
      length_B = jnp.where(active_B, position_B + 1, 1)
      mixed_BHC = self._place.paged_kernel(
        q_BTHC[:, 0], pool, self._table_BP, length_B, rows
      )
      return mixed_BHC[:, None], pool

    return run

  def end(self, states, count_B):
    return states


def decode(
  params,
  pools,
  batch,
  version,
  steps,
  min_active,
  *,
  config,
  burst,
  record_kept,
  place,
):
  table_BP, length_B = batch['table_BP'], batch['length_B']
  draws, budget_B = batch['draws'], batch['budget_B']
  rows = table_BP.shape[0]
  kind = _InPages if place.attention == 'kernel' else _InTail
  cache = kind(pools, table_BP, length_B, burst, place)
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
  if record_kept:
    out['kept_BNR'] = jnp.full((rows, burst, record_kept), -1, jnp.int32)
    out['kept_count_BN'] = jnp.zeros((rows, burst), jnp.int32)

  def step(carry):
    i, token_B, active_B, states, out = carry
    hidden_BTD, states, routes = qwen3.apply(
      params,
      config,
      token_B[:, None],
      (length_B + i)[:, None],
      attend=cache.attend(i, active_B),
      layer_states=cache.with_context(states),
      sharding=place.sharding,
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
    if record_kept:
      likely_BV = jnp.where(drawn.keep_BV, logits_BV, -jnp.inf)
      top_BR, kept_BR = jax.lax.top_k(likely_BV, record_kept)
      kept_BR = jnp.where(jnp.isfinite(top_BR), kept_BR, -1)
      new['kept_BNR'] = put('kept_BNR', kept_BR)
      new['kept_count_BN'] = put('kept_count_BN', drawn.keep_BV.sum(-1))
    active_B &= ~stop_B & finite_B & (count_B < budget_B)
    return i + 1, drawn.token_B, active_B, states, new

  def going(carry):
    i, _, active_B, _, _ = carry
    return (i < steps) & (active_B.sum() >= min_active)

  i, _, _, states, out = jax.lax.while_loop(
    going,
    step,
    (
      jnp.int32(0),
      batch['token_B'],
      budget_B > 0,
      cache.states,
      out,
    ),
  )
  pools = cache.end(states, out['count_B'])
  return pools, {'routes_BNLA': None, **out, 'steps': i}


def copy_page(pools, source, target):
  return [pool.at[target].set(pool[source]) for pool in pools]
