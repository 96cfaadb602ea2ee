"""One training step on packed rows: score, then update.

  score   log-probs of all terms under given weights (old, reference)
  update  accumulate the gradient over microbatches of rows, then one
          optimiser step

Both run the same forward pass on the same rows, so before the first update the
ratio of new to old is 1. The loss is a plain weighted sum over terms (all
averaging stands in the weights, counted over the global batch), so cutting the
rows into microbatches changes nothing but memory (rows.py).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from clawjax.losses import diagnostics, grpo, logprobs
from clawjax.models import qwen3
from clawjax.models.sharding import Sharding
from clawjax.train import rows as rows_lib
from clawjax.train import state as state_lib
from clawjax.train.rows import ForwardConfig as ForwardConfig
from clawjax.trie import TreeBatch


class Learner:
  """Compiled functions of one model, loss and optimiser.

  With `sharding` rows are spread over its mesh; the parameters are to be placed
  by the caller (`sharding.of(qwen3.table(model))`), and gradients, optimiser
  state and new parameters follow them.
  """

  def __init__(
    self,
    model: qwen3.Config,
    optimizer: optax.GradientTransformation,
    *,
    forward: ForwardConfig | None = None,
    loss: grpo.PolicyLossConfig | None = None,
    sharding: Sharding | None = None,
  ):
    self.model = model
    self.optimizer = optimizer
    self.forward = forward or ForwardConfig()
    self.loss = loss or grpo.PolicyLossConfig()
    self.sharding = sharding
    setting = rows_lib.Setting(model, self.forward, sharding)
    self._score = rows_lib.Reader(
      self._trunk, lambda *x: self._read(*x)[0], setting
    )
    self._policy_gradient, self._likelihood_gradient = (
      rows_lib.Gradient(self._trunk, loss_of, setting)
      for loss_of in (self._policy_loss, self._likelihood_loss)
    )
    self._apply = jax.jit(
      functools.partial(state_lib.apply_gradients, optimizer=optimizer),
      donate_argnums=0,
    )

  # ---- what a loop calls ---------------------------------------------------

  def score(self, params: Any, batch: TreeBatch) -> np.ndarray:
    """Log-probs of all terms, float32 [B, E]."""
    return self._score(params, batch)

  def update(
    self, state: state_lib.TrainState, batch: TreeBatch
  ) -> tuple[state_lib.TrainState, dict[str, float]]:
    """One policy-gradient step over all rows of `batch` (filled terms)."""
    return self._step(self._policy_gradient, state, batch)

  def fit(
    self, state: state_lib.TrainState, batch: TreeBatch
  ) -> tuple[state_lib.TrainState, dict[str, float]]:
    """One maximum-likelihood step: the loss is -sum(weight * logp)."""
    return self._step(self._likelihood_gradient, state, batch)

  # ---- inside --------------------------------------------------------------

  def _step(self, gradient, state, batch):
    total, sums = gradient(state.params, batch)
    state, moved = self._apply(state, total)
    metrics = diagnostics.finish(sums)
    metrics |= {k: float(v) for k, v in moved.items()}
    return state, metrics

  def _trunk(self, params, rows, *, attend, states):
    hidden_BTD, states, _ = qwen3.apply(
      params,
      self.model,
      rows['tokens'],
      rows['depth'],
      attend=attend,
      layer_states=states,
      replay_routes=rows.get('routes'),
      sharding=self.sharding,
    )
    return hidden_BTD, states

  def _read(self, params, hidden_BTD, rows):
    """Log-probs and entropies of the terms, float32 [B, E] each."""
    read = functools.partial(
      logprobs.term_logprobs,
      chunk=self.forward.chunk,
      vocab_chunk=self.forward.vocab_chunk or None,
      temperature=self.forward.temperature,
    )
    if self.sharding is not None:
      read = self.sharding.over_terms(read)
    return read(
      hidden_BTD,
      # In the engine's number format too: the same logits on both sides.
      qwen3.unembed(params, self.model).astype(hidden_BTD.dtype),
      rows['tokens'],
      rows['parent'],
      rows['term_slot'],
    )

  def _policy_loss(self, params, hidden_BTD, rows):
    logp, entropy = self._read(params, hidden_BTD, rows)
    depth = jnp.take_along_axis(rows['depth'], rows['term_slot'], axis=1)
    return grpo.grpo_loss(
      logp,
      old_logprob=rows['old_logprob'],
      rollout_logprob=rows['rollout_logprob'],
      advantage=rows['advantage'],
      weight=rows['weight'],
      config=self.loss,
      ref_logprob=rows['ref_logprob'] if self.loss.kl_coef else None,
      entropy=entropy,
      term_call=rows['term_call'],
      term_depth=depth,
    )

  def _likelihood_loss(self, params, hidden_BTD, rows):
    logp, entropy = self._read(params, hidden_BTD, rows)
    real = rows['weight'] != 0
    logp = jnp.where(real, logp, 0.0)
    loss = -(rows['weight'] * logp).sum()
    sums = {
      'terms': real.astype(jnp.float32).sum(),
      'loss': loss,
      'logprob': logp.sum(),
      'entropy': jnp.where(real, entropy, 0.0).sum(),
    }
    return loss, jax.tree.map(jax.lax.stop_gradient, sums)
