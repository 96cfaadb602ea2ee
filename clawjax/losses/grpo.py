"""The clipped policy loss of GRPO (eq. 6) and PPO (eq. 2), term by term.

Per term, with rho = exp(logp - old), advantage A, importance weight w (no
gradient, see correction.py) and k an estimate of KL(pi || ref):

  s = min(rho A, clip(rho, 1 - low, 1 + high) A)
  loss = - sum_t weight_t w_t (s_t - kl_coef k_t) - entropy_coef sum_t weight_t H_t

`weight` holds all averaging (weights.py). Everything is a sum over terms, so
microbatches and devices add up. The entropy bonus is weighted per term and not
by w: it is about the policy as it is, not about how the token was drawn.

KL estimators, with r = ref - logp:
  k1 = -r       k2 = r^2 / 2       k3 = exp r - 1 - r
k1 in a loss has a gradient of mean 0 and is of use as a metric or in the
reward; k2's gradient is that of the reverse KL; k3 is positive with low variance.

Options beyond the paper: `clip_high` apart from `clip_low` (DAPO's clip-higher),
`dual_clip` c > 1 (for A < 0 the objective is at least c A), `ratio='sequence'`
(GSPO: rho is the geometric mean over the call).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from clawjax.losses import diagnostics
from clawjax.losses.correction import (
  MAX_LOG_RATIO,
  CorrectionConfig,
  importance_weights,
  over_calls,
)


@dataclasses.dataclass(frozen=True)
class PolicyLossConfig:
  """Options of `grpo_loss`; the paper discloses none of the numbers.

  Attributes:
    clip_low, clip_high: the ratio is clipped to [1 - low, 1 + high]; high None:
      the same as low (the paper's symmetric clip).
    dual_clip: lower bound c A of the objective where A < 0; None: off.
    ratio: 'token', or 'sequence' for GSPO's mean over the call.
    kl_coef: beta, weight of the KL to the reference in the loss; 0: off.
    kl_kind: its estimator.
    entropy_coef: weight of the entropy bonus; 0: off.
    correction: sampler-trainer importance weights.
  """

  clip_low: float = 0.2
  clip_high: float | None = None
  dual_clip: float | None = None
  ratio: Literal['token', 'sequence'] = 'token'
  kl_coef: float = 0.0
  kl_kind: Literal['k1', 'k2', 'k3'] = 'k3'
  entropy_coef: float = 0.0
  correction: CorrectionConfig = CorrectionConfig()

  def __post_init__(self) -> None:
    if not 0 < self.clip_low < 1:
      raise ValueError(f'clip_low: wanted 0 < x < 1, got {self.clip_low}')
    if self.clip_high is not None and self.clip_high <= 0:
      raise ValueError(f'clip_high: wanted more than 0, got {self.clip_high}')
    if self.dual_clip is not None and self.dual_clip <= 1:
      raise ValueError(f'dual_clip: wanted more than 1, got {self.dual_clip}')
    if self.kl_kind not in ('k1', 'k2', 'k3'):
      raise ValueError(f'kl_kind: wanted k1, k2 or k3, got {self.kl_kind!r}')
    if self.ratio not in ('token', 'sequence'):
      raise ValueError(
        f"ratio: wanted 'token' or 'sequence', got {self.ratio!r}"
      )


def grpo_loss(
  logprob: jax.Array,
  *,
  old_logprob: jax.Array,
  rollout_logprob: jax.Array,
  advantage: jax.Array,
  weight: jax.Array,
  config: PolicyLossConfig,
  ref_logprob: jax.Array | None = None,
  entropy: jax.Array | None = None,
  term_call: jax.Array | None = None,
  term_depth: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The policy loss and its diagnostics; all arrays are float32 [B, E].

  Args:
    logprob: of the policy being trained; carries the gradient.
    old_logprob: of the policy before the first update of this batch.
    rollout_logprob: recorded by the sampler.
    advantage: per term.
    weight: per term; terms with weight 0 take no part, whatever they hold.
    config: see `PolicyLossConfig`.
    ref_logprob: of the reference model, wanted when kl_coef is not 0.
    entropy: of the policy at each term, wanted when entropy_coef is not 0.
    term_call: int32 call of each term, wanted by the sequence options.
    term_depth: int32 position of each term, for mismatch by depth.

  Returns:
    Scalar loss (a sum: add it over microbatches) and sums for metrics (see
    diagnostics.py). Terms with a log-prob that is not finite are left out and
    counted.
  """
  real = weight != 0
  finite = (
    jnp.isfinite(logprob)
    & jnp.isfinite(old_logprob)
    & jnp.isfinite(rollout_logprob)
  )
  if ref_logprob is not None:
    finite &= jnp.isfinite(ref_logprob)
  mask = real & finite

  def known(x: jax.Array) -> jax.Array:
    return jnp.where(mask, x, 0.0).astype(jnp.float32)

  logprob, old, rollout = map(known, (logprob, old_logprob, rollout_logprob))
  advantage, weight = known(advantage), known(weight)

  log_ratio = logprob - old
  if config.ratio == 'sequence':
    assert term_call is not None, "ratio='sequence' wants term_call"
    log_ratio = over_calls(log_ratio, mask, term_call, mean=True)
  ratio = jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
  high = config.clip_low if config.clip_high is None else config.clip_high
  plain = ratio * advantage
  clipped = jnp.clip(ratio, 1 - config.clip_low, 1 + high) * advantage
  objective = jnp.minimum(plain, clipped)
  is_clipped = clipped < plain
  if config.dual_clip is not None:
    bound = config.dual_clip * advantage
    is_clipped |= (advantage < 0) & (objective < bound)
    objective = jnp.where(
      advantage < 0, jnp.maximum(objective, bound), objective
    )

  importance, cut = importance_weights(
    old, rollout, mask, config=config.correction, term_call=term_call
  )
  per_term = -objective
  sums = diagnostics.policy_sums(
    real=real,
    mask=mask,
    weight=weight,
    logprob=logprob,
    old=old,
    rollout=rollout,
    advantage=advantage,
    clipped=is_clipped,
    importance=importance,
    cut=cut,
    entropy=None if entropy is None else known(entropy),
    depth=term_depth,
  )
  if config.kl_coef:
    assert ref_logprob is not None, 'kl_coef wants ref_logprob'
    kl = kl_estimate(logprob, known(ref_logprob), config.kl_kind)
    per_term = per_term + config.kl_coef * kl
    sums['kl_ref'] = jax.lax.stop_gradient(jnp.where(mask, kl, 0).sum())
  loss = (weight * importance * per_term).sum()
  if config.entropy_coef:
    assert entropy is not None, 'entropy_coef wants entropy'
    loss -= config.entropy_coef * (weight * known(entropy)).sum()
  sums['loss'] = jax.lax.stop_gradient(loss)
  return loss, sums


def kl_estimate(
  logprob: jax.Array, ref_logprob: jax.Array, kind: str
) -> jax.Array:
  """KL(pi || ref) per term from one sample of pi; see the head of this file."""
  r = ref_logprob - logprob
  if kind == 'k1':
    return -r
  if kind == 'k2':
    return r * r / 2
  r = jnp.clip(r, -MAX_LOG_RATIO, MAX_LOG_RATIO)
  return jnp.exp(r) - 1 - r
