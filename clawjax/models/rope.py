"""Rotary position embedding by explicit positions, with scaling.

`frequencies` gives one angle per position step for each pair of dimensions
(i, i + C/2), on the host, in float64; `angles` turns positions into cos and
sin in float32; `rotate` applies them. Scalings follow their papers: linear
(all frequencies divided), YaRN (arXiv 2309.00071: high frequencies kept, low
ones divided, a ramp between), Llama 3 (the same idea by wavelength).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from clawjax.models.config import Config, RopeScaling


def frequencies(config: Config) -> tuple[np.ndarray, float]:
  """(float32 [C/2] radians per position, factor on cos and sin)."""
  size = config.head_size
  exponent = np.arange(0, size, 2, dtype=np.float64) / size
  base = config.rope_theta**-exponent
  scaling = config.rope_scaling
  if scaling is None:
    return base.astype(np.float32), 1.0
  if scaling.kind == 'linear':
    return (base / scaling.factor).astype(np.float32), 1.0
  if scaling.kind == 'llama3':
    return _llama3(base, scaling).astype(np.float32), 1.0
  factor = scaling.attention_factor
  if factor is None:
    factor = 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
  freq = _yarn(base, scaling, size, config.rope_theta)
  return freq.astype(np.float32), factor


def _yarn(
  base: np.ndarray, scaling: RopeScaling, size: int, theta: float
) -> np.ndarray:
  def dimension(rotations: float) -> float:
    """The (fractional) pair that turns `rotations` times in the window."""
    period = scaling.original_window / (rotations * 2 * math.pi)
    return size * math.log(period) / (2 * math.log(theta))

  low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
  if scaling.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, size - 1)
  if low == high:
    high += 0.001  # an empty ramp would divide by zero
  ramp = np.clip((np.arange(size // 2) - low) / (high - low), 0, 1)
  return base * (1 - ramp) + base / scaling.factor * ramp


def _llama3(base: np.ndarray, scaling: RopeScaling) -> np.ndarray:
  turns = scaling.original_window * base / (2 * math.pi)
  low, high = scaling.low_freq_factor, scaling.high_freq_factor
  keep = np.clip((turns - low) / (high - low), 0, 1)
  return base * keep + base / scaling.factor * (1 - keep)


def angles(
  positions_BT: jax.Array, config: Config
) -> tuple[jax.Array, jax.Array]:
  """cos and sin, float32 [B, T, 1, C/2], of every position."""
  freq, factor = frequencies(config)
  angle = positions_BT[..., None, None].astype(jnp.float32) * freq
  return jnp.cos(angle) * factor, jnp.sin(angle) * factor


def rotate(x_BTHC: jax.Array, cos_sin: tuple[jax.Array, jax.Array]):
  """Turns the pair (i, i + C/2) of each head by its angle, in float32."""
  cos, sin = cos_sin
  a, b = jnp.split(x_BTHC.astype(jnp.float32), 2, axis=-1)
  out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
  return out.astype(x_BTHC.dtype)
