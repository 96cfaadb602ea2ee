"""Calls become a trie, in any order, in time linear in their new tokens.

A call that extends an earlier one (its prompt starts with that one's prompt and
answer) continues at that one's end: its old tokens are compared once, as
arrays, and not walked. What its prompt holds beyond was put there by the
harness; `inserted` gives it back. Everything else walks down from the root.

The call to extend is looked for by `Call.parent` first, then among the calls
inserted last; the longest history wins.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from clawjax.trie.radix import Radix, starts_with
from clawjax.trie.trie import Trie
from clawjax.types import Call, Rollout

_EMPTY = np.zeros(0, np.int32)


def build(
  calls: Sequence[Call] | Rollout,
  *,
  rollout_id: str = '',
  group: Hashable = '',
  routes: Literal['split', 'ignore'] = 'split',
) -> Trie:
  """Builds the trie of one rollout.

  Args:
    calls: the calls in any order, or a rollout (which knows its own id and
      group).
    rollout_id: overrides the calls' own.
    group: key of the group that the rollout's advantage is computed in.
    routes: 'split': tokens are shared only where the recorded expert routes
      agree (needed to replay them); 'ignore': the trie carries no routes.

  Returns:
    A trie in which every call is marked as trained that may be: status ok, a
    prompt, one finite log-prob per sampled token.
  """
  if isinstance(calls, Rollout):
    rollout_id = rollout_id or calls.rollout_id
    group = group or calls.group
    calls = calls.calls
  calls = tuple(sorted(calls, key=lambda c: c.index))
  ids = {c.rollout_id for c in calls}
  if not rollout_id and len(ids) == 1:
    rollout_id = ids.pop()

  radix = Radix()
  grower = Grower(radix, routes=routes == 'split')
  ends = tuple(grower.add(c) for c in calls)
  layout = radix.layout()
  terms = [
    radix.tail(layout, end, len(output_ids(c)))
    for c, end in zip(calls, ends, strict=True)
  ]
  return Trie(
    rollout_id=rollout_id,
    group=group,
    calls=calls,
    tokens=layout.tokens,
    parent=layout.parent,
    depth=layout.depth,
    subtree_end=layout.subtree_end,
    routes=layout.routes,
    term_node=np.concatenate([_EMPTY, *terms]).astype(np.int32),
    term_offset=np.cumsum([0, *map(len, terms)]).astype(np.int32),
    reasons=tuple(_untrainable(c) for c in calls),
    extends=_extends(calls, ends, radix),
    radix=radix,
    ends=ends,
  )


class Grower:
  """Adds calls to a radix tree, each at the end of the call it extends."""

  def __init__(self, radix: Radix, *, routes: bool):
    self._radix = radix
    self._routes = routes
    self._by_id: dict[tuple[str, str], tuple[Call, int]] = {}
    self._recent: list[tuple[Call, int]] = []

  def add(self, call: Call) -> int:
    """Inserts prompt and answer; returns the chunk at which they end."""
    prompt, output = prompt_ids(call), output_ids(call)
    prompt_routes, output_routes = self._call_routes(call)
    if prompt_routes is None:
      at, known = self._history(call, prompt)
      end = self._radix.insert(prompt[known:], at=at)
      end = self._radix.insert(output, at=end)
    else:  # routes must agree token by token, so walk
      end = self._radix.insert(
        np.concatenate([prompt, output]),
        routes=np.concatenate([prompt_routes, output_routes]),
      )
    entry = (call, end)
    self._by_id[call.rollout_id, call.call_id] = entry
    self._recent = [entry, *self._recent[:1]]
    return end

  def _history(self, call: Call, prompt: np.ndarray) -> tuple[int, int]:
    """Chunk and number of tokens of the longest known history."""
    named = self._by_id.get((call.rollout_id, call.parent))
    best = (0, 0)
    for entry in [named] if named else self._recent:
      other, end = entry
      first, second = prompt_ids(other), output_ids(other)
      length = len(first) + len(second)
      if best[1] < length <= len(prompt) and (
        starts_with(prompt, first) and starts_with(prompt[len(first) :], second)
      ):
        best = (end, length)
    return best

  def _call_routes(
    self, call: Call
  ) -> tuple[np.ndarray | None, np.ndarray | None]:
    sample = call.sample
    if not self._routes or sample is None:
      return None, None
    known = sample.prompt_routes if sample.routes is None else sample.routes
    if known is None:
      return None, None
    shape = known.shape[1:]

    def or_unknown(routes: np.ndarray | None, length: int) -> np.ndarray:
      if routes is None:
        return np.full((length, *shape), -1, np.int16)
      if len(routes) != length:
        raise ValueError(
          f'wanted routes of {length} tokens in call {call.call_id!r}, '
          f'got {len(routes)}'
        )
      return routes

    return (
      or_unknown(sample.prompt_routes, len(call.prompt_ids)),
      or_unknown(sample.routes, len(sample.token_ids)),
    )


def prompt_ids(call: Call) -> np.ndarray:
  """The prompt as int32 [N]."""
  return np.asarray(call.prompt_ids, np.int32)


def output_ids(call: Call) -> np.ndarray:
  """The sampled tokens as int32 [T]; empty when there is no sample."""
  if call.sample is None:
    return _EMPTY
  return np.asarray(call.sample.token_ids, np.int32)


def inserted(trie: Trie, call: int) -> np.ndarray:
  """What the harness put between call `call` and the history it extends.

  Returns:
    int32 ids: tool results and the like, or the whole prompt when the call
    extends nothing.
  """
  prompt = prompt_ids(trie.calls[call])
  before = trie.extends[call]
  if before < 0:
    return prompt
  other = trie.calls[before]
  return prompt[len(prompt_ids(other)) + len(output_ids(other)) :]


def _untrainable(call: Call) -> str:
  """Why a call cannot be trained, whatever the filters say; '' if it can."""
  if call.status != 'ok':
    return call.status
  if call.sample is None:
    return 'no_sample'
  if not len(call.prompt_ids):
    return 'empty_prompt'
  logprobs = np.asarray(call.sample.logprobs)
  if len(logprobs) != len(call.sample.token_ids):
    return 'logprobs_missing'
  if not np.isfinite(logprobs).all():
    return 'logprobs_not_finite'
  return ''


def _extends(
  calls: tuple[Call, ...], ends: tuple[int, ...], radix: Radix
) -> tuple[int, ...]:
  """For each call the one with the longest history that its prompt starts with.

  Several calls may end at one token (the same answer sampled twice): the one
  named as parent wins, then the earliest.
  """
  at_end: dict[int, list[int]] = {}
  for i, end in enumerate(ends):
    if len(output_ids(calls[i])):
      at_end.setdefault(end, []).append(i)
  found = []
  for i, call in enumerate(calls):
    prompt = len(call.prompt_ids)
    chunk, best = ends[i], -1
    while chunk > 0 and best < 0:
      if radix.stop(chunk) <= prompt:
        same = [j for j in at_end.get(chunk, ()) if j != i]
        named = [j for j in same if calls[j].call_id == call.parent]
        if same:
          best = (named or same)[0]
      chunk = radix.parent[chunk]
    found.append(best)
  return tuple(found)
