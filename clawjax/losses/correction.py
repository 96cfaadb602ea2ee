"""Importance weights between the sampler and the trainer.

Even with equal weights the engine's log-probs differ from the trainer's. With
d = log pi_old - log pi_rollout per term (old: recomputed by the trainer):

  truncate    w = min(exp d, cap)                      (TIS, eqs. 9 and 10)
  mask        w = exp d  if exp d <= cap, else 0       (masked IS)
  two_sided   w = exp d  if floor <= exp d <= cap, else 0   (IcePop)
  none        w = 1

`level` says what d is: of the token; of the whole sampled answer (the sum over
its call); or its mean per token (geometric). Weights carry no gradient.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

# exp(20) = 5e8: beyond every cap, far from overflow.
MAX_LOG_RATIO = 20.0


@dataclasses.dataclass(frozen=True)
class CorrectionConfig:
  """Options of `importance_weights`.

  Attributes:
    kind: see the head of this file.
    level: 'token', 'sequence' (sum over the call) or 'sequence_mean'.
    cap: upper bound of the ratio; the paper does not give its own.
    floor: lower bound, 'two_sided' only.
  """

  kind: Literal['none', 'truncate', 'mask', 'two_sided'] = 'truncate'
  level: Literal['token', 'sequence', 'sequence_mean'] = 'token'
  cap: float = 2.0
  floor: float = 0.5

  def __post_init__(self) -> None:
    if self.kind not in ('none', 'truncate', 'mask', 'two_sided'):
      raise ValueError(f'correction kind {self.kind!r} is not known')
    if self.level not in ('token', 'sequence', 'sequence_mean'):
      raise ValueError(f'correction level {self.level!r} is not known')
    if not 0 < self.floor <= 1 <= self.cap:
      raise ValueError(
        f'wanted 0 < floor <= 1 <= cap, got floor={self.floor}, cap={self.cap}'
      )


def importance_weights(
  old_logprob: jax.Array,
  rollout_logprob: jax.Array,
  mask: jax.Array,
  *,
  config: CorrectionConfig,
  term_call: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Weights of terms; all arrays are [B, E].

  Args:
    old_logprob, rollout_logprob: float32.
    mask: bool, True where the term is real.
    config: see `CorrectionConfig`.
    term_call: int32 call of each term, for the sequence levels. All terms of a
      call must be in these arrays (packing sees to that).

  Returns:
    float32 weights (0 at masked terms) and float32 {0, 1}: cut or not.
  """
  d = jnp.where(mask, old_logprob - rollout_logprob, 0.0)
  if config.level != 'token':
    assert term_call is not None, 'sequence levels want term_call'
    d = over_calls(d, mask, term_call, mean=config.level == 'sequence_mean')
  ratio = jnp.exp(jnp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO))
  over = ratio > config.cap
  if config.kind == 'none':
    weight, cut = jnp.ones_like(ratio), jnp.zeros_like(over)
  elif config.kind == 'truncate':
    weight, cut = jnp.minimum(ratio, config.cap), over
  elif config.kind == 'mask':
    weight, cut = jnp.where(over, 0.0, ratio), over
  else:
    cut = over | (ratio < config.floor)
    weight = jnp.where(cut, 0.0, ratio)
  weight = lax.stop_gradient(jnp.where(mask, weight, 0.0))
  return weight, jnp.where(mask, cut, False).astype(jnp.float32)


def over_calls(
  value: jax.Array, mask: jax.Array, term_call: jax.Array, *, mean: bool
) -> jax.Array:
  """Sum or mean of `value` over the terms of each call, back at each term.

  Args:
    value: float32 [B, E].
    mask: bool [B, E].
    term_call: int32 [B, E]; numbers up to any size, equal means same call.
    mean: divide by the number of terms.
  """
  flat = jnp.where(mask, term_call, -1).reshape(-1)
  # Number calls by first appearance in sorted order: at most B * E of them.
  _, number = jnp.unique(flat, return_inverse=True, size=flat.shape[0])
  number = number.reshape(-1)

  def total(x: jax.Array) -> jax.Array:
    x = jnp.where(mask, x, 0.0).reshape(-1)
    return jax.ops.segment_sum(x, number, num_segments=flat.shape[0])[number]

  result = total(value)
  if mean:
    result = result / jnp.maximum(total(jnp.ones_like(value)), 1.0)
  return jnp.where(mask, result.reshape(value.shape), 0.0)
