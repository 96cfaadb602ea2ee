"""Which blocks of the attention matrix a tree needs.

With `end` the subtree_end of the keys, query q sees key k when k <= q < end[k].
For a block of queries [q0, q1) and a block of keys [k0, k1), from the smallest
and largest `end` of the key block alone:

  live   k0 < q1  and  q0 < max(end)     some pair is visible
  full   k1 - 1 <= q0  and  q1 <= min(end)   every pair is visible

`live` is exact, not a bound: off the diagonal, the first query and the key with
the largest end are a visible pair. All of it is O(T + (T / block)^2) and may be
traced, so a new tree never compiles anything anew.
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
  subtree_end: jax.Array, block_q: int, block_k: int
) -> jax.Array:
  """Kinds of all blocks.

  Args:
    subtree_end: int32 [..., T]; T is a multiple of both blocks.
    block_q, block_k: block sizes in slots.

  Returns:
    int32 [..., T / block_q, T / block_k].
  """
  T = subtree_end.shape[-1]
  by_block = subtree_end.reshape(*subtree_end.shape[:-1], -1, block_k)
  last = by_block.max(-1)[..., None, :]
  first = by_block.min(-1)[..., None, :]
  q0 = jnp.arange(0, T, block_q)[:, None]
  k0 = jnp.arange(0, T, block_k)
  live = (k0 < q0 + block_q) & (q0 < last)
  full = (k0 + block_k - 1 <= q0) & (q0 + block_q <= first)
  return jnp.where(live, jnp.where(full, FULL, PARTIAL), DEAD).astype(jnp.int32)


def block_list(subtree_end: jax.Array, block_q: int, block_k: int) -> BlockList:
  """Live key blocks of each query block, compacted."""
  kind = block_kinds(subtree_end, block_q, block_k)
  index = jnp.argsort(kind == DEAD, axis=-1, stable=True).astype(jnp.int32)
  return BlockList(kind, index, (kind != DEAD).sum(-1).astype(jnp.int32))


def tree_mask(subtree_end: jax.Array) -> jax.Array:
  """The whole mask, bool [..., T queries, T keys]; for small T."""
  slot = jnp.arange(subtree_end.shape[-1])
  q, k = slot[:, None], slot
  return (k <= q) & (q < subtree_end[..., None, :])
