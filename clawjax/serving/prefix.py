"""Who owns which page: a radix tree over token ids, by policy version.

Every page is in exactly one place: free, private to one running sequence, or a
node of the tree. A node stands for one page of tokens after its parent's; a
path from the root spells a prefix. Only a node's last page may be part full
(a leaf); such a page is not shared in place but copied by whoever extends it.

A running sequence locks the nodes it reads. Unlocked leaves are evicted, least
recently used first, when pages run out. Keys and values belong to the weights
that made them: each version has its own root, and `drop` forgets all others;
pages still locked then are freed when their last reader lets go.

Plain Python and numpy; the pages themselves live on the device.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np


@dataclasses.dataclass(eq=False)
class Node:
  """A page of the tree.

  Attributes:
    tokens: the ids it holds, 1 to `page_size` of them.
    page: its number in the pool.
    parent: the node before it; None at a root.
    children: first token -> the pages that may follow.
    readers: running sequences that read it.
    used: clock of the last use.
    dead: out of the tree already; freed by its last reader.
    routes: int16 [tokens, L, A] experts used, where recorded.
  """

  tokens: tuple[int, ...]
  page: int
  parent: Node | None
  children: dict[int, list[Node]] = dataclasses.field(default_factory=dict)
  readers: int = 0
  used: int = 0
  dead: bool = False
  routes: np.ndarray | None = None

  def each_child(self) -> Iterator[Node]:
    """All children."""
    return itertools.chain.from_iterable(self.children.values())


@dataclasses.dataclass(frozen=True)
class Match:
  """The longest known prefix of a prompt.

  Attributes:
    nodes: full pages, in order.
    partial: a page whose first `partial_tokens` tokens follow, or None.
    partial_tokens: 0 when `partial` is None.
  """

  nodes: tuple[Node, ...]
  partial: Node | None = None
  partial_tokens: int = 0


class PrefixCache:
  """Pages and the radix tree over them; not thread-safe."""

  def __init__(self, pages: int, page_size: int):
    """Page 0 is never handed out: it is the engine's scratch page."""
    self.page_size = page_size
    self.pages = pages
    self._free = list(range(pages - 1, 0, -1))
    self._roots: dict[int, Node] = {}
    self._heap: list[tuple[int, int, Node]] = []
    self._ticket = itertools.count()
    self._clock = 0
    self._nodes = 0
    self._locked = 0
    self.evicted = 0

  # ---- counts --------------------------------------------------------------

  @property
  def free(self) -> int:
    """Pages that nobody holds."""
    return len(self._free)

  @property
  def available(self) -> int:
    """Pages that could be had: free ones and unlocked ones of the tree.

    A locked node's ancestors are locked too, so every unlocked node can go.
    """
    return len(self._free) + self._nodes - self._locked

  @property
  def cached(self) -> int:
    """Pages in the tree (or waiting for their last reader)."""
    return self._nodes

  # ---- pages ---------------------------------------------------------------

  def take(self, count: int) -> list[int] | None:
    """`count` pages for the caller alone, or None (and nothing is taken)."""
    if count > self.available:
      return None
    while len(self._free) < count:
      self._evict()
    return [self._free.pop() for _ in range(count)]

  def give(self, pages: Sequence[int]) -> None:
    """Takes back pages that the caller had alone."""
    self._free.extend(pages)

  def _evict(self) -> None:
    while True:
      used, _, node = heapq.heappop(self._heap)
      if node.dead or node.readers or node.children or node.used != used:
        continue
      self._unlink(node)
      self._bury(node)
      self.evicted += 1
      return

  def _unlink(self, node: Node) -> None:
    parent = node.parent
    assert parent is not None
    row = parent.children[node.tokens[0]]
    row.remove(node)
    if not row:
      del parent.children[node.tokens[0]]
      self._offer(parent)

  def _bury(self, node: Node) -> None:
    node.dead = True
    self._nodes -= 1
    self._free.append(node.page)

  def _offer(self, node: Node) -> None:
    """Puts a node on the eviction heap if it may go."""
    if node.parent is None or node.dead or node.readers or node.children:
      return
    heapq.heappush(self._heap, (node.used, next(self._ticket), node))

  def _touch(self, node: Node) -> None:
    self._clock += 1
    node.used = self._clock

  # ---- the tree ------------------------------------------------------------

  def match(self, tokens: Sequence[int], version: int) -> Match:
    """The longest prefix of `tokens` whose pages are at hand."""
    node = self._roots.get(version)
    if node is None:
      return Match(())
    out: list[Node] = []
    size, at = self.page_size, 0
    while at < len(tokens):
      want = tuple(tokens[at : at + size])
      best, best_count = None, 0
      for child in node.children.get(want[0], ()):
        count = _common(child.tokens, want)
        if count > best_count:
          best, best_count = child, count
      if best is None:
        break
      if best_count < size:
        return Match(tuple(out), best, best_count)
      out.append(best)
      node, at = best, at + size
    return Match(tuple(out))

  def lock(self, nodes: Sequence[Node]) -> None:
    """Keeps nodes (a path from a root) from being evicted."""
    for node in nodes:
      node.readers += 1
      self._locked += node.readers == 1
      self._touch(node)

  def unlock(self, nodes: Sequence[Node]) -> None:
    """Lets go of locked nodes."""
    for node in nodes:
      node.readers -= 1
      if node.readers:
        continue
      self._locked -= 1
      if node.dead:
        self._nodes -= 1
        self._free.append(node.page)
      else:
        self._offer(node)

  def extend(
    self,
    path: list[Node],
    tokens: Sequence[int],
    pages: Sequence[int],
    version: int,
    routes: np.ndarray | None = None,
  ) -> None:
    """Hands pages of a sequence to the tree; the new nodes come locked.

    Args:
      path: locked nodes of the sequence so far; grows by the new ones.
      tokens: ids that follow the path; only the last page may be part full.
      pages: the caller's own pages that hold them; no longer the caller's.
        Where the tree has the same page already, the caller's is freed and
        the path continues on the tree's.
      version: whose weights made them.
      routes: int16 [len(tokens), L, A], or None.
    """
    size = self.page_size
    node = path[-1] if path else self._root(version)
    for i, page in enumerate(pages):
      part = tuple(tokens[i * size : (i + 1) * size])
      part_routes = None if routes is None else routes[i * size :][:size]
      row = node.children.get(part[0], [])
      twin = next((n for n in row if n.tokens[: len(part)] == part), None)
      if twin is not None:
        self._free.append(page)
        child = twin
      else:
        # Part-full pages that this one continues are of no more use.
        for old in [n for n in row if _extends(part, n)]:
          self._unlink(old)
          self._bury(old)
        child = Node(part, page, node, routes=part_routes)
        node.children.setdefault(part[0], []).append(child)
        self._nodes += 1
      self.lock([child])
      path.append(child)
      node = child

  def _root(self, version: int) -> Node:
    if version not in self._roots:
      self._roots[version] = Node((), 0, None)
    return self._roots[version]

  def drop(self, *, keep: Sequence[int] = ()) -> None:
    """Forgets all versions but `keep`."""
    for version in [v for v in self._roots if v not in keep]:
      stack = list(self._roots.pop(version).each_child())
      while stack:
        node = stack.pop()
        stack.extend(node.each_child())
        node.children = {}
        if node.readers:
          node.dead = True  # freed by `unlock`
        else:
          self._bury(node)
    self._heap = [e for e in self._heap if not e[2].dead]
    heapq.heapify(self._heap)

  def check(self, private: int) -> None:
    """Asserts that every page is in exactly one place.

    Args:
      private: pages that running sequences hold alone.
    """
    live = 0
    for root in self._roots.values():
      stack = list(root.each_child())
      while stack:
        node = stack.pop()
        live += 1
        assert not node.dead and node.page not in (0, None)
        kids = list(node.each_child())
        assert not kids or len(node.tokens) == self.page_size
        assert node.readers >= sum(k.readers for k in kids)
        stack.extend(kids)
    assert live <= self._nodes
    total = self.free + self._nodes + private
    assert total == self.pages - 1, (total, self.pages - 1)
    assert len(set(self._free)) == len(self._free)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
  count = 0
  for x, y in zip(a, b, strict=False):
    if x != y:
      break
    count += 1
  return count


def _extends(part: tuple[int, ...], node: Node) -> bool:
  return (
    not node.readers
    and not node.children
    and len(node.tokens) < len(part)
    and part[: len(node.tokens)] == node.tokens
  )
