"""How loss terms are averaged: one weight per term, fixed on the host.

All normalisation sits in these weights and their denominators are counted over
the global batch of terms. The loss is then a plain weighted sum, so rows,
fragments, microbatches and devices may cut the batch anywhere.

  rollout_mean   1/R        sum_i 1/n_i  sum_t          (eq. 6; the default)
  token_mean     1/(sum n)               sum_i sum_t    (DAPO)
  prompt_mean    1/P sum_p 1/n_p         sum_i sum_t    (per group)
  constant       1/R        sum_i 1/c    sum_t          (Dr. GRPO)

with R rollouts, P groups, n_i trained terms of rollout i, n_p of group p.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

Aggregation = Literal['rollout_mean', 'token_mean', 'prompt_mean', 'constant']
AGGREGATIONS = ('rollout_mean', 'token_mean', 'prompt_mean', 'constant')


def term_weights(
  term_rollout_BE: np.ndarray,
  *,
  groups: Sequence[Hashable],
  aggregation: Aggregation = 'rollout_mean',
  active: np.ndarray | None = None,
  constant: float | None = None,
  count_inactive: bool = True,
) -> np.ndarray:
  """Weights of the terms of a whole (global) batch.

  Args:
    term_rollout_BE: int32 [B, E] rollout of each term, -1 at padding.
    groups: group key of each rollout (its length is the number of rollouts).
    aggregation: see the head of this file.
    active: bool [R]; terms of the others get weight 0. None: all active.
    constant: c of 'constant', e.g. the most tokens a rollout may sample.
    count_inactive: inactive rollouts still count in the denominators, so that
      masking a group changes nothing for the others.

  Returns:
    float32 [B, E].
  """
  if aggregation not in AGGREGATIONS:
    raise ValueError(
      f'aggregation: wanted one of {AGGREGATIONS}, got {aggregation!r}'
    )
  R = len(groups)
  active = np.ones(R, bool) if active is None else np.asarray(active, bool)
  term = np.asarray(term_rollout_BE)
  weight = np.zeros(term.shape, np.float32)
  if not R or not (term >= 0).any():
    return weight
  n = np.bincount(term[term >= 0], minlength=R).astype(np.float64)
  counted = (n > 0) & (active | count_inactive)
  n = np.where(counted, n, 0)
  if aggregation == 'rollout_mean':
    per_rollout = 1 / (np.maximum(n, 1) * max(counted.sum(), 1))
  elif aggregation == 'token_mean':
    per_rollout = np.full(R, 1 / max(n.sum(), 1))
  elif aggregation == 'constant':
    if not constant or constant <= 0:
      raise ValueError(
        f"aggregation 'constant' wants constant > 0, got {constant}"
      )
    per_rollout = np.full(R, 1 / (constant * max(counted.sum(), 1)))
  else:
    numbers: dict[Hashable, int] = {}
    group = np.array([numbers.setdefault(g, len(numbers)) for g in groups])
    of_group = np.bincount(group, weights=n)
    prompts = (of_group > 0).sum()
    per_rollout = 1 / (np.maximum(of_group[group], 1) * max(prompts, 1))
  per_rollout = np.where(counted & active, per_rollout, 0)
  real = term >= 0
  weight[real] = per_rollout[term[real]]
  return weight
