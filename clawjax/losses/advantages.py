"""Rewards of a group of rollouts -> one advantage per rollout (host side).

A group is what shares a task and a harness. Rollouts without a valid reward
enter neither statistics nor loss. A group with fewer than two valid rollouts,
or with equal rewards, says nothing: its advantage is 0 and it is not `active`,
so that it moves no weights through other terms of the loss either.

Branch advantages (ours, beyond the paper) say what a choice was worth against
the other choices at the same fork. In the tree of a group let S(v) be the
rollouts that hold node v, M(v) their mean reward, and u(v) the nearest node
above v that more rollouts hold (the group's root, held by all, if there is no
other). A token at v gets

  A(v) = M(v) - M(u(v))          [ / (sigma of the group + eps) ]

so a token that all rollouts share gets 0, and the tokens after a fork are
compared with their siblings and not with the whole group. Where rollouts share
nothing but the prompt this is the group-mean advantage (eq. 7).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np


@dataclasses.dataclass(frozen=True)
class AdvantageConfig:
  """Options of `group_advantages`.

  Attributes:
    baseline: 'mean' (eq. 7) or 'leave_one_out' (mean of the other rollouts).
    scale: 'std': divide by the population standard deviation (eq. 7); 'none':
      do not (Dr. GRPO).
    eps: added to the standard deviation.
    min_spread: rewards within this of each other are equal.
    mask_degenerate: groups that say nothing are not `active`.
  """

  baseline: Literal['mean', 'leave_one_out'] = 'mean'
  scale: Literal['std', 'none'] = 'std'
  eps: float = 1e-6
  min_spread: float = 1e-6
  mask_degenerate: bool = True


@dataclasses.dataclass(frozen=True)
class Advantages:
  """Per rollout, in the order of the rewards.

  Attributes:
    advantage: float32 [R]; 0 where not valid or degenerate.
    active: bool [R], whether the rollout may move weights.
    stats: 'groups', 'degenerate_groups', 'small_groups', 'reward_mean',
      'reward_std' (mean over groups of the population standard deviation).
  """

  advantage: np.ndarray
  active: np.ndarray
  stats: dict[str, float]


def group_advantages(
  reward_R: np.ndarray | Sequence[float],
  group_R: Sequence[Hashable],
  valid_R: np.ndarray | Sequence[bool] | None = None,
  *,
  config: AdvantageConfig | None = None,
) -> Advantages:
  """Group-relative advantages, ClawGym II eqs. 5 and 7.

  Args:
    reward_R: rewards; ignored where not valid.
    group_R: group key of each rollout.
    valid_R: which rollouts count; None: those with a finite reward.
    config: see `AdvantageConfig`.
  """
  config = config or AdvantageConfig()
  reward = np.asarray(reward_R, np.float64)
  valid = np.isfinite(reward)
  if valid_R is not None:
    valid &= np.asarray(valid_R, bool)
  advantage = np.zeros(len(reward), np.float32)
  active = np.zeros(len(reward), bool)
  members: dict[Hashable, list[int]] = {}
  for i, key in enumerate(group_R):
    if valid[i]:
      members.setdefault(key, []).append(i)
  small = degenerate = 0
  spreads = []
  for index in members.values():
    r = reward[index]
    spreads.append(r.std())
    if len(index) < 2:
      small += 1
      continue
    if r.max() - r.min() <= config.min_spread:
      degenerate += 1
      active[index] = not config.mask_degenerate
      continue
    active[index] = True
    if config.baseline == 'leave_one_out':
      centred = r - (r.sum() - r) / (len(r) - 1)
    else:
      centred = r - r.mean()
    if config.scale == 'std':
      centred = centred / (r.std() + config.eps)
    advantage[index] = centred
  known = reward[valid]
  stats = {
    'groups': float(len(members)),
    'degenerate_groups': float(degenerate),
    'small_groups': float(small),
    'reward_mean': float(known.mean()) if len(known) else float('nan'),
    'reward_std': float(np.mean(spreads)) if spreads else float('nan'),
  }
  return Advantages(advantage=advantage, active=active, stats=stats)


def branch_advantages(
  reward_R: np.ndarray | Sequence[float],
  group_R: Sequence[Hashable],
  branches: Sequence[tuple[Sequence[int], Sequence[int]]],
  valid_R: np.ndarray | Sequence[bool] | None = None,
  *,
  config: AdvantageConfig | None = None,
) -> np.ndarray:
  """Advantage of each branch; see the head of this file.

  Args:
    reward_R: rewards; ignored where not valid.
    group_R: group key of each rollout.
    branches: per branch the numbers of the rollouts in S(v) and in S(u(v)); an
      empty S(u(v)) stands for the whole group.
    valid_R: which rollouts count; None: those with a finite reward.
    config: `scale`, `eps` and `min_spread` as in `group_advantages`; the
      baseline is always the mean.

  Returns:
    float32 [number of branches]; 0 where no valid rollout is left, and in
    groups of fewer than two or of equal rewards.
  """
  config = config or AdvantageConfig()
  reward = np.asarray(reward_R, np.float64)
  valid = np.isfinite(reward)
  if valid_R is not None:
    valid &= np.asarray(valid_R, bool)
  members: dict[Hashable, list[int]] = {}
  for i, key in enumerate(group_R):
    if valid[i]:
      members.setdefault(key, []).append(i)
  out = np.zeros(len(branches), np.float32)
  for number, (here, above) in enumerate(branches):
    here = [i for i in here if valid[i]]
    if not here:
      continue
    group = members[group_R[here[0]]]
    r = reward[group]
    if len(group) < 2 or r.max() - r.min() <= config.min_spread:
      continue
    rivals = [i for i in above if valid[i]] or group
    gain = reward[here].mean() - reward[rivals].mean()
    if config.scale == 'std':
      gain /= r.std() + config.eps
    out[number] = gain
  return out


def per_term(value_R: np.ndarray, term_rollout_BE: np.ndarray) -> np.ndarray:
  """Spreads a number per rollout over its terms; 0 at padding (-1)."""
  value_R = np.asarray(value_R, np.float32)
  if not len(value_R):
    return np.zeros(term_rollout_BE.shape, np.float32)
  spread = value_R[np.maximum(term_rollout_BE, 0)]
  return np.where(term_rollout_BE >= 0, spread, 0).astype(np.float32)
