"""Which calls of a trie are trained: the paper's three rules, with reasons.

ClawGym II drops dead leaves (answers that a retry or a regeneration replaced),
whole rollouts with too many leaves, and auxiliary trajectories (subagents,
compaction, side requests). Nothing is cut out here: a call that is not trained
gets a reason, and the report counts calls and tokens by reason, so that

  sampled tokens = trained tokens + tokens per reason.

A leaf is a call whose answer no other call extends.

  p - o1            dead: o2 answers the same prompt and is continued
    \\ o2 - tool - o3

An answer that the harness rewrote before it went on (thinking stripped,
arguments re-rendered) also ends in a leaf, but it is not dead: it was delivered
and shaped what followed. The default rule therefore wants evidence of a retry;
`dead_leaves='longest'` is the paper's wording to the letter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from clawjax.trie.trie import Trie


@dataclasses.dataclass(frozen=True)
class FilterConfig:
  """Options of `filter`; the paper gives no constants, these are ours.

  Attributes:
    dead_leaves: 'retries': a leaf is dead when another call with the same
      prompt was continued, or replaced it (`Call.retry_of`), or when it was
      malformed and asked for again; 'longest': between two compactions only
      the leaf with the longest path survives, with the calls on its path;
      'keep': none is dead.
    max_leaves: a rollout with more leaves of trained roles is dropped whole;
      None: no limit.
    auxiliary: 'exclude': only role 'main' is trained (the paper); 'train':
      every role is, each in its own normalisation group.
  """

  dead_leaves: Literal['retries', 'longest', 'keep'] = 'retries'
  max_leaves: int | None = 32
  auxiliary: Literal['exclude', 'train'] = 'exclude'

  def __post_init__(self) -> None:
    if self.dead_leaves not in ('retries', 'longest', 'keep'):
      raise ValueError(
        "dead_leaves: wanted 'retries', 'longest' or 'keep', got "
        f'{self.dead_leaves!r}'
      )
    if self.auxiliary not in ('exclude', 'train'):
      raise ValueError(
        f"auxiliary: wanted 'exclude' or 'train', got {self.auxiliary!r}"
      )
    if self.max_leaves is not None and self.max_leaves < 1:
      raise ValueError(f'max_leaves: wanted 1 or more, got {self.max_leaves}')


@dataclasses.dataclass(frozen=True)
class FilterReport:
  """What a filter did to one trie.

  Attributes:
    calls, tokens: counts by reason, plus 'trained' and, for tokens, 'sampled'.
    leaves: leaves of trained roles after dead ones were taken out.
    dropped: the whole rollout was dropped (over-branching).
    rewritten: leaves kept because nothing says that they were retried, though
      later calls exist: answers that the harness changed before going on.
  """

  calls: Mapping[str, int]
  tokens: Mapping[str, int]
  leaves: int
  dropped: bool
  rewritten: int

  @property
  def delivered(self) -> float:
    """Trained / sampled tokens; nan when nothing was sampled."""
    sampled = self.tokens.get('sampled', 0)
    return self.tokens.get('trained', 0) / sampled if sampled else float('nan')


def filter(
  trie: Trie, config: FilterConfig | None = None, **changes: Any
) -> tuple[Trie, FilterReport]:
  """Marks the calls that are not to be trained.

  Args:
    trie: any trie; reasons that are there stay.
    config: see `FilterConfig`.
    **changes: fields of `FilterConfig` to set.

  Returns:
    The trie with reasons, and the report.
  """
  config = dataclasses.replace(config or FilterConfig(), **changes)
  roles = {
    i: c.role
    for i, c in enumerate(trie.calls)
    if c.role != 'main' and config.auxiliary == 'exclude'
  }
  trained = trie.with_reasons(dict(roles))
  if config.dead_leaves == 'retries':
    trained = trained.with_reasons(_retried(trie))
  elif config.dead_leaves == 'longest':
    trained = trained.with_reasons(_not_on_longest(trained))
  leaves = trained.leaves()
  dropped = config.max_leaves is not None and len(leaves) > config.max_leaves
  if dropped:
    trained = trained.with_reasons(
      dict.fromkeys(range(len(trie.calls)), 'over_branching')
    )
  calls: dict[str, int] = {}
  for reason in trained.reasons:
    calls[reason or 'trained'] = calls.get(reason or 'trained', 0) + 1
  report = FilterReport(
    calls=calls,
    tokens=trained.account(),
    leaves=len(leaves),
    dropped=dropped,
    rewritten=0 if dropped else _rewritten(trained, leaves),
  )
  return trained, report


def adaptive_leaf_limit(
  leaves: Sequence[int],
  *,
  quantile: float = 0.95,
  factor: float = 2.0,
  floor: int = 8,
  least: int = 32,
) -> int | None:
  """A leaf limit from the leaf counts of recent rollouts.

  Args:
    leaves: leaf counts, e.g. the last few hundred `FilterReport.leaves`.
    quantile, factor: the limit is `factor` times this quantile.
    floor: never below this.
    least: with fewer counts than this there is no limit yet (None).
  """
  if len(leaves) < least:
    return None
  return max(floor, int(np.ceil(factor * np.quantile(leaves, quantile))))


def _retried(trie: Trie) -> dict[int, str]:
  """Leaves that a call with the same prompt replaced, by evidence."""
  calls, extends = trie.calls, trie.extends
  continued = {i for i in extends if i >= 0}
  dead: dict[int, str] = {}
  for same in _same_prompt(trie).values():
    used = [i for i in same if i in continued]
    replaced = {calls[i].retry_of for i in same if calls[i].retry_of}
    well_formed = any(not calls[i].malformed for i in same)
    for i in same:
      if i in continued or len(same) == 1:
        continue
      if used or calls[i].call_id in replaced:
        dead[i] = 'retry'
      elif calls[i].malformed and well_formed:
        dead[i] = 'regenerated'
  for i, call in enumerate(calls):
    if call.malformed and i not in continued and i not in dead:
      later = (j for j in range(i + 1, len(calls)) if extends[j] == extends[i])
      if any(calls[j].role == call.role for j in later):
        dead[i] = 'regenerated'
  return dead


def _same_prompt(trie: Trie) -> dict[Any, list[int]]:
  """Calls that sampled something, by identical prompt and role."""
  groups: dict[Any, list[int]] = {}
  for i, call in enumerate(trie.calls):
    nodes = trie.output_nodes(i)
    if not len(nodes):
      continue
    if trie.routes is None:
      key = int(trie.parent[nodes[0]])
    else:  # equal tokens may be several nodes
      key = np.asarray(call.prompt_ids, np.int32).tobytes()
    groups.setdefault((call.role, key), []).append(i)
  return groups


def _not_on_longest(trie: Trie) -> dict[int, str]:
  """Calls off the longest path of their compaction-delimited segment."""
  segment, number = {}, 0
  for i, call in enumerate(trie.calls):
    number += call.role == 'compaction'
    segment[i] = number
  best: dict[Any, tuple[int, int]] = {}
  for i in trie.leaves():
    key = (segment[i], trie.calls[i].role)
    length = trie.radix.stop(trie.ends[i])
    best[key] = max(best.get(key, (0, 0)), (length, i))
  keep: set[int] = set()
  for _, i in best.values():
    while i >= 0 and i not in keep:
      keep.add(i)
      i = trie.extends[i]
  return {i: 'dead_leaf' for i in trie.trained if i not in keep}


def _rewritten(trie: Trie, leaves: tuple[int, ...]) -> int:
  last = {}
  for i in trie.trained:
    last[trie.calls[i].role] = i
  return sum(i != last[trie.calls[i].role] for i in leaves)
