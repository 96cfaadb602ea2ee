"""One training step on packed rows: score, then update.

  score   log-probs of all terms under given weights (old, reference)
  update  accumulate the gradient over microbatches of rows, then one
          optimiser step

Both run the same forward pass on the same rows, so before the first update the
ratio of new to old is 1. The loss is a plain weighted sum over terms (all
averaging stands in the weights, counted over the global batch), so cutting the
rows into microbatches changes nothing but memory.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from clawjax.kernels import tree_attention
from clawjax.losses import diagnostics, grpo, logprobs
from clawjax.models import qwen3
from clawjax.train import state as state_lib
from clawjax.trie import TreeBatch


@dataclasses.dataclass(frozen=True)
class ForwardConfig:
  """How rows go through the model.

  Attributes:
    rows: rows of one microbatch.
    attention: implementation of `kernels.tree_attention`.
    chunk: terms whose logits exist at once.
    vocab_chunk: vocabulary entries of those logits at once; 0: all.
    temperature: the policy is softmax(logits / temperature), as sampled.
  """

  rows: int = 1
  attention: str = 'auto'
  chunk: int = 1024
  vocab_chunk: int = 0
  temperature: float = 1.0

  def __post_init__(self):
    if self.rows < 1 or self.chunk < 1 or self.temperature <= 0:
      raise ValueError('wanted rows >= 1, chunk >= 1 and temperature > 0')


def term_scores(
  params: Any,
  model: qwen3.Config,
  rows: dict[str, jax.Array],
  config: ForwardConfig,
) -> tuple[jax.Array, jax.Array]:
  """Log-probs and entropies of the terms of some rows.

  Args:
    params: model parameters.
    model: its shape.
    rows: arrays of a `TreeBatch`.
    config: see `ForwardConfig`.

  Returns:
    float32 [B, E] log-probs under the policy, and entropies (nats).
  """

  def attend(layer_state, q_BTHC, k_BTKC, v_BTKC):
    out = tree_attention(
      q_BTHC, k_BTKC, v_BTKC, rows['subtree_end'], impl=config.attention
    )
    return out, layer_state

  hidden_BTD, _, _ = qwen3.apply(
    params,
    model,
    rows['tokens'],
    rows['depth'],
    attend=attend,
    replay_routes=rows.get('routes'),
  )
  return logprobs.term_logprobs(
    hidden_BTD,
    qwen3.unembed(params, model),
    rows['tokens'],
    rows['parent'],
    rows['term_slot'],
    chunk=config.chunk,
    vocab_chunk=config.vocab_chunk or None,
    temperature=config.temperature,
  )


class Learner:
  """Compiled functions of one model, loss and optimiser."""

  def __init__(
    self,
    model: qwen3.Config,
    optimizer: optax.GradientTransformation,
    *,
    forward: ForwardConfig | None = None,
    loss: grpo.PolicyLossConfig | None = None,
  ):
    self.model = model
    self.optimizer = optimizer
    self.forward = forward or ForwardConfig()
    self.loss = loss or grpo.PolicyLossConfig()
    self._score = jax.jit(
      functools.partial(term_scores, model=model, config=self.forward)
    )
    self._policy_gradient = jax.jit(
      functools.partial(self._accumulate, self._policy_loss),
      donate_argnums=1,
    )
    self._likelihood_gradient = jax.jit(
      functools.partial(self._accumulate, self._likelihood_loss),
      donate_argnums=1,
    )
    self._apply = jax.jit(
      functools.partial(state_lib.apply_gradients, optimizer=optimizer),
      donate_argnums=0,
    )

  # ---- what a loop calls ---------------------------------------------------

  def score(self, params: Any, batch: TreeBatch) -> np.ndarray:
    """Log-probs of all terms, float32 [B, E]."""
    parts = [
      self._score(params, rows=rows)[0] for rows in self._microbatches(batch)
    ]
    return np.concatenate([np.asarray(p) for p in parts])[: len(batch.tokens)]

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
    total = jax.tree.map(jnp.zeros_like, state.params)
    sums = None
    for rows in self._microbatches(batch):
      total, part = gradient(state.params, total, rows)
      sums = part if sums is None else diagnostics.add(sums, part)
    state, moved = self._apply(state, total)
    metrics = diagnostics.finish(sums)
    metrics |= {k: float(v) for k, v in moved.items()}
    return state, metrics

  def _microbatches(self, batch: TreeBatch) -> Iterator[dict[str, jax.Array]]:
    """Rows in pieces of one shape; the last is filled with empty rows."""
    arrays = batch.arrays()
    size = self.forward.rows
    for start in range(0, len(batch.tokens), size):
      piece = {k: v[start : start + size] for k, v in arrays.items()}
      missing = size - len(piece['tokens'])
      if missing:
        piece = {
          k: np.concatenate([v, _empty_rows(k, v, missing)])
          for k, v in piece.items()
        }
      yield {k: jnp.asarray(v) for k, v in piece.items()}

  def _accumulate(self, loss, params, total, rows):
    (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(params, rows)
    return jax.tree.map(jnp.add, total, grads), sums

  def _policy_loss(self, params, rows):
    logp, entropy = term_scores(params, self.model, rows, self.forward)
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

  def _likelihood_loss(self, params, rows):
    logp, entropy = term_scores(params, self.model, rows, self.forward)
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


def _empty_rows(name: str, like: np.ndarray, count: int) -> np.ndarray:
  """Rows of padding: each slot sees itself, each term weighs nothing."""
  shape = (count, *like.shape[1:])
  if name == 'subtree_end':
    return np.broadcast_to(np.arange(1, shape[1] + 1, dtype=like.dtype), shape)
  fill = (
    -1
    if name in ('parent', 'routes', 'term_rollout', 'term_call', 'term_version')
    else 0
  )
  return np.full(shape, fill, like.dtype)
