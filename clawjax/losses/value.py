"""The value model's loss: what the state before a token is worth.

Like a log-prob, the value of token t is read at its parent slot: V(s_t) with
s_t everything before t. At a branch the children of a slot read one number, one
regression term per (call, token).

  loss = sum_t weight_t (V(s_t) - G_t)^2                      (eq. 4)

With `clip`, V may move at most `clip` away from its old value where moving
further would only help (the larger of both squares counts).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class ValueLossConfig:
  """Options of `value_loss`.

  Attributes:
    clip: most that a value may move from its old one; None: no clipping.
  """

  clip: float | None = None

  def __post_init__(self) -> None:
    if self.clip is not None and self.clip <= 0:
      raise ValueError(f'clip: wanted more than 0, got {self.clip}')


def term_values(
  value_BT: jax.Array, parent_BT: jax.Array, term_slot_BE: jax.Array
) -> jax.Array:
  """Values of the states before the terms' tokens, float32 [B, E]."""
  before_BE = jnp.take_along_axis(parent_BT, term_slot_BE, axis=1)
  return jnp.take_along_axis(
    value_BT, jnp.maximum(before_BE, 0), axis=1
  ).astype(jnp.float32)


def value_loss(
  value: jax.Array,
  *,
  target: jax.Array,
  weight: jax.Array,
  config: ValueLossConfig | None = None,
  old_value: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Weighted squared error; all arrays are float32 [B, E].

  Args:
    value: V(s_t) at each term; carries the gradient.
    target: G_t.
    weight: per term; terms with weight 0 take no part, whatever they hold.
    config: see `ValueLossConfig`.
    old_value: values before the first update, wanted with `clip`.

  Returns:
    Scalar loss (a sum) and sums for `explained_variance` and metrics.
  """
  config = config or ValueLossConfig()
  real = weight != 0
  mask = real & jnp.isfinite(value) & jnp.isfinite(target)

  def known(x: jax.Array) -> jax.Array:
    return jnp.where(mask, x, 0.0).astype(jnp.float32)

  value, target, weight = known(value), known(target), known(weight)
  error = (value - target) ** 2
  if config.clip is not None:
    assert old_value is not None, 'clip wants old_value'
    old = known(old_value)
    near = old + jnp.clip(value - old, -config.clip, config.clip)
    error = jnp.maximum(error, (near - target) ** 2)
  loss = (weight * error).sum()
  residual = target - value
  sums = {
    'terms': mask.astype(jnp.float32).sum(),
    'non_finite': (real & ~mask).astype(jnp.float32).sum(),
    'loss': loss,
    'value': value.sum(),
    'target': target.sum(),
    'target_square': (target**2).sum(),
    'residual': residual.sum(),
    'residual_square': (residual**2).sum(),
  }
  return loss, jax.tree.map(jax.lax.stop_gradient, sums)


def explained_variance(sums: Mapping[str, jax.Array]) -> float:
  """1 - Var(G - V) / Var(G) over terms; nan when all targets are equal."""
  n = float(np.asarray(sums['terms']))
  if not n:
    return float('nan')

  def variance(name: str) -> float:
    mean = float(np.asarray(sums[name])) / n
    return float(np.asarray(sums[name + '_square'])) / n - mean**2

  total = variance('target')
  if total < 1e-12:
    return float('nan')
  return 1 - variance('residual') / total
