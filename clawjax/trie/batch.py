"""`TreeBatch`: what a training step eats. Rows of slots, and loss terms.

A row holds several trees one after the other. Slot q attends to slot k exactly
when `k <= q < subtree_end[k]`: one number per slot is the whole mask. A loss
term names the slot of a sampled token; its log-prob is read at the parent of
that slot. Padding slots are trees of one token, padding terms have weight 0.
Shapes come from short lists of buckets, so a compiled step meets few of them.

A tree with a path longer than a row is relayed: it goes on in the next row
(`row_offset` says where it is), and its slots are numbered on. Everything that
names a slot (parent, subtree_end, term_slot) then means that numbering.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

# Fields that a compiled step takes, in the order of `TreeBatch.arrays`.
ARRAYS = (
  'tokens',
  'parent',
  'depth',
  'subtree_end',
  'routes',
  'term_slot',
  'rollout_logprob',
  'old_logprob',
  'ref_logprob',
  'advantage',
  'value_target',
  'old_value',
  'weight',
  'term_rollout',
  'term_call',
  'term_version',
)


class Branch(NamedTuple):
  """Who went this way in the tree of a group, and who came to the fork.

  Attributes:
    here: numbers (in `rollout_ids`) of the rollouts whose trained calls hold
      the token in this context.
    above: those that hold the nearest token before it that more rollouts hold;
      () when no such token exists (then it is the whole group).
  """

  here: tuple[int, ...]
  above: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TreeBatch:
  """B rows of T slots with up to E loss terms each.

  Attributes:
    tokens: int32 [B, T].
    parent: int32 [B, T] slot of the token before, in the row; -1 at roots.
    depth: int32 [B, T] position of the token in its context (for RoPE).
    subtree_end: int32 [B, T] one past the last slot that sees this one.
    routes: int16 [B, T, L, A] experts to replay (-1: unknown), or None.
    term_slot: int32 [B, E] slot of the sampled token (0 at padding).
    rollout_logprob: float32 [B, E] as recorded when sampling.
    old_logprob: float32 [B, E] by the trainer before the first update; 0 until
      filled.
    ref_logprob: float32 [B, E] by the reference model; 0 until filled.
    advantage: float32 [B, E]; 0 until filled.
    value_target: float32 [B, E]; 0 until filled.
    old_value: float32 [B, E] by the value model before the first update; 0
      until filled.
    weight: float32 [B, E]; 1 until filled, 0 at padding.
    term_rollout: int32 [B, E] index into `rollout_ids`; -1 at padding.
    term_call: int32 [B, E] index into `call_keys`; -1 at padding.
    term_version: int32 [B, E] policy version that sampled it; -1 at padding.
    rollout_ids: rollouts that have terms. With auxiliary roles trained, a
      rollout stands here once per role.
    roles: role of each entry of `rollout_ids`.
    groups: group key of each entry of `rollout_ids`.
    call_keys: (rollout id, call id) of each call that has terms.
    stats: counts and ratios; see `clawjax.trie.pack`.
    term_previous: int64 [B, E] flat index (row x E + column, in the whole
      batch) of the term of the token that the same rollout sampled before, in
      the context of this one; -1 where there is none. For the host only.
    row_offset: int32 [B] number of the row's first slot, a multiple of T; more
      than 0 where the row goes on with the tree of the row above it. None: no
      row does. For the host only.
    term_branch: int32 [B, E] index into `branches`; -1 at padding. For the
      host only.
    branches: see `Branch`.
  """

  tokens: np.ndarray
  parent: np.ndarray
  depth: np.ndarray
  subtree_end: np.ndarray
  routes: np.ndarray | None
  term_slot: np.ndarray
  rollout_logprob: np.ndarray
  old_logprob: np.ndarray
  ref_logprob: np.ndarray
  advantage: np.ndarray
  value_target: np.ndarray
  old_value: np.ndarray
  weight: np.ndarray
  term_rollout: np.ndarray
  term_call: np.ndarray
  term_version: np.ndarray
  rollout_ids: tuple[str, ...]
  roles: tuple[str, ...]
  groups: tuple[Hashable, ...]
  call_keys: tuple[tuple[str, str], ...]
  stats: Mapping[str, float]
  term_previous: np.ndarray | None = None
  row_offset: np.ndarray | None = None
  term_branch: np.ndarray | None = None
  branches: tuple[Branch, ...] = ()

  def replace(self, **fields: Any) -> TreeBatch:
    """A copy with some fields set."""
    return dataclasses.replace(self, **fields)

  def arrays(self) -> dict[str, np.ndarray]:
    """The arrays by name, for a compiled step; `routes` only when there."""
    return {
      name: value
      for name in ARRAYS
      if (value := getattr(self, name)) is not None
    }

  def rows(self, index: slice | np.ndarray) -> TreeBatch:
    """Some rows (a microbatch); ids and groups stay as they are."""
    cut = {k: v[index] for k, v in self.arrays().items()}
    offset = None if self.row_offset is None else self.row_offset[index]
    return self.replace(
      **cut, row_offset=offset, term_previous=None, term_branch=None
    )

  def reordered(self, order: np.ndarray) -> TreeBatch:
    """The slots of each row in another order of blocks.

    For context parallelism (`kernels.context`): what works token by token does
    not mind, and `subtree_end`, which belongs to the keys, stays as it is.

    Args:
      order: int32 [B, n] block of T / n slots that stands at each place.
    """
    B, T = self.tokens.shape
    block = T // order.shape[1]
    source = (order[:, :, None] * block + np.arange(block)).reshape(B, T)
    place = np.argsort(source, axis=1).astype(np.int32)

    def moved(x: np.ndarray) -> np.ndarray:
      index = source.reshape(B, T, *(1,) * (x.ndim - 2))
      return np.take_along_axis(x, index, axis=1)

    def renamed(slot: np.ndarray) -> np.ndarray:
      new = np.take_along_axis(place, np.maximum(slot, 0), axis=1)
      return np.where(slot < 0, -1, new).astype(np.int32)

    return self.replace(
      tokens=moved(self.tokens),
      depth=moved(self.depth),
      parent=renamed(moved(self.parent)),
      routes=None if self.routes is None else moved(self.routes),
      term_slot=renamed(self.term_slot),
    )

  @property
  def mask(self) -> np.ndarray:
    """bool [B, E], True where a term is real."""
    return self.term_rollout >= 0
