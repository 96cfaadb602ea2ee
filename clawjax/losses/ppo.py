"""Values become advantages, along each rollout's own chain (host side).

The clipped loss of PPO (eq. 2) is that of GRPO with other advantages: use
`grpo.grpo_loss`. The paper sets gamma = lambda = 1 and gives every trajectory
the rollout's reward, so that nothing crosses a branch:

  A_t = R - V(s_t)                                             (eq. 8)

Tree-GAE (ours, for lambda < 1) backs up over branch points. Terms of a rollout
form a forest: `previous[t]` is the sampled token before t in its own context,
whatever the harness put in between. With C(t) the terms whose previous is t,

  A_t = delta_t + gamma lambda mean_{c in C(t)} A_c
  delta_t = r_t + gamma mean_{c in C(t)} V(s_c) - V(s_t)

and where C(t) is empty: A_t = R + r_t - V(s_t). On a chain this is ordinary GAE
over the sampled tokens; with gamma = lambda = 1 and no r it is eq. 8.
"""

from __future__ import annotations

import numpy as np


def reward_advantages(
  value_BE: np.ndarray, reward_BE: np.ndarray, mask_BE: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Eq. 8.

  Args:
    value_BE: V(s_t) per term.
    reward_BE: the rollout's reward at each of its terms.
    mask_BE: True where a term is real.

  Returns:
    float32 [B, E] advantages and value targets (the reward); 0 at padding.
  """
  mask = np.asarray(mask_BE, bool)
  target = np.where(mask, reward_BE, 0).astype(np.float32)
  advantage = np.where(mask, target - np.where(mask, value_BE, 0), 0)
  return advantage.astype(np.float32), target


def tree_gae(
  value_BE: np.ndarray,
  reward_BE: np.ndarray,
  mask_BE: np.ndarray,
  previous_BE: np.ndarray,
  *,
  gamma: float = 1.0,
  lam: float = 1.0,
  step_reward_BE: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Tree-GAE; see the head of this file.

  Args:
    value_BE: V(s_t) per term.
    reward_BE: the rollout's reward at each of its terms; used where nothing
      follows.
    mask_BE: True where a term is real.
    previous_BE: int, flat index (row x E + column) of the term of the sampled
      token before, -1 where there is none (`TreeBatch.term_previous`).
    gamma, lam: discount and lambda.
    step_reward_BE: r_t, e.g. of checks after a call, at its last token.

  Returns:
    float32 [B, E] advantages and value targets A + V; 0 at padding.
  """
  shape = np.shape(mask_BE)
  mask = np.asarray(mask_BE, bool).reshape(-1)
  value = np.where(mask, np.reshape(value_BE, -1), 0).astype(np.float64)
  reward = np.where(mask, np.reshape(reward_BE, -1), 0).astype(np.float64)
  before = np.where(mask, np.reshape(previous_BE, -1), -1)
  if step_reward_BE is not None:
    step = np.where(mask, np.reshape(step_reward_BE, -1), 0).astype(np.float64)
  else:
    step = np.zeros(len(value))

  followers = np.bincount(before[before >= 0], minlength=len(value))
  sum_value = np.zeros(len(value))
  np.add.at(sum_value, before[before >= 0], value[before >= 0])
  share = np.maximum(followers, 1)
  after = np.where(followers > 0, gamma * sum_value / share, reward)
  delta = step + after - value

  # Followers first: a term is ready when all of its followers are done.
  advantage = delta.copy()
  waiting = followers.copy()
  ready = np.flatnonzero(mask & (waiting == 0)).tolist()
  done = 0
  while ready:
    t = ready.pop()
    done += 1
    p = before[t]
    if p >= 0:
      advantage[p] += gamma * lam * advantage[t] / share[p]
      waiting[p] -= 1
      if waiting[p] == 0:
        ready.append(p)
  if done != mask.sum():
    raise ValueError('previous_BE has a cycle or names a padding term')
  advantage = np.where(mask, advantage, 0)
  target = np.where(mask, advantage + value, 0)
  return (
    advantage.reshape(shape).astype(np.float32),
    target.reshape(shape).astype(np.float32),
  )
