"""What a training step carries from one to the next, and the optimiser.

`TrainState` is a pytree: parameters, optimiser state and two counters (with a
value model there are two of them, `ActorCriticState`). One
`apply_gradients` is one optimiser step; when the gradient holds a nan or an inf
nothing moves but the `skipped` counter (0 * nan is nan, so the choice is made
with a select, never with a product).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from clawjax.models.sharding import Sharding


@dataclasses.dataclass(frozen=True)
class OptimConfig:
  """AdamW or Muon, with a schedule and global-norm clipping.

  The paper gives none of these; all values are ours.

  Attributes:
    optimizer: 'adamw', or 'muon': the momentum of each weight matrix made
      orthogonal (Jordan et al. 2024, through `optax.contrib.muon`); what is not
      a matrix of a layer (embeddings, head, norms, biases, router) goes by AdamW
      with Nesterov momentum.
    adam_share: with 'muon', the rate of AdamW as a share of `learning_rate`.
    learning_rate: peak rate, per optimiser step.
    schedule: shape after warm-up; 'cosine' and 'linear' fall to
      `final_fraction * learning_rate` at `decay_steps`.
    warmup_steps: optimiser steps of linear warm-up from 0.
    decay_steps: optimiser steps at which the schedule ends (not 'constant').
    final_fraction: where the schedule ends, as a share of `learning_rate`.
    b1, b2, eps, weight_decay: AdamW.
    max_grad_norm: clip the global norm to this; 0: no clipping.
    moment_dtype: dtype of the first moment ('float32' or 'bfloat16').
  """

  optimizer: Literal['adamw', 'muon'] = 'adamw'
  adam_share: float = 0.15
  learning_rate: float = 1e-6
  schedule: Literal['constant', 'cosine', 'linear'] = 'constant'
  warmup_steps: int = 0
  decay_steps: int = 0
  final_fraction: float = 0.0
  b1: float = 0.9
  b2: float = 0.98
  eps: float = 1e-8
  weight_decay: float = 0.0
  max_grad_norm: float = 1.0
  moment_dtype: Literal['float32', 'bfloat16'] = 'float32'

  def __post_init__(self):
    if self.learning_rate < 0 or self.max_grad_norm < 0:
      raise ValueError('learning_rate and max_grad_norm must not be negative')
    if self.schedule != 'constant' and self.decay_steps <= self.warmup_steps:
      raise ValueError(
        f'schedule {self.schedule!r} wants decay_steps > warmup_steps; got'
        f' {self.decay_steps} and {self.warmup_steps}'
      )


class TrainState(NamedTuple):
  """Parameters and optimiser state.

  Attributes:
    params: pytree of model parameters.
    opt_state: Optax state.
    updates: int32 [], optimiser steps taken (skipped ones not counted).
    skipped: int32 [], optimiser steps skipped for a non-finite gradient.
  """

  params: Any
  opt_state: Any
  updates: jax.Array
  skipped: jax.Array


class ActorCriticState(NamedTuple):
  """States of the policy and of the value model, saved together.

  Attributes:
    policy, critic: a `TrainState` each.
  """

  policy: TrainState
  critic: TrainState

  @property
  def params(self) -> Any:
    """Parameters of the policy."""
    return self.policy.params


def schedule(config: OptimConfig) -> optax.Schedule:
  """Learning rate by optimiser step."""
  peak = config.learning_rate
  end = peak * config.final_fraction
  rest = config.decay_steps - config.warmup_steps
  if config.schedule == 'cosine':
    main = optax.cosine_decay_schedule(peak, rest, config.final_fraction)
  elif config.schedule == 'linear':
    main = optax.linear_schedule(peak, end, rest)
  else:
    main = optax.constant_schedule(peak)
  if not config.warmup_steps:
    return main
  # The first step already moves: it is step 1 of the ramp, not step 0.
  ramp = optax.linear_schedule(
    peak / config.warmup_steps, peak, max(config.warmup_steps - 1, 1)
  )
  return optax.join_schedules([ramp, main], [config.warmup_steps])


# Axes from the end: those summed over, those put out (see `qwen3.table`).
_MATRIX = {
  **dict.fromkeys(('q', 'k', 'v'), ((3,), (2, 1))),
  'o': ((3, 2), (1,)),
  **dict.fromkeys(('gate', 'up', 'down'), ((2,), (1,))),
}


def matrices(params: Any) -> Any:
  """What Muon takes as a matrix: `MuonDimensionNumbers`, or None for AdamW.

  Axes that are neither summed over nor put out (layers, experts) hold a matrix
  for each index.
  """

  def one(path: tuple[Any, ...], leaf: Any) -> Any:
    entry = path[-1]
    axes = _MATRIX.get(entry.key if hasattr(entry, 'key') else '')
    if axes is None:
      return None
    ins, outs = (tuple(leaf.ndim - a for a in side) for side in axes)
    return contrib.MuonDimensionNumbers(ins, outs)

  return jax.tree_util.tree_map_with_path(one, params)


def make_optimizer(config: OptimConfig) -> optax.GradientTransformation:
  """The optimiser of `config`; decay spares vectors (norms, biases)."""

  def decayed(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)

  parts = []
  if config.max_grad_norm:
    parts.append(optax.clip_by_global_norm(config.max_grad_norm))
  rate = schedule(config)
  dtype = jnp.dtype(config.moment_dtype)
  if config.optimizer == 'adamw':
    parts.append(
      optax.adamw(
        rate,
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        weight_decay=config.weight_decay,
        mask=decayed,
        mu_dtype=dtype,
      )
    )
  else:
    parts.append(
      contrib.muon(
        rate,
        weight_decay=config.weight_decay,
        weight_decay_mask=decayed,
        mu_dtype=dtype,
        adam_b1=config.b1,
        adam_b2=config.b2,
        adam_weight_decay=config.weight_decay,
        adam_learning_rate=lambda step: config.adam_share * rate(step),
        muon_weight_dimension_numbers=matrices,
      )
    )
  return optax.chain(*parts)


def init(
  params: Any,
  optimizer: optax.GradientTransformation,
  sharding: Sharding | None = None,
) -> TrainState:
  """A fresh state around `params`.

  Args:
    params: where they are to stay.
    optimizer: of the state.
    sharding: the mesh that `params` are placed on; moments go where their
      parameters are. None: one device.
  """

  def make(params: Any) -> TrainState:
    # Two arrays: a step takes over the buffers of its state, each once.
    step, skipped = (jnp.zeros((), jnp.int32) for _ in range(2))
    return TrainState(params, optimizer.init(params), step, skipped)

  if sharding is None:
    return make(params)
  places = sharding.like(
    jax.eval_shape(make, params), jax.tree.map(lambda x: x.sharding, params)
  )
  return jax.jit(make, out_shardings=places)(params)


def apply_gradients(
  state: TrainState, grads: Any, optimizer: optax.GradientTransformation
) -> tuple[TrainState, dict[str, jax.Array]]:
  """One optimiser step; a non-finite gradient changes only `skipped`.

  Args:
    state: the state before.
    grads: pytree like `state.params`.
    optimizer: as given to `init`.

  Returns:
    The state after, and {'grad_norm', 'update_norm', 'skipped'} (f32 []).
  """
  norm = optax.tree.norm(grads)
  good = jnp.isfinite(norm)
  safe = jax.tree.map(lambda g: jnp.where(good, g, jnp.zeros_like(g)), grads)
  updates, opt_state = optimizer.update(safe, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)

  def pick(new, old):
    return jax.tree.map(lambda n, o: jnp.where(good, n, o), new, old)

  new = TrainState(
    pick(params, state.params),
    pick(opt_state, state.opt_state),
    state.updates + good.astype(jnp.int32),
    state.skipped + (~good).astype(jnp.int32),
  )
  update_norm = jnp.where(good, optax.tree.norm(updates), 0.0)
  metrics = {
    'grad_norm': norm,
    'update_norm': update_norm,
    'skipped': (~good).astype(jnp.float32),
  }
  return new, metrics
