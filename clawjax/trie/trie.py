"""`Trie`: the calls of one rollout as one prefix tree, nodes being tokens.

Nodes stand in depth-first order, so that

  node q sees node k   exactly when   k <= q < subtree_end[k].

Each call knows the nodes of its sampled tokens. A loss term is a pair (call,
sampled token): two calls that sampled the same token after the same context
share the node and keep a term each. `reasons` says per call why it is not
trained ('' when it is); filters fill it, nothing is ever taken out unseen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

import numpy as np

from clawjax.trie.radix import Radix
from clawjax.types import Call


@dataclasses.dataclass(frozen=True)
class Trie:
  """A prefix tree of N nodes over C calls with M sampled tokens.

  Attributes:
    rollout_id: the rollout, '' when calls of several were given.
    group: key of the group that its advantage is computed in.
    calls: the calls, in order of their index.
    tokens, parent, depth, subtree_end: int32 [N]; parent is -1 at roots, depth
      is the RoPE position.
    routes: int16 [N, L, A] or None.
    term_node: int32 [M] node of each sampled token, call by call.
    term_offset: int32 [C + 1]; the terms of call c are
      `term_node[term_offset[c]:term_offset[c + 1]]`.
    reasons: per call, why it is not trained; '' when it is.
    extends: per call, the number (in `calls`) of the call that it extends,
      -1 when none.
    radix, ends: the tree that the arrays were laid out from, and the chunk at
      which each call ends.
  """

  rollout_id: str
  group: Hashable
  calls: tuple[Call, ...]
  tokens: np.ndarray
  parent: np.ndarray
  depth: np.ndarray
  subtree_end: np.ndarray
  routes: np.ndarray | None
  term_node: np.ndarray
  term_offset: np.ndarray
  reasons: tuple[str, ...]
  extends: tuple[int, ...]
  radix: Radix = dataclasses.field(repr=False, compare=False)
  ends: tuple[int, ...] = dataclasses.field(repr=False, compare=False)

  def __len__(self) -> int:
    return len(self.tokens)

  def output_nodes(self, call: int) -> np.ndarray:
    """Nodes of the sampled tokens of call number `call`; int32 [n]."""
    return self.term_node[self.term_offset[call] : self.term_offset[call + 1]]

  @property
  def trained(self) -> tuple[int, ...]:
    """Numbers of the calls that are trained."""
    return tuple(i for i, reason in enumerate(self.reasons) if not reason)

  def with_reasons(self, reasons: dict[int, str]) -> Trie:
    """Marks calls as not trained; an earlier reason stays."""
    merged = tuple(
      old or reasons.get(i, '') for i, old in enumerate(self.reasons)
    )
    return dataclasses.replace(self, reasons=merged)

  def leaves(self) -> tuple[int, ...]:
    """Trained calls that no other trained call extends."""
    extended = {self.extends[i] for i in self.trained}
    grown = set()
    for i in extended:  # an untrained call in between keeps its ancestors alive
      while i >= 0 and i not in grown:
        grown.add(i)
        i = self.extends[i]
    return tuple(i for i in self.trained if i not in grown)

  def account(self) -> dict[str, int]:
    """Sampled tokens by fate: 'sampled', 'trained' and one count per reason."""
    counts = {'sampled': 0, 'trained': 0}
    lengths = np.diff(self.term_offset)
    for length, reason in zip(lengths, self.reasons, strict=True):
      counts['sampled'] += int(length)
      key = reason or 'trained'
      counts[key] = counts.get(key, 0) + int(length)
    return counts
