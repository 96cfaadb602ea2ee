"""The critic of PPO: a value model with an optimiser and a state of its own.

  score   V(s_t) of all terms under given weights
  fit     one optimiser step on the weighted squared error (eq. 4)

It begins as a copy of the policy's trunk with a zero head, and first learns
alone: in the first `pretrain_steps` steps of a run rollouts are collected as
ever but the policy stays as it is (the paper's value pre-training). Its experts
are chosen by its own router, also where the policy's routes are replayed.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from clawjax.losses import value as value_loss
from clawjax.models import qwen3
from clawjax.models import value as value_model
from clawjax.models.sharding import Sharding
from clawjax.train import rows as rows_lib
from clawjax.train import state as state_lib
from clawjax.trie import TreeBatch


@dataclasses.dataclass(frozen=True)
class CriticConfig:
  """Options of the critic; the paper gives none of the numbers.

  Attributes:
    clip: most that a value may move from where it was before the step's first
      update; None: no clipping (none while pre-training either).
    pretrain_steps: training steps, from the first, that only fit the critic.
    pretrain_epochs: passes over the rollouts of each of these.
    optim: its optimiser.
  """

  clip: float | None = None
  pretrain_steps: int = 1
  pretrain_epochs: int = 4
  optim: state_lib.OptimConfig = state_lib.OptimConfig(learning_rate=1e-5)

  def __post_init__(self):
    if self.clip is not None and self.clip <= 0:
      raise ValueError(f'clip: wanted more than 0, got {self.clip}')
    if self.pretrain_steps < 0 or self.pretrain_epochs < 1:
      raise ValueError('wanted pretrain_steps >= 0 and pretrain_epochs >= 1')


class Critic:
  """Compiled functions of one value model and its optimiser."""

  def __init__(
    self,
    model: qwen3.Config,
    config: CriticConfig,
    *,
    forward: rows_lib.ForwardConfig | None = None,
    sharding: Sharding | None = None,
  ):
    self.model = model
    self.config = config
    self.sharding = sharding
    setting = rows_lib.Setting(
      model, forward or rows_lib.ForwardConfig(), sharding
    )
    self._optimizer = state_lib.make_optimizer(config.optim)
    self._score = rows_lib.Reader(self._trunk, self._read, setting)
    self._gradient, self._free_gradient = (
      rows_lib.Gradient(
        self._trunk, functools.partial(self._loss, clip=clip), setting
      )
      for clip in (config.clip, None)
    )
    self._apply = jax.jit(
      functools.partial(state_lib.apply_gradients, optimizer=self._optimizer),
      donate_argnums=0,
    )

  def init(self, policy_params: Any) -> state_lib.TrainState:
    """A state that begins from the policy's trunk."""
    places = None
    if self.sharding is not None:
      places = self.sharding.of(value_model.table(self.model))
    begin = jax.jit(
      functools.partial(value_model.from_policy, config=self.model),
      out_shardings=places,
    )
    return state_lib.init(begin(policy_params), self._optimizer, self.sharding)

  def score(self, params: Any, batch: TreeBatch) -> np.ndarray:
    """Values of the states before all terms, float32 [B, E]."""
    return self._score(params, batch)

  def fit(
    self,
    state: state_lib.TrainState,
    batch: TreeBatch,
    *,
    pretraining: bool = False,
  ) -> tuple[state_lib.TrainState, dict[str, float]]:
    """One optimiser step towards `batch.value_target`.

    Args:
      state: the critic's.
      batch: filled; with `clip` its `old_value` too.
      pretraining: whether values may move freely.

    Returns:
      The state after, and {'value_loss', 'value_mean', 'value_grad_norm',
      'value_skipped'}.
    """
    gradient = self._free_gradient if pretraining else self._gradient
    total, sums = gradient(state.params, batch)
    state, moved = self._apply(state, total)
    terms = float(sums['terms'])
    return state, {
      'value_loss': float(sums['loss']),
      'value_mean': float(sums['value']) / terms if terms else float('nan'),
      'value_grad_norm': float(moved['grad_norm']),
      'value_skipped': float(moved['skipped']),
    }

  # ---- inside --------------------------------------------------------------

  def _trunk(self, params, rows, *, attend, states):
    hidden_BTD, states, _ = qwen3.apply(
      params['trunk'],
      self.model,
      rows['tokens'],
      rows['depth'],
      attend=attend,
      layer_states=states,
      sharding=self.sharding,
    )
    return hidden_BTD, states

  def _read(self, params, hidden_BTD, rows):
    value_BT = value_model.read(params, hidden_BTD)
    return value_loss.term_values(value_BT, rows['parent'], rows['term_slot'])

  def _loss(self, params, hidden_BTD, rows, *, clip):
    return value_loss.value_loss(
      self._read(params, hidden_BTD, rows),
      target=rows['value_target'],
      weight=rows['weight'],
      config=value_loss.ValueLossConfig(clip=clip),
      old_value=rows['old_value'],
    )
