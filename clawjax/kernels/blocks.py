"""Which blocks of the attention matrix a tree needs.

With `end` the subtree_end of the keys, query q sees key k when k <= q < end[k].
For a block of queries [q0, q1) and a block of keys [k0, k1), from the smallest
and largest `end` of the key block alone:

  live   k0 < q1  and  q0 < max(end)     some pair is visible
  full   k1 - 1 <= q0  and  q1 <= min(end)   every pair is visible

`live` is exact, not a bound: off the diagonal, the first query and the key with
the largest end are a visible pair. All of it is O(T + (T / block)^2) and may be
traced, so a new tree never compiles anything anew.

Queries need not be all slots in order: with `starts`, block i of the queries
holds slots starts[i], starts[i] + 1, ... (a device's share of a row, or a row
that continues another one).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

DEAD, PARTIAL, FULL = 0, 1, 2


class BlockList(NamedTuple):
  """Live key blocks per query block.

  Attributes:
    kind: int32 [..., nq, nk], DEAD, PARTIAL or FULL.
    index: int32 [..., nq, nk] live key blocks first, in order.
    count: int32 [..., nq] how many are live.
  """

  kind: jax.Array
  index: jax.Array
  count: jax.Array


def block_kinds(
  subtree_end: jax.Array,
  block_q: int,
  block_k: int,
  starts: jax.Array | None = None,
) -> jax.Array:
  """Kinds of all blocks.

  Args:
    subtree_end: int32 [..., T]; T is a multiple of both blocks.
    block_q, block_k: block sizes in slots.
    starts: int32 [..., nq] slot of the first query of each block, a multiple
      of block_q; None: all slots in order.

  Returns:
    int32 [..., nq, T / block_k]; nq is T / block_q without `starts`.
  """
  T = subtree_end.shape[-1]
  by_block = subtree_end.reshape(*subtree_end.shape[:-1], -1, block_k)
  last = by_block.max(-1)[..., None, :]
  first = by_block.min(-1)[..., None, :]
  q0 = jnp.arange(0, T, block_q) if starts is None else starts
  q0 = q0[..., :, None]
  k0 = jnp.arange(0, T, block_k)
  live = (k0 < q0 + block_q) & (q0 < last)
  full = (k0 + block_k - 1 <= q0) & (q0 + block_q <= first)
  return jnp.where(live, jnp.where(full, FULL, PARTIAL), DEAD).astype(jnp.int32)


def block_list(
  subtree_end: jax.Array,
  block_q: int,
  block_k: int,
  starts: jax.Array | None = None,
) -> BlockList:
  """Live key blocks of each query block, compacted; see `block_kinds`."""
  kind = block_kinds(subtree_end, block_q, block_k, starts)
  index = jnp.argsort(kind == DEAD, axis=-1, stable=True).astype(jnp.int32)
  return BlockList(kind, index, (kind != DEAD).sum(-1).astype(jnp.int32))


def query_slots(starts: jax.Array, count: int) -> jax.Array:
  """Slots of `count` queries that stand in blocks; int32 [..., count]."""
  block = count // starts.shape[-1]
  slots = starts[..., None] + jnp.arange(block, dtype=starts.dtype)
  return slots.reshape(*starts.shape[:-1], count)


def tree_mask(
  subtree_end: jax.Array, queries: jax.Array | None = None
) -> jax.Array:
  """The whole mask, bool [..., queries, T keys]; for small T.

  Args:
    subtree_end: int32 [..., T].
    queries: int32 [..., Q] slots of the queries; None: all in order.
  """
  k = jnp.arange(subtree_end.shape[-1])
  q = (k if queries is None else queries)[..., :, None]
  return (k <= q) & (q < subtree_end[..., None, :])
