"""What a session has served, as a tree of turns; matching a request to it.

  root (head: system text and tools)
    user turn -> sampled turn -> tool results -> sampled turn -> ...
              \\-> sampled turn (a second answer to the same prompt)

A node holds the ids that its turn put into the engine's context: rendered once
for what the harness said, and kept as sampled for what the model said (opening,
answer, closing). A request is matched from the root, turn by turn, by what the
turn says (`canonical.turn_key`), whatever the harness did to its spelling; the
first turn that matches nothing is rendered and starts a branch.

Only new turns are looked at: the raw items of the last requests are kept, and
what is equal to them is not even converted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from clawjax.proxy import canonical, chain

_TAILS = 8  # Conversations per session whose raw items are remembered.


class Node:
  """A turn, at one place in the tree.

  Attributes:
    number: unique in the session, in order of making.
    parent: the turn before; None at roots.
    key: what the turn is recognised by.
    role: 'head', 'system', 'user', 'assistant' or 'tool'.
    chain, length: the ids up to and including this turn.
    call_id: the call that sampled it, '' when it was rendered.
    open_length: for a sampled turn, the ids before its closing: where its
      answer can be gone on with.
    ids: call ids as delivered, see `canonical.id_key`.
    reasoning: digest of delivered thinking, to choose among equal answers.
    moves: a harness moves this turn to the end of each request.
    children: key -> nodes, oldest first.
  """

  __slots__ = (
    'call_id',
    'chain',
    'children',
    'ids',
    'key',
    'length',
    'moves',
    'number',
    'open_length',
    'parent',
    'reasoning',
    'role',
  )

  def __init__(
    self,
    number: int,
    parent: Node | None,
    key: bytes,
    role: str,
    ids: Sequence[int],
    *,
    at: tuple[chain.Chain, int] | None = None,
  ):
    self.number = number
    self.parent = parent
    self.key = key
    self.role = role
    if at is None:
      at = (
        (chain.Chain(), 0) if parent is None else (parent.chain, parent.length)
      )
    self.chain, self.length = chain.extend(*at, ids)
    self.call_id = ''
    self.open_length = 0
    self.ids: frozenset[str] = frozenset()
    self.reasoning = b''
    self.moves = False
    self.children: dict[bytes, list[Node]] = {}

  def path(self) -> Iterator[Node]:
    """This node and those above it, root last."""
    node: Node | None = self
    while node is not None:
      yield node
      node = node.parent

  def segment(self) -> np.ndarray:
    """The ids of this turn alone."""
    start = self.parent.length if self.parent else 0
    return self.chain.view(self.length)[start:]

  def attach(self, child: Node) -> None:
    """Adds a child."""
    self.children.setdefault(child.key, []).append(child)


@dataclasses.dataclass
class Tail:
  """A served request: its raw items and where each turn boundary lies.

  `points` holds (raw items consumed, node) after each turn.
  """

  root: Node
  items: list
  points: list[tuple[int, Node]]


@dataclasses.dataclass
class Match:
  """How much of a request is known.

  Attributes:
    root: the head's node.
    node: the last known turn.
    points: (raw items consumed, node) of the known turns.
    new: turns that are not known, in order.
    expected: children that `node` already had when the first unknown turn
      came: what the request would have had to say to go on.
  """

  root: Node
  node: Node
  points: list[tuple[int, Node]]
  new: list[canonical.Turn]
  expected: list[Node]


def common_prefix(old: list, new: list) -> int:
  """Number of leading elements that are equal."""
  n = min(len(old), len(new))
  if old[:n] == new[:n]:
    return n
  low = 0
  while old[low] == new[low]:
    low += 1
  return low


class Tree:
  """The turns that a session has served."""

  def __init__(self):
    self.roots: dict[str, Node] = {}
    self.tails: list[Tail] = []
    self.count = 0
    # Sampled turns by what they say, wherever they stand.
    self.sampled: dict[bytes, list[Node]] = {}

  def new_number(self) -> int:
    """The next node number."""
    self.count += 1
    return self.count

  def _known(
    self, root: Node, request: canonical.Request
  ) -> list[tuple[int, Node]]:
    """Turn boundaries of the longest equal run of raw items."""
    best: Tail | None = None
    length = request.start
    for tail in reversed(self.tails):
      if tail.root is root:
        n = common_prefix(tail.items, request.items)
        if n > length:
          best, length = tail, n
    if best is None:
      return []
    points = best.points
    # A turn may go on in the next item, and then is another turn.
    n = len(points)
    while n and (
      points[n - 1][0] > length
      or request.joins(request.items, points[n - 1][0])
    ):
      n -= 1
    return points[:n]

  def match(
    self,
    root: Node,
    request: canonical.Request,
    *,
    moves=lambda message: False,
    normalise=lambda turn: (turn,),
  ) -> Match:
    """Finds the known part of a request; changes nothing.

    Args:
      root: the head's node.
      request: what came.
      moves: whether a message is one that its harness moves to the end.
      normalise: turn -> turns, applied before matching.
    """
    points = self._known(root, request)
    start, node = points[-1] if points else (request.start, root)
    turns = [n for t in request.turns(start) for n in normalise(t)]
    seen = {n.key for n in node.path() if n.moves}
    pending = {
      canonical.turn_key(t.messages): t
      for t in turns
      if t.role == 'user' and moves(t.messages[0])
    }
    points = list(points)
    for i, turn in enumerate(turns):
      key = canonical.turn_key(turn.messages)
      if key in seen and key in pending:
        points.append((turn.end, node))  # It stands further up.
        continue
      child = self._child(node, key, turn)
      while child is None:
        stood = self._moved_child(node, pending, seen)
        if stood is None:
          break
        seen.add(stood.key)
        node = stood
        child = self._child(node, key, turn)
      if key in seen and key in pending:
        points.append((turn.end, node))
        continue
      if child is None:
        expected = [c for group in node.children.values() for c in group]
        rest = [
          t for t in turns[i:] if canonical.turn_key(t.messages) not in seen
        ]
        return Match(root, node, points, rest, expected)
      if child.moves:
        seen.add(child.key)
      node = child
      points.append((turn.end, node))
    return Match(root, node, points, [], [])

  @staticmethod
  def _moved_child(node: Node, pending, seen) -> Node | None:
    for key in pending:
      if key not in seen:
        for child in node.children.get(key, ()):
          if child.moves:
            return child
    return None

  @staticmethod
  def _child(node: Node, key: bytes, turn: canonical.Turn) -> Node | None:
    """The child that a turn means, when several answers say the same."""
    group = node.children.get(key)
    if not group:
      return None
    return group[0] if len(group) == 1 else best(group, turn)

  def elsewhere(self, turn: canonical.Turn) -> Node | None:
    """A sampled turn that says the same at another place of the session.

    When a harness changes what stands before an answer (the system text, an
    old tool result), the answer's own ids still stand for it.
    """
    if turn.role != 'assistant':
      return None
    group = self.sampled.get(canonical.turn_key(turn.messages))
    return best(group, turn) if group else None

  def remember(self, tail: Tail) -> None:
    """Keeps the raw items of a served request for the next match."""
    for i, old in enumerate(self.tails):
      if (
        old.root is tail.root
        and len(old.items) <= len(tail.items)
        and old.points
        and old.points[-1] in tail.points[-64:]
      ):
        del self.tails[i]
        break
    self.tails.append(tail)
    del self.tails[:-_TAILS]


def best(group: Sequence[Node], turn: canonical.Turn) -> Node:
  """The node that a turn means, when several answers say the same."""
  message = turn.messages[0]
  ids = {canonical.id_key(c.id) for c in message.calls}
  reasoning = reasoning_key(message.reasoning)

  def fit(node: Node) -> tuple[bool, bool, bool, int]:
    return (
      any(i.endswith(tuple(node.ids)) for i in ids) if node.ids else False,
      bool(reasoning) and reasoning == node.reasoning,
      bool(node.call_id),
      node.number,
    )

  return max(group, key=fit)


def reasoning_key(text: str) -> bytes:
  """What thinking is recognised by; b'' for none."""
  text = canonical.same_text(text)
  return canonical.digest([text]) if text else b''
