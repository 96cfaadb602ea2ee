"""Tree attention of one long row on several devices: queries dealt, keys gathered.

A row's blocks of slots are dealt to the devices of a mesh axis so that each has
the same number of blocks and nearly the same number of live pairs (a tree is
not a triangle: contiguous shares differ up to 2.5 times). The slots of a row
then stand in dealt order in everything that works token by token; only here
the tree's own order matters. Each device gathers keys and values, puts their
blocks back in order, and runs any tree attention on its own queries, whose
slots it knows from `query_starts`. The transpose of the gather adds up the
gradients of keys and values over the devices.

  host      order = deal(batch.subtree_end, parts=4, block=512)
            batch = trie.reorder(batch, order)        tokens, depth, ... dealt
  device    context_attention(q, k, v, batch.subtree_end, starts, ...)

`subtree_end` itself stays in the tree's order: it belongs to the keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from clawjax.kernels.tree_attention import Impl, tree_attention


def deal(subtree_end: np.ndarray, *, parts: int, block: int) -> np.ndarray:
  """Deals the blocks of each row to devices, heaviest first (LPT).

  Args:
    subtree_end: int32 [B, T]; T is a multiple of parts * block.
    parts: devices along the axis.
    block: slots per block.

  Returns:
    int32 [B, T / block]: blocks in dealt order; those of device d are the d-th
    of `parts` equal pieces, ascending.

  Raises:
    ValueError: T cannot be dealt evenly.
  """
  B, T = subtree_end.shape
  if T % (parts * block):
    raise ValueError(
      f'wanted rows of a multiple of {parts} x {block} slots to deal to {parts}'
      f' devices, got {T}; set row_buckets to such multiples or take a smaller'
      ' block'
    )
  n = T // block
  last = subtree_end.reshape(B, n, block).max(-1)
  first = np.arange(0, T, block)
  live = (first <= first[:, None]) & (first[:, None] < last[:, None, :])
  work = live.sum(-1)
  order = np.empty((B, n), np.int32)
  for b in range(B):
    load = np.zeros(parts)
    hands: list[list[int]] = [[] for _ in range(parts)]
    for i in np.argsort(-work[b], kind='stable'):
      open_hands = [d for d in range(parts) if len(hands[d]) < n // parts]
      d = min(open_hands, key=lambda d: load[d])
      hands[d].append(int(i))
      load[d] += work[b, i]
    order[b] = [i for hand in hands for i in sorted(hand)]
  return order


def context_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  subtree_end: jax.Array,
  starts: jax.Array,
  *,
  mesh: Mesh,
  axis: str = 'context',
  rows: Sequence[str] = (),
  heads: Sequence[str] = (),
  scale: float | None = None,
  impl: Impl = 'auto',
) -> jax.Array:
  """`tree_attention` with the slots of a row spread over a mesh axis.

  Args:
    q, k, v: global [B, T, H, C] and [B, T, K, C], slots in dealt order.
    subtree_end: int32 [B, T] in the tree's order.
    starts: int32 [B, T / block] first slot of each dealt block
      (block x `deal(...)`).
    mesh: the mesh.
    axis: its axis that the slots are spread over.
    rows, heads: axes that B, and H and K, are spread over.
    scale, impl: as in `tree_attention`.

  Returns:
    [B, T, H, C], slots in dealt order.
  """
  rows, heads = tuple(rows) or None, tuple(heads) or None
  parts = mesh.shape[axis]
  assert starts.shape[1] % parts == 0, (starts.shape, parts)
  wide = PartitionSpec(rows, axis, heads, None)

  def body(q, k, v, end, mine):
    gather = lambda x: jax.lax.all_gather(x, axis, axis=1, tiled=True)  # noqa: E731
    order = jnp.argsort(gather(mine), axis=1)  # dealt place of each block

    def in_order(x: jax.Array) -> jax.Array:
      B, T, *rest = x.shape
      blocks = x.reshape(B, order.shape[1], -1, *rest)
      return jnp.take_along_axis(
        blocks, order[:, :, None, None, None], axis=1
      ).reshape(x.shape)

    return tree_attention(
      q,
      in_order(gather(k)),
      in_order(gather(v)),
      end,
      scale=scale,
      impl=impl,
      query_starts=mine,
    )

  return jax.shard_map(
    body,
    mesh=mesh,
    in_specs=(
      wide,
      wide,
      wide,
      PartitionSpec(rows, None),
      PartitionSpec(rows, axis),
    ),
    out_specs=wide,
    check_vma=False,
  )(q, k, v, subtree_end, starts)
