"""Tree attention in blocks, in plain jax: any device, memory linear in T.

Rows are cut into blocks of queries and keys. A scan over query blocks visits,
for each, only its live key blocks (blocks.py) with an online softmax; the
element mask is applied only in partial blocks. Forward saves the output and the
log-sum-exp per query, backward recomputes the scores block by block. What is
live is traced, so the tree may change without a new compilation.

  scan over B x nq query blocks
    loop over the live key blocks of that row       acc, max, sum in float32

Sums are float32 whatever the dtype of the inputs.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from clawjax.kernels.blocks import FULL, BlockList, block_list

# Finite, so that exp(masked - max) is 0 and never nan. A query that sees no key
# in its first live blocks gathers rubbish there; its first visible key (at the
# latest itself) scales that by exp(_MASKED - max) = 0.
_MASKED = -1e30


def chunked_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  subtree_end: jax.Array,
  *,
  scale: float,
  block: int = 128,
  query_starts: jax.Array | None = None,
) -> jax.Array:
  """Tree attention; see `tree_attention` for the arguments.

  Args:
    block: slots per block of queries and of keys; T is padded to a multiple.
  """
  B, T = subtree_end.shape
  pad = -T % block
  if pad:

    def padded(x: jax.Array) -> jax.Array:
      return jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, 0)))

    k, v = padded(k), padded(v)
    if query_starts is None:
      q = padded(q)
    own = jnp.broadcast_to(
      jnp.arange(T + 1, T + pad + 1, dtype=subtree_end.dtype),
      (B, pad),
    )
    subtree_end = jnp.concatenate([subtree_end, own], axis=1)
  if query_starts is None:
    starts = jnp.arange(0, T + pad, block, dtype=jnp.int32)
    starts = jnp.broadcast_to(starts, (B, len(starts)))
    return _attention(q, k, v, subtree_end, starts, scale, block)[:, :T]
  return _attention(q, k, v, subtree_end, query_starts, scale, block)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attention(q, k, v, subtree_end, starts, scale, block):
  return _forward(q, k, v, subtree_end, starts, scale, block)[0]


def _query_blocks(x: jax.Array, heads: int, block: int) -> jax.Array:
  """[B, T, H, C] -> [B * nq, K, G * block, C]."""
  B, T, H, C = x.shape
  x = x.reshape(B, T // block, block, heads, H // heads, C)
  x = x.transpose(0, 1, 3, 4, 2, 5)
  return x.reshape(-1, heads, H // heads * block, C)


def _from_query_blocks(x: jax.Array, shape: tuple, block: int) -> jax.Array:
  """The inverse of `_query_blocks`."""
  B, T, H, C = shape
  heads = x.shape[1]
  x = x.reshape(B, T // block, heads, H // heads, block, C)
  return x.transpose(0, 1, 4, 2, 3, 5).reshape(shape)


def _key_blocks(x: jax.Array, block: int) -> jax.Array:
  """[B, T, K, C] -> [B * nk, K, block, C]."""
  B, T, K, C = x.shape
  x = x.reshape(B, T // block, block, K, C).transpose(0, 1, 3, 2, 4)
  return x.reshape(-1, K, block, C)


def _from_key_blocks(x: jax.Array, shape: tuple, block: int) -> jax.Array:
  B, T, K, C = shape
  x = x.reshape(B, T // block, K, block, C).transpose(0, 1, 3, 2, 4)
  return x.reshape(shape)


def _scores(q, k, ends, start, row_k, kind, groups, block):
  """float32 [K, G * block, block] scores of one pair of blocks, masked.

  Args:
    q: [K, G * block, C], scaled.
    k: [K, block, C].
    ends: int32 [block] subtree_end of the keys.
    start: slot of the first query.
    row_k: number of the key block within its row.
    kind: PARTIAL or FULL.
  """
  s = jnp.einsum('kqc,ksc->kqs', q, k, preferred_element_type=jnp.float32)

  def masked(s: jax.Array) -> jax.Array:
    i = start + jnp.arange(block)[:, None]
    j = row_k * block + jnp.arange(block)
    seen = (j <= i) & (i < ends)
    return jnp.where(jnp.tile(seen, (groups, 1)), s, _MASKED)

  return lax.cond(kind == FULL, lambda s: s, masked, s)


def _plan(subtree_end: jax.Array, starts: jax.Array, block: int) -> BlockList:
  plan = block_list(subtree_end, block, block, starts)
  return BlockList(*(x.reshape(-1, *x.shape[2:]) for x in plan))


def _forward(q, k, v, subtree_end, starts, scale, block):
  B, H, K = q.shape[0], q.shape[2], k.shape[2]
  G, nq, nk = H // K, q.shape[1] // block, k.shape[1] // block
  qs = _query_blocks(q * jnp.asarray(scale, q.dtype), K, block)
  ks, vs = _key_blocks(k, block), _key_blocks(v, block)
  ends = subtree_end.reshape(B * nk, block)
  plan = _plan(subtree_end, starts, block)

  def query_block(_, xs):
    number, start, qb, kinds, index, count = xs
    base = number // nq * nk

    def key_block(t, carry):
      acc, top, mass = carry
      j = index[t]
      kb = lax.dynamic_index_in_dim(ks, base + j, keepdims=False)
      vb = lax.dynamic_index_in_dim(vs, base + j, keepdims=False)
      s = _scores(qb, kb, ends[base + j], start, j, kinds[j], G, block)
      new_top = jnp.maximum(top, s.max(-1))
      shrink = jnp.exp(top - new_top)
      p = jnp.exp(s - new_top[..., None])
      acc = acc * shrink[..., None] + jnp.einsum(
        'kqs,ksc->kqc',
        p.astype(vb.dtype),
        vb,
        preferred_element_type=jnp.float32,
      )
      return acc, new_top, mass * shrink + p.sum(-1)

    zero = jnp.zeros(qb.shape, jnp.float32)
    begin = (zero, jnp.full(qb.shape[:2], _MASKED), zero[..., 0])
    acc, top, mass = lax.fori_loop(0, count, key_block, begin)
    out = (acc / mass[..., None]).astype(q.dtype)
    return None, (out, top + jnp.log(mass))

  numbers = jnp.arange(B * nq)
  xs = (numbers, starts.reshape(-1), qs, *plan)
  _, (out, lse) = lax.scan(query_block, None, xs)
  # With remat='attention' these two are kept, so attention is not run again.
  result = _from_query_blocks(out, q.shape, block)
  result = checkpoint_name(result, 'attention_residuals')
  lse = checkpoint_name(lse, 'attention_residuals')
  return result, (q, k, v, subtree_end, starts, result, lse)


def _backward(scale, block, saved, d_out):
  q, k, v, subtree_end, starts, out, lse = saved
  B, H, K = q.shape[0], q.shape[2], k.shape[2]
  G, nq, nk = H // K, q.shape[1] // block, k.shape[1] // block
  qs = _query_blocks(q * jnp.asarray(scale, q.dtype), K, block)
  ks, vs = _key_blocks(k, block), _key_blocks(v, block)
  ends = subtree_end.reshape(B * nk, block)
  plan = _plan(subtree_end, starts, block)
  d_outs = _query_blocks(d_out, K, block)
  outs = _query_blocks(out, K, block)
  delta = jnp.einsum(
    'nkqc,nkqc->nkq', d_outs, outs, preferred_element_type=jnp.float32
  )

  def query_block(carry, xs):
    number, start, qb, kinds, index, count, dob, lse_b, delta_b = xs
    base = number // nq * nk

    def key_block(t, carry):
      dq, dk, dv = carry
      j = index[t]
      kb = lax.dynamic_index_in_dim(ks, base + j, keepdims=False)
      vb = lax.dynamic_index_in_dim(vs, base + j, keepdims=False)
      s = _scores(qb, kb, ends[base + j], start, j, kinds[j], G, block)
      p = jnp.exp(s - lse_b[..., None])
      dp = jnp.einsum(
        'kqc,ksc->kqs', dob, vb, preferred_element_type=jnp.float32
      )
      ds = (p * (dp - delta_b[..., None])).astype(q.dtype)
      dvb = jnp.einsum(
        'kqs,kqc->ksc',
        p.astype(dob.dtype),
        dob,
        preferred_element_type=jnp.float32,
      )
      dkb = jnp.einsum(
        'kqs,kqc->ksc', ds, qb, preferred_element_type=jnp.float32
      )
      dqb = jnp.einsum(
        'kqs,ksc->kqc', ds, kb, preferred_element_type=jnp.float32
      )
      return dq + dqb, _add_at(dk, base + j, dkb), _add_at(dv, base + j, dvb)

    dk, dv = carry
    begin = (jnp.zeros(qb.shape, jnp.float32), dk, dv)
    dq, dk, dv = lax.fori_loop(0, count, key_block, begin)
    return (dk, dv), dq

  zero = jnp.zeros(ks.shape, jnp.float32)
  numbers = jnp.arange(B * nq)
  xs = (numbers, starts.reshape(-1), qs, *plan, d_outs, lse, delta)
  (dk, dv), dq = lax.scan(query_block, (zero, zero), xs)
  dq = _from_query_blocks(dq, q.shape, block) * scale
  dk = _from_key_blocks(dk, k.shape, block)
  dv = _from_key_blocks(dv, v.shape, block)
  return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, None


def _add_at(total: jax.Array, index: jax.Array, part: jax.Array) -> jax.Array:
  old = lax.dynamic_index_in_dim(total, index, keepdims=False)
  return lax.dynamic_update_index_in_dim(total, old + part, index, axis=0)


_attention.defvjp(_forward, _backward)
