"""`TreeBatch`: what a training step eats. Rows of slots, and loss terms.

A row holds several trees one after the other. Slot q attends to slot k exactly
when `k <= q < subtree_end[k]`: one number per slot is the whole mask. A loss
term names the slot of a sampled token; its log-prob is read at the parent of
that slot. Padding slots are trees of one token, padding terms have weight 0.
Shapes come from short lists of buckets, so a compiled step meets few of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

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
  'weight',
  'term_rollout',
  'term_call',
  'term_version',
)


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
    return self.replace(**cut, term_previous=None)

  @property
  def mask(self) -> np.ndarray:
    """bool [B, E], True where a term is real."""
    return self.term_rollout >= 0
