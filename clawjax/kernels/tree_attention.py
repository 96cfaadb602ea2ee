"""Attention on trees packed into rows: one signature, several ways to do it.

  slot q attends to slot k   exactly when   k <= q < subtree_end[k]

  naive     the whole [T, T] mask: the oracle, for small T
  chunked   blocks in plain jax, any device (chunked.py)
  pallas    Pallas TPU kernels over the live pairs of blocks (pallas_tree.py);
            'pallas_interpret' runs them in plain jax, for tests

All are differentiable in q, k, v, share keys among query heads (GQA), sum in
float32, and take the tree as data: a new tree is not a new compilation. The
queries may be some of the slots only (`query_starts`): that is what a device of
a context-parallel mesh has (context.py), and a row that continues another one.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from clawjax.kernels.blocks import query_slots, tree_mask
from clawjax.kernels.chunked import chunked_attention

Impl = Literal['auto', 'naive', 'chunked', 'pallas', 'pallas_interpret']


def tree_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  subtree_end: jax.Array,
  *,
  scale: float | None = None,
  impl: Impl = 'auto',
  block: int | None = None,
  query_starts: jax.Array | None = None,
  pairs: int | None = None,
) -> jax.Array:
  """Ancestor-masked attention.

  Args:
    q: [B, T, H, C], rotary embedding and norms already applied.
    k, v: [B, T, K, C]; H is a multiple of K.
    subtree_end: int32 [B, T]; at least own index + 1, padding exactly that.
    scale: factor on the scores; None: C ** -0.5.
    impl: see the head of this file. 'auto' takes 'pallas' on a TPU when C is a
      multiple of 128, else 'chunked' (on two CPU cores 'chunked' took 0.64 of
      naive's CPU time at T = 256, 0.22 at 1024 and 0.10 at 2048, forward and
      backward, 4 heads of 32).
    block: slots per block; None: 128 on a CPU, 512 elsewhere, less for small T.
    query_starts: int32 [B, n]: q is then [B, Q, H, C] and its block i (of Q / n
      queries, which is also the block size; `block` is not read) holds the
      queries of slots query_starts[i], query_starts[i] + 1, ...; starts are
      multiples of the block size. None: q holds all slots in order.
    pairs: most live pairs of blocks that the Pallas kernels get places for;
      None: every causal pair. Fewer save scalar memory at large T.

  Returns:
    [B, T, H, C] (or [B, Q, H, C]) in the dtype of q. With `pairs`, a traced
    batch that has more of them comes out as nan (no program can raise on a
    device; `train.step` checks its rows on the host before it runs them).

  Raises:
    ValueError: `subtree_end` is known and has more live pairs than `pairs`.
  """
  assert q.ndim == k.ndim == v.ndim == 4, (q.shape, k.shape, v.shape)
  assert q.shape[2] % k.shape[2] == 0, (q.shape, k.shape)
  assert subtree_end.shape == k.shape[:2], (subtree_end.shape, k.shape)
  if query_starts is None:
    assert q.shape[1] == k.shape[1], (q.shape, k.shape)
  else:
    n = query_starts.shape[1]
    assert q.shape[1] % n == 0, (q.shape, query_starts.shape)
    block = q.shape[1] // n
  scale = q.shape[-1] ** -0.5 if scale is None else scale
  if impl == 'naive':
    return naive_attention(
      q, k, v, subtree_end, scale=scale, query_starts=query_starts
    )
  if impl == 'auto':
    tpu = jax.default_backend() == 'tpu' and q.shape[-1] % 128 == 0
    impl = 'pallas' if tpu else 'chunked'
  if impl in ('pallas', 'pallas_interpret'):
    # Imported here: a CPU-only install need not have Pallas' TPU half.
    from clawjax.kernels.pallas_tree import pallas_attention

    return pallas_attention(
      q,
      k,
      v,
      subtree_end,
      scale=scale,
      block=block or 512,
      pairs=pairs,
      query_starts=query_starts,
      interpret=impl == 'pallas_interpret',
    )
  if impl == 'chunked':
    if block is None:
      block = 128 if jax.default_backend() == 'cpu' else 512
      block = min(block, max(16, 1 << (q.shape[1] - 1).bit_length()))
    return chunked_attention(
      q,
      k,
      v,
      subtree_end,
      scale=scale,
      block=block,
      query_starts=query_starts,
    )
  raise ValueError(
    "impl: wanted 'auto', 'naive', 'chunked', 'pallas' or 'pallas_interpret',"
    f' got {impl!r}'
  )


def naive_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  subtree_end: jax.Array,
  *,
  scale: float,
  query_starts: jax.Array | None = None,
) -> jax.Array:
  """The definition, with the whole mask; memory and work quadratic in T."""
  B, T, H, C = q.shape
  K = k.shape[2]
  grouped = q.reshape(B, T, K, H // K, C)
  s = jnp.einsum(
    'btkgc,bskc->bkgts', grouped, k, preferred_element_type=jnp.float32
  )
  queries = None if query_starts is None else query_slots(query_starts, T)
  seen = tree_mask(subtree_end, queries)[:, None, None]
  p = jax.nn.softmax(jnp.where(seen, s * scale, -1e30), axis=-1)
  out = jnp.einsum(
    'bkgts,bskc->btkgc',
    p.astype(v.dtype),
    v,
    preferred_element_type=jnp.float32,
  )
  return out.reshape(B, T, H, C).astype(q.dtype)
