"""Where the sampled tokens went: delivered-token fraction and breaks.

Each sampled token is either delivered to training, once, or missing with a
cause. A break is a prompt that does not go on where its conversation stood.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from clawjax import types


@dataclasses.dataclass(frozen=True)
class Account:
  """Tokens and calls of one or more sessions.

  Attributes:
    calls: finished calls.
    sampled: tokens the engine sampled.
    delivered: tokens that may be trained, each counted once.
    missing: cause -> tokens that may not; sampled = delivered + their sum.
    breaks: cause -> number of calls.
    inexact: calls that claim a parent which they do not extend; always 0.
    malformed: calls with a tool call that could not be read.
    roles: role -> number of calls.
  """

  calls: int
  sampled: int
  delivered: int
  missing: Mapping[str, int]
  breaks: Mapping[str, int]
  inexact: int
  malformed: int
  roles: Mapping[str, int]

  @property
  def fraction(self) -> float:
    """delivered / sampled; 1 when nothing was sampled."""
    return self.delivered / self.sampled if self.sampled else 1.0


def dead_leaves(calls: Sequence[types.Call]) -> dict[str, str]:
  """Call id -> cause, for answers that a retry or another answer replaced.

  Among calls with one prompt that did not run at the same time, an answer that
  nothing continues is dead when a later one replaced it (`Call.retry_of`) or
  when another one was continued.
  """
  parents = {c.parent for c in calls}
  replaced = {c.retry_of for c in calls if c.retry_of}
  same: dict[bytes, list[types.Call]] = collections.defaultdict(list)
  for call in calls:
    if call.sample is not None:
      same[np.asarray(call.prompt_ids, np.int32).tobytes()].append(call)
  dead: dict[str, str] = {}
  for group in same.values():
    for call in group:
      if call.call_id in parents:
        continue
      others = [
        c
        for c in group
        if c is not call
        and c.call_id in parents
        and (c.start >= call.end or call.start >= c.end)
      ]
      if call.call_id in replaced or others:
        dead[call.call_id] = 'retry'
  return dead


def account(
  calls: Sequence[types.Call], *, roles: Sequence[str] = ('main',)
) -> Account:
  """Accounts for the sampled tokens of a session's calls.

  Args:
    calls: finished calls of one session.
    roles: roles that are trained.
  """
  dead = dead_leaves(calls)
  missing: collections.Counter[str] = collections.Counter()
  sampled = delivered = 0
  for call in calls:
    if call.sample is None:
      continue
    n = len(call.sample.token_ids)
    sampled += n
    if not call.trainable:
      missing[call.status] += n
    elif call.call_id in dead:
      missing[dead[call.call_id]] += n
    elif call.role not in roles:
      missing[f'role: {call.role}'] += n
    else:
      delivered += n
  return Account(
    calls=len(calls),
    sampled=sampled,
    delivered=delivered,
    missing=dict(missing),
    breaks=dict(
      collections.Counter(c.break_cause for c in calls if c.break_cause)
    ),
    inexact=_inexact(calls),
    malformed=sum(c.malformed for c in calls),
    roles=dict(collections.Counter(c.role for c in calls)),
  )


def _inexact(calls: Sequence[types.Call]) -> int:
  by_id = {c.call_id: c for c in calls}
  count = 0
  for call in calls:
    parent = by_id.get(call.parent)
    if parent is None or parent.sample is None:
      continue
    start, end = len(parent.prompt_ids), len(parent.sample.token_ids)
    prompt = call.prompt_ids
    count += not (
      np.array_equal(prompt[:start], parent.prompt_ids)
      and np.array_equal(prompt[start : start + end], parent.sample.token_ids)
    )
  return count
