"""A radix tree over token ids that grows by whole spans, never token by token.

The tree is a list of chunks. A chunk is a run of tokens without a branch: it
knows its parent chunk, the depth of its first token and its children by first
token. Chunk 0 is the empty chunk above all roots. Inserting a sequence compares
arrays, so the Python work is per chunk on the path and not per token; a
sequence known to extend an earlier one starts at the end of that one.

  insert(abcde), insert(abxy):        [ab]
                                      /  \\
                                  [cde]  [xy]

A chunk that is cut keeps its number for the *tail*: whoever remembered the
number as "the end of my sequence" still points at the right token.

With routes (the experts used at each token) a token is only shared when its
known routes agree; a token that differs opens a branch of its own. Rows of -1
are unknown: they agree with anything and are filled in by who knows.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

ChildOrder = Literal['largest', 'smallest', 'creation', 'reversed']


@dataclasses.dataclass(frozen=True)
class Layout:
  """Chunks laid out depth first; N tokens, in the order of the rows.

  Attributes:
    chunks: int64 [S] chunk numbers in depth-first order.
    start: int64 by chunk number: index of its first token (-1: not laid out).
    tokens, parent, depth, subtree_end: int32 [N]; parent is -1 at roots.
    routes: int16 [N, L, A] with -1 where unknown, or None.
  """

  chunks: np.ndarray
  start: np.ndarray
  tokens: np.ndarray
  parent: np.ndarray
  depth: np.ndarray
  subtree_end: np.ndarray
  routes: np.ndarray | None


class Radix:
  """Mutable radix tree; see the head of this file."""

  def __init__(self) -> None:
    empty = np.zeros(0, np.int32)
    self.tokens: list[np.ndarray] = [empty]
    self.routes: list[np.ndarray | None] = [None]
    self.parent: list[int] = [-1]
    self.depth: list[int] = [0]
    self.children: list[dict[int, list[int]]] = [{}]

  def stop(self, chunk: int) -> int:
    """Depth just after the last token of `chunk`."""
    return self.depth[chunk] + len(self.tokens[chunk])

  def insert(
    self, ids: np.ndarray, *, at: int = 0, routes: np.ndarray | None = None
  ) -> int:
    """Puts `ids` below the end of chunk `at`.

    Args:
      ids: int32 [n].
      at: chunk after whose last token `ids` begins.
      routes: int16 [n, L, A] or None; see the head of this file.

    Returns:
      The chunk whose last token is the last of `ids` (`at` when n is 0).
    """
    node, position = at, 0
    while position < len(ids):
      child, common = self._best_child(node, ids, position, routes)
      if child < 0:
        rest = None if routes is None else routes[position:]
        return self._add(node, ids[position:], rest)
      if common < len(self.tokens[child]):
        child = self._cut(child, common)
      if routes is not None:
        self._learn(child, routes[position : position + common])
      node = child
      position += common
    return node

  def layout(
    self,
    *,
    order: ChildOrder = 'largest',
    keep: np.ndarray | None = None,
  ) -> Layout:
    """Depth-first arrays.

    Args:
      order: order of siblings: by size of subtree, or as they came.
      keep: bool by chunk number: which to lay out (closed under parents);
        None: all.
    """
    count = len(self.tokens)
    size = np.array([len(t) for t in self.tokens], np.int64)
    by_depth = np.argsort(np.asarray(self.depth), kind='stable')
    below = size.copy()
    if keep is not None:
      below[~keep] = 0
    for chunk in by_depth[::-1]:
      if chunk and (keep is None or keep[chunk]):
        below[self.parent[chunk]] += below[chunk]
    sequence: list[int] = []
    stack = [0]
    while stack:
      chunk = stack.pop()
      if chunk:
        sequence.append(chunk)
      kids = [k for same in self.children[chunk].values() for k in same]
      if keep is not None:
        kids = [k for k in kids if keep[k]]
      if order == 'largest':  # the stack gives back the last one first
        kids.sort(key=lambda k: (below[k], -k))
      elif order == 'smallest':
        kids.sort(key=lambda k: (-below[k], -k))
      else:
        kids.sort(reverse=order == 'creation')
      stack.extend(kids)
    chunks = np.array(sequence, np.int64)
    start = np.full(count, -1, np.int64)
    lengths = size[chunks]
    starts = np.cumsum(lengths) - lengths
    start[chunks] = starts
    total = int(lengths.sum())
    index = np.arange(total)
    above = np.asarray(self.parent)[chunks] if len(chunks) else chunks
    parent = index - 1
    parent[starts] = np.where(above > 0, start[above] + size[above] - 1, -1)
    shift = np.asarray(self.depth)[chunks] - starts
    return Layout(
      chunks=chunks,
      start=start,
      tokens=_join([self.tokens[c] for c in sequence], np.int32),
      parent=parent.astype(np.int32),
      depth=(index + np.repeat(shift, lengths)).astype(np.int32),
      subtree_end=np.repeat(starts + below[chunks], lengths).astype(np.int32),
      routes=self._layout_routes(sequence),
    )

  def path(self, chunk: int) -> list[int]:
    """Chunks from the root down to `chunk`."""
    found = []
    while chunk > 0:
      found.append(chunk)
      chunk = self.parent[chunk]
    return found[::-1]

  def tail(self, layout: Layout, chunk: int, count: int) -> np.ndarray:
    """Layout indices of the last `count` tokens of the path to `chunk`."""
    parts = []
    while count > 0:
      length = len(self.tokens[chunk])
      take = min(count, length)
      stop = layout.start[chunk] + length
      parts.append(np.arange(stop - take, stop))
      count -= take
      chunk = self.parent[chunk]
    return _join(parts[::-1], np.int64)

  # ---- inside ----

  def _best_child(
    self,
    node: int,
    ids: np.ndarray,
    position: int,
    routes: np.ndarray | None,
  ) -> tuple[int, int]:
    best, longest = -1, 0
    for child in self.children[node].get(int(ids[position]), ()):
      common = common_prefix(self.tokens[child], ids[position:])
      known = self.routes[child]
      if routes is not None and known is not None:
        theirs, ours = known[:common], routes[position : position + common]
        clash = (theirs != ours) & (theirs >= 0) & (ours >= 0)
        clash = clash.reshape(common, -1).any(1)
        if clash.any():
          common = int(clash.argmax())
      if common > longest:
        best, longest = child, common
    return best, longest

  def _add(
    self, parent: int, tokens: np.ndarray, routes: np.ndarray | None
  ) -> int:
    chunk = len(self.tokens)
    self.tokens.append(tokens)
    self.routes.append(routes)
    self.parent.append(parent)
    self.depth.append(self.stop(parent))
    self.children.append({})
    self.children[parent].setdefault(int(tokens[0]), []).append(chunk)
    return chunk

  def _cut(self, chunk: int, length: int) -> int:
    """Cuts off the first `length` tokens as a new chunk; returns that."""
    parent, tokens = self.parent[chunk], self.tokens[chunk]
    routes = self.routes[chunk]
    head = len(self.tokens)
    self.tokens.append(tokens[:length])
    self.routes.append(None if routes is None else routes[:length])
    self.parent.append(parent)
    self.depth.append(self.depth[chunk])
    self.children.append({int(tokens[length]): [chunk]})
    siblings = self.children[parent][int(tokens[0])]
    siblings[siblings.index(chunk)] = head
    self.tokens[chunk] = tokens[length:]
    self.routes[chunk] = None if routes is None else routes[length:]
    self.parent[chunk] = head
    self.depth[chunk] += length
    return head

  def _learn(self, chunk: int, routes: np.ndarray) -> None:
    known = self.routes[chunk]
    if known is None:
      self.routes[chunk] = routes
    elif (known < 0).any():
      self.routes[chunk] = np.where(known < 0, routes, known)

  def _layout_routes(self, sequence: list[int]) -> np.ndarray | None:
    shapes = {r.shape[1:] for r in self.routes if r is not None}
    if not shapes:
      return None
    if len(shapes) > 1:
      raise ValueError(f'wanted routes of one shape [L, A], got {shapes}')
    shape = shapes.pop()
    parts = []
    for chunk in sequence:
      known = self.routes[chunk]
      if known is None:
        known = np.full((len(self.tokens[chunk]), *shape), -1, np.int16)
      parts.append(known)
    if not parts:
      return np.zeros((0, *shape), np.int16)
    return np.concatenate(parts).astype(np.int16, copy=False)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
  """Number of leading tokens that two id arrays share."""
  length = min(len(a), len(b))
  done, step = 0, 256
  while done < length:
    stop = min(length, done + step)
    differ = a[done:stop] != b[done:stop]
    first = int(differ.argmax())
    if differ[first]:
      return done + first
    done, step = stop, step * 8
  return length


def starts_with(ids: np.ndarray, prefix: np.ndarray) -> bool:
  """Whether `ids` begins with `prefix`."""
  return len(ids) >= len(prefix) and bool((ids[: len(prefix)] == prefix).all())


def _join(parts: list[np.ndarray], dtype: type) -> np.ndarray:
  if not parts:
    return np.zeros(0, dtype)
  return np.concatenate(parts).astype(dtype, copy=False)
