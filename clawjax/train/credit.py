"""Credit: rewards of rollouts become an advantage per term.

  estimator 'group'   the reward against the group's (GRPO, eq. 7), for the
                      whole rollout or branch by branch (losses/advantages.py)
  estimator 'value'   the reward against a value model (PPO, eq. 8), or GAE over
                      the tree for gamma, lambda < 1 (losses/ppo.py)

KL in the reward: with k_t an estimate of log pi_old - log pi_ref at term t and
beta > 0, r_t = -beta k_t is added to what term t earns. With a value model r_t is
a reward of its own step; without one the rollout's reward becomes
R - beta sum_t k_t before the group statistics. No gradient flows through it.

Process rewards (`Rollout.extra['process']['rewards']`, by call; they sum to what
the score rose) let a share c of the reward be paid as it is earned: the last
term of a call earns c times the call's own reward, and the end of the rollout
(1 - c) R. What a call that is not trained earned goes to the trained call before
it. A rollout without process rewards is paid R at its end.

A rollout whose auxiliary roles are trained stands in a batch once per role; each
role is a group of its own (`TreeBatch.groups`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np

from clawjax import types
from clawjax.losses import advantages, grpo, ppo, weights
from clawjax.trie import TreeBatch

Entry = tuple[str, Hashable]


@dataclasses.dataclass(frozen=True)
class CreditConfig:
  """How rewards become advantages and weights.

  Attributes:
    estimator: see the head of this file; 'value' wants a critic.
    advantage: group statistics ('group' only), see `losses.advantages`.
    level: 'rollout': all terms of a rollout have its advantage; 'branch': terms
      are compared with their siblings ('group' only).
    gamma, lam: discount and lambda over the sampled tokens ('value' only).
    whiten: advantages of a step are centred and scaled to a standard deviation
      of 1 over its terms ('value' only).
    reward_kl_coef: beta of the KL in the reward; 0: off.
    reward_kl_kind: its estimator, see `losses.grpo`.
    process_share: c, the share of the reward paid call by call ('value' only).
    aggregation: how terms are averaged, see `losses.weights`.
    constant: c of aggregation 'constant'.
    shuffle_rewards: a control, not a method: the rewards are dealt out at
      random within each group ('value': among all rollouts of a step), so that
      there is nothing to learn.
  """

  estimator: Literal['group', 'value'] = 'group'
  advantage: advantages.AdvantageConfig = advantages.AdvantageConfig()
  level: Literal['rollout', 'branch'] = 'rollout'
  gamma: float = 1.0
  lam: float = 1.0
  whiten: bool = False
  reward_kl_coef: float = 0.0
  reward_kl_kind: Literal['k1', 'k2', 'k3'] = 'k1'
  process_share: float = 0.0
  aggregation: weights.Aggregation = 'rollout_mean'
  constant: float | None = None
  shuffle_rewards: bool = False

  def __post_init__(self):
    if self.aggregation == 'constant' and not self.constant:
      raise ValueError("aggregation 'constant' wants constant > 0")
    if not (0 < self.gamma <= 1 and 0 <= self.lam <= 1):
      raise ValueError(
        'wanted 0 < gamma <= 1 and 0 <= lam <= 1, got'
        f' {self.gamma} and {self.lam}'
      )
    if self.estimator == 'value':
      if self.level != 'rollout' or self.advantage != type(self.advantage)():
        raise ValueError("level and advantage are of estimator 'group'")
    elif self.whiten or self.gamma != 1 or self.lam != 1 or self.process_share:
      raise ValueError(
        "gamma, lam, whiten and process_share are of estimator 'value'"
      )
    if not 0 <= self.process_share <= 1:
      raise ValueError(
        f'process_share: wanted 0 <= x <= 1, got {self.process_share}'
      )
    if self.level == 'branch' and self.advantage.baseline != 'mean':
      raise ValueError("level 'branch' wants advantage.baseline 'mean'")


@dataclasses.dataclass(frozen=True)
class Credit:
  """What `assign` found.

  Attributes:
    batches: as given, `advantage` (and `value_target`) filled.
    active: per entry of a batch, whether its terms may move weights.
    by_rollout: rollout id -> mean advantage of its terms.
    statistics: of groups and rewards (see `losses.advantages`); 'reward_kl',
      mean k_t; 'value_explained_variance' of the values before the step,
      'value_target'; 'process_fraction' of rollouts with process rewards.
  """

  batches: tuple[TreeBatch, ...]
  active: Mapping[Entry, bool]
  by_rollout: Mapping[str, float]
  statistics: Mapping[str, float]


def entries(batch: TreeBatch) -> list[Entry]:
  """(rollout id, group key) of each entry of `batch.rollout_ids`."""
  return list(zip(batch.rollout_ids, batch.groups, strict=True))


def assign(
  chunks: Sequence[tuple[TreeBatch, Sequence[types.Rollout]]],
  config: CreditConfig,
  *,
  rng: np.random.Generator,
) -> Credit:
  """Fills the advantages of a whole step.

  Args:
    chunks: packed rows and the valid rollouts they came from; a group is whole
      in its chunk.
    config: see `CreditConfig`.
    rng: deals out the rewards in the control.
  """
  rollouts = [r for _, members in chunks for r in members]
  found = [key for batch, _ in chunks for key in entries(batch)]
  # A rollout without trained terms still counts in its group.
  keys = list(
    dict.fromkeys([(r.rollout_id, r.group) for r in rollouts] + found)
  )
  mains = len(rollouts)
  reward = _rewards(rollouts, config, rng)
  reward_R = np.array([reward[name] for name, _ in keys], np.float64)
  groups = [group for _, group in keys]
  number = {key: i for i, key in enumerate(keys)}
  penalty = [_penalty(batch, config) for batch, _ in chunks]
  shaped_R = reward_R.copy()
  if config.estimator == 'group':
    for (batch, _), k_BE in zip(chunks, penalty, strict=True):
      here = [number[key] for key in entries(batch)]
      np.subtract.at(shaped_R, here, _per_rollout(k_BE, batch))

  options = {'config': config.advantage}
  main = advantages.group_advantages(
    shaped_R[:mains], groups[:mains], **options
  )
  rest = advantages.group_advantages(
    shaped_R[mains:], groups[mains:], **options
  )
  statistics = dict(main.stats)
  # The reward is reported as the verifier gave it.
  if mains:
    statistics['reward_mean'] = float(reward_R[:mains].mean())
  if config.reward_kl_coef:
    total = sum(float(k.sum()) for k in penalty) / config.reward_kl_coef
    terms = sum(int(batch.mask.sum()) for batch, _ in chunks)
    statistics['reward_kl'] = total / max(terms, 1)

  if config.estimator == 'value':
    end = dict(zip(keys, reward_R.tolist(), strict=True))
    earned = [-k_BE for k_BE in penalty]
    if config.process_share:
      paid = [
        _pay(batch, members, end, config.process_share)
        for batch, members in chunks
      ]
      earned = [a + b for a, b in zip(earned, paid, strict=True)]
      known = sum(bool(_process(r)) for r in rollouts)
      statistics['process_fraction'] = known / max(mains, 1)
    batches, more = _from_values(
      [batch for batch, _ in chunks], end, earned, config
    )
    kept = ('reward_mean', 'reward_kl', 'process_fraction')
    statistics = {k: v for k, v in statistics.items() if k in kept} | more
    active = dict.fromkeys(keys, True)
  else:
    advantage_R = np.concatenate([main.advantage, rest.advantage])
    active_R = np.concatenate([main.active, rest.active])
    active = dict(zip(keys, active_R.tolist(), strict=True))
    batches = [
      _from_groups(batch, number, advantage_R, shaped_R, groups, config)
      for batch, _ in chunks
    ]
  return Credit(
    batches=tuple(batches),
    active=active,
    by_rollout=_means(batches, rollouts),
    statistics=statistics,
  )


# ---- estimators ------------------------------------------------------------


def _from_groups(
  batch: TreeBatch,
  number: Mapping[Entry, int],
  advantage_R: np.ndarray,
  shaped_R: np.ndarray,
  groups: Sequence[Hashable],
  config: CreditConfig,
) -> TreeBatch:
  here = np.array([number[key] for key in entries(batch)], np.int64)
  if config.level == 'rollout':
    return batch.replace(
      advantage=advantages.per_term(advantage_R[here], batch.term_rollout)
    )
  if batch.term_branch is None:
    raise ValueError("level 'branch' wants batches as packed")
  gain = advantages.branch_advantages(
    shaped_R,
    groups,
    [tuple(here[list(side)].tolist() for side in b) for b in batch.branches],
    config=config.advantage,
  )
  return batch.replace(advantage=advantages.per_term(gain, batch.term_branch))


def _from_values(
  batches: Sequence[TreeBatch],
  reward: Mapping[Entry, float],
  earned: Sequence[np.ndarray],
  config: CreditConfig,
) -> tuple[list[TreeBatch], dict[str, float]]:
  """Advantages and targets from `old_value`, and how good the values were."""
  out = []
  paid_at_end = not (config.reward_kl_coef or config.process_share)
  for batch, earned_BE in zip(batches, earned, strict=True):
    reward_BE = advantages.per_term(
      np.array([reward[key] for key in entries(batch)], np.float32),
      batch.term_rollout,
    )
    if config.gamma == config.lam == 1 and paid_at_end:
      gain, target = ppo.reward_advantages(
        batch.old_value, reward_BE, batch.mask
      )
    else:
      assert batch.term_previous is not None, 'GAE wants batches as packed'
      gain, target = ppo.tree_gae(
        batch.old_value,
        reward_BE,
        batch.mask,
        batch.term_previous,
        gamma=config.gamma,
        lam=config.lam,
        step_reward_BE=earned_BE,
      )
    out.append(batch.replace(advantage=gain, value_target=target))

  def over_terms(name: str) -> np.ndarray:
    return np.concatenate([getattr(b, name)[b.mask] for b in out])

  target, value = over_terms('value_target'), over_terms('old_value')
  gain = over_terms('advantage')
  spread = float(target.astype(np.float64).var())
  statistics = {
    'value_target': float(target.mean()),
    'value_explained_variance': (
      1 - float((target - value).astype(np.float64).var()) / spread
      if spread > 1e-12
      else float('nan')
    ),
    'advantage_std': float(gain.std()),
  }
  if config.whiten:
    mean, scale = gain.mean(), gain.std() + config.advantage.eps
    out = [
      b.replace(
        advantage=np.where(b.mask, (b.advantage - mean) / scale, 0).astype(
          np.float32
        )
      )
      for b in out
    ]
  return out, statistics


# ---- rewards ---------------------------------------------------------------


def _rewards(
  rollouts: Sequence[types.Rollout],
  config: CreditConfig,
  rng: np.random.Generator,
) -> dict[str, float]:
  reward = np.array([r.reward for r in rollouts], np.float64)
  if config.shuffle_rewards:
    alike = [r.group if config.estimator == 'group' else '' for r in rollouts]
    dealt = reward.copy()
    for key in dict.fromkeys(alike):
      index = np.array([i for i, k in enumerate(alike) if k == key])
      dealt[index] = reward[rng.permutation(index)]
    reward = dealt
  ids = [r.rollout_id for r in rollouts]
  return dict(zip(ids, reward.tolist(), strict=True))


def _process(rollout: types.Rollout) -> Mapping[str, float]:
  """Reward by call id; empty when it is not known."""
  found = rollout.extra.get('process', {})
  return found.get('rewards', {}) if isinstance(found, Mapping) else {}


def _pay(
  batch: TreeBatch,
  rollouts: Sequence[types.Rollout],
  end: dict[Entry, float],
  share: float,
) -> np.ndarray:
  """Process rewards at the last terms of calls; lowers `end` to match."""
  last: dict[tuple[str, str], tuple[int, int]] = {}
  for b, e in np.argwhere(batch.mask):  # a call's terms stand in order
    last[batch.call_keys[batch.term_call[b, e]]] = (int(b), int(e))
  out = np.zeros(batch.mask.shape, np.float32)
  for rollout in rollouts:
    rewards = _process(rollout)
    if not rewards:
      continue
    end[rollout.rollout_id, rollout.group] *= 1 - share
    place = None
    for call in sorted(rollout.calls, key=lambda c: c.index):
      if call.role == 'main':
        place = last.get((rollout.rollout_id, call.call_id), place)
      if place is not None:
        out[place] += share * rewards.get(call.call_id, 0.0)
  return out


def _penalty(batch: TreeBatch, config: CreditConfig) -> np.ndarray:
  """beta k_t per term, float32 [B, E]."""
  if not config.reward_kl_coef:
    return np.zeros(batch.mask.shape, np.float32)
  k_BE = grpo.kl_estimate(
    batch.old_logprob, batch.ref_logprob, config.reward_kl_kind
  )
  return np.where(
    batch.mask, config.reward_kl_coef * np.asarray(k_BE), 0
  ).astype(np.float32)


def _per_rollout(value_BE: np.ndarray, batch: TreeBatch) -> np.ndarray:
  """Sums over the terms of each entry of `batch.rollout_ids`."""
  return np.bincount(
    batch.term_rollout[batch.mask],
    weights=value_BE[batch.mask],
    minlength=len(batch.rollout_ids),
  )


def _means(
  batches: Sequence[TreeBatch], rollouts: Sequence[types.Rollout]
) -> dict[str, float]:
  total = {r.rollout_id: 0.0 for r in rollouts}
  terms = dict.fromkeys(total, 0.0)
  for batch in batches:
    sums = _per_rollout(batch.advantage, batch)
    counts = _per_rollout(batch.mask, batch)
    for name, one, count in zip(batch.rollout_ids, sums, counts, strict=True):
      total[name] += float(one)
      terms[name] += float(count)
  return {k: v / max(terms[k], 1.0) for k, v in total.items()}
