"""A request to prompt ids: what is known is found, what is new is rendered.

  placed = Prompter(renderer, rules).place(request, calls)

A prompt is a head (system text and tools), closed turns and an opening. Each
is rendered once in a session's life; a request is matched against the tree of
turns (`tree.py`), and only what it says anew is put into ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clawjax import types
from clawjax.chat import render
from clawjax.proxy import breaks, canonical, chain, rules, tree
from clawjax.proxy.served import Served

_HEADS = 16  # Texts of heads that are remembered.


@dataclasses.dataclass(frozen=True)
class Placed:
  """A request's prompt, put into the tree.

  Attributes:
    match: how much of it was known.
    leaf: the node that it ends with, before its opening.
    opening: int32 ids from there to the end of the prompt.
    at: the chain that holds the prompt, and its length.
    applied: names of what was normalised.
    made: new heads and turns, as the record wants them.
    pinned: place and value of what rules pinned on the way.
    broken: why it does not go on where the session stood, or ''.
  """

  match: tree.Match
  leaf: tree.Node
  opening: np.ndarray
  at: tuple[chain.Chain, int]
  applied: tuple[str, ...]
  made: list[dict[str, Any]]
  pinned: list[list[str]]
  broken: str


class Prompter:
  """Heads and turns of one session.

  Attributes:
    renderer: text to ids.
    rules: normalises requests.
    tree: the turns so far.
    heads: digests of system text and tools, of each head so far.
  """

  def __init__(self, renderer: render.Renderer, names: Sequence[str]):
    self.renderer = renderer
    self.rules = rules.Rules(names)
    self.tree = tree.Tree()
    self.heads: list[tuple[bytes, bytes]] = []
    self._texts: dict[bytes, str] = {}

  def place(
    self, request: canonical.Request, calls: Mapping[str, Served]
  ) -> Placed:
    """Matches a request and renders what is new; all of it stays known.

    Args:
      request: what came.
      calls: the session's calls by id, to name the cause of a break.
    """
    applied = list(request.notes)
    made: list[dict[str, Any]] = []
    pinned = len(self.rules.seen)
    root = self._head(request, applied, made)
    match = self._match(root, request, applied)
    node, points = match.node, list(match.points)
    if unpaired(node, match.new):
      applied.append('unpaired_tools')
    if any(turn.apart for turn in match.new):
      applied.append(rules.JOINS)
    for turn in match.new:
      node = self._render(node, turn, applied, made)
      points.append((turn.end, node))
    opening = np.asarray(self._opening(node, request), np.int32)
    self.tree.remember(tree.Tail(root, request.items, points))
    return Placed(
      match=match,
      leaf=node,
      opening=opening,
      at=chain.extend(node.chain, node.length, opening),
      applied=tuple(dict.fromkeys(applied)),
      made=made,
      pinned=[list(pair) for pair in list(self.rules.seen.items())[pinned:]],
      broken=self._break(match, made, calls),
    )

  def count(self, request: canonical.Request) -> int:
    """Prompt length of a request; nothing is kept or recorded."""
    applied: list[str] = []
    seen = dict(self.rules.seen)
    root = self._head(request, applied, None)
    match = self._match(root, request, applied)
    self.rules.seen = seen
    new = sum(len(self._turn_ids(t, applied)) for t in match.new)
    leaf = match.node if not match.new else root
    opening = self._opening(leaf, request)
    return match.node.length + new + len(opening)

  def _head(
    self,
    request: canonical.Request,
    applied: list[str],
    made: list[dict[str, Any]] | None,
  ) -> tree.Node:
    """The root of a request; made, and listed in `made`, when it is new."""
    system = self.rules.head(request.system, applied)
    text = self._head_text(system, request.tools)
    root = self.tree.roots.get(text)
    if root is None:
      ids = self.renderer.head(system, request.tools)
      if made is None:
        return tree.Node(0, None, b'', 'head', ids)
      root = tree.Node(self.tree.new_number(), None, b'', 'head', ids)
      self.tree.roots[text] = root
      head = (
        canonical.digest([system]),
        canonical.digest([text[len(system) :]]),
      )
      made.append(
        {
          'n': root.number,
          'head': text,
          'system': head[0].hex(),
          'tools': head[1].hex(),
          'ids': ids,
        }
      )
    return root

  def _head_text(self, system: str, tools: Sequence[types.Tool]) -> str:
    # Writing out tools takes longer than all the rest of a small request, and
    # a conversation sends the same ones each time.
    key = canonical.dumps(
      [system, [[t.name, t.description, t.parameters] for t in tools]]
    )
    text = self._texts.get(key)
    if text is None:
      text = self.renderer.head_text(system, tools)
      if len(self._texts) >= _HEADS:
        self._texts.clear()
      self._texts[key] = text
    return text

  def _match(
    self, root: tree.Node, request: canonical.Request, applied: list[str]
  ) -> tree.Match:
    return self.tree.match(
      root,
      request,
      moves=self.rules.moves,
      normalise=lambda turn: self.rules.turns(turn, applied),
    )

  def _turn_ids(
    self, turn: canonical.Turn, applied: list[str]
  ) -> Sequence[int] | np.ndarray:
    stored = self.tree.elsewhere(turn)
    if stored is not None:
      applied.append('grafted')
      return stored.segment()
    return self.renderer.turn(turn.messages)

  def _opening(
    self, leaf: tree.Node, request: canonical.Request
  ) -> Sequence[int] | np.ndarray:
    """Ids between the last closed turn and what is sampled."""
    if request.prefill is None:
      return self.renderer.opening(request.thinking)
    own = self.own_answer(leaf, request.prefill)
    if own is not None:
      return own.chain.view(own.open_length)[leaf.length :]
    return self.renderer.prefill(request.prefill)

  def own_answer(self, leaf: tree.Node, prefill: str) -> tree.Node | None:
    """A sampled answer below `leaf` that the client wants gone on with."""
    message = types.Message('assistant', prefill)
    group = leaf.children.get(canonical.turn_key([message]), ())
    own = [n for n in group if n.call_id and not n.ids]
    return own[-1] if own else None

  def _render(
    self,
    node: tree.Node,
    turn: canonical.Turn,
    applied: list[str],
    made: list[dict[str, Any]],
  ) -> tree.Node:
    ids = self._turn_ids(turn, applied)
    key = canonical.turn_key(turn.messages)
    child = tree.Node(self.tree.new_number(), node, key, turn.role, ids)
    if turn.role == 'user':
      child.moves = self.rules.moves(turn.messages[0])
    node.attach(child)
    made.append(
      {
        'n': child.number,
        'up': node.number,
        'key': key.hex(),
        'role': turn.role,
        'ids': ids,
        **({'moves': True} if child.moves else {}),
      }
    )
    return child

  def _break(
    self,
    match: tree.Match,
    made: Sequence[Mapping[str, Any]],
    calls: Mapping[str, Served],
  ) -> str:
    """Cause of a break; notes a new head."""
    cause = breaks.cause(match, calls)
    if made and 'head' in made[0]:
      head = (
        bytes.fromhex(made[0]['system']),
        bytes.fromhex(made[0]['tools']),
      )
      cause = breaks.head_cause(head, self.heads) or cause
      self.heads.append(head)
    return cause


def unpaired(node: tree.Node, turns: Sequence[canonical.Turn]) -> bool:
  """Whether results stand without their calls, or calls without results.

  A client that was interrupted, or edits its history, sends such turns. They
  are rendered as they come; the call's record says so.

  Args:
    node: the turn before.
    turns: what comes after it.
  """
  role, open_calls = node.role, bool(node.ids)
  for turn in turns:
    if turn.role == 'system':
      continue
    if turn.role == 'tool' and role != 'assistant':
      return True
    if open_calls and turn.role != 'tool':
      return True
    role = turn.role
    open_calls = bool(turn.messages[0].calls)
  return False
