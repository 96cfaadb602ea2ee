"""Sums that become metrics, so that microbatches and devices just add up.

A training step adds the dicts of its microbatches with `add` and turns the
total into means with `finish` on the host. Keys that begin with 'max/' are
maxima. Means are over real terms; 'loss' is a sum already.

The two comparisons that matter: old against rollout (does the trainer see what
the sampler saw? k3 grows when a position, a template or a weight is wrong) and
new against old (how far has this batch moved the policy?).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from clawjax.losses.correction import MAX_LOG_RATIO

# Depth bins: [0, 64), [64, 128), [128, 256), ... the last one is open.
DEPTH_BINS = 12
_FIRST_BIN = 64


def policy_sums(
  *,
  real: jax.Array,
  mask: jax.Array,
  weight: jax.Array,
  logprob: jax.Array,
  old: jax.Array,
  rollout: jax.Array,
  advantage: jax.Array,
  clipped: jax.Array,
  importance: jax.Array,
  cut: jax.Array,
  entropy: jax.Array | None,
  depth: jax.Array | None,
) -> dict[str, jax.Array]:
  """Sums over terms; arrays are [B, E], unknown numbers already 0."""

  def total(x: jax.Array) -> jax.Array:
    return jnp.where(mask, x, 0.0).astype(jnp.float32).sum()

  mismatch = old - rollout
  moved = logprob - old
  sums = {
    'terms': total(jnp.ones_like(old)),
    'non_finite': (real & ~mask).astype(jnp.float32).sum(),
    'weight': weight.sum(),
    'advantage': total(advantage),
    'advantage_abs': total(jnp.abs(advantage)),
    'logprob': total(logprob),
    'rollout_logprob': total(rollout),
    'mismatch_k1': total(-mismatch),
    'mismatch_k3': total(_k3(mismatch)),
    'mismatch_abs': total(jnp.abs(mismatch)),
    'max/mismatch': jnp.where(mask, jnp.abs(mismatch), 0.0).max(initial=0.0),
    'moved_k1': total(-moved),
    'moved_k3': total(_k3(moved)),
    'max/ratio': jnp.where(mask, jnp.abs(jnp.exp(_cut(moved)) - 1), 0.0).max(
      initial=0.0
    ),
    'clipped': total(clipped),
    'importance': total(importance),
    'importance_cut': total(cut),
  }
  if entropy is not None:
    sums['entropy'] = total(entropy)
  if depth is not None:
    octave = jnp.log2(jnp.maximum(depth, 1) / _FIRST_BIN)
    number = jnp.clip(jnp.floor(octave) + 1, 0, DEPTH_BINS - 1)
    number = number.astype(jnp.int32)
    hot = (number[..., None] == jnp.arange(DEPTH_BINS)) & mask[..., None]
    sums['depth_terms'] = hot.astype(jnp.float32).sum((0, 1))
    sums['depth_mismatch_abs'] = jnp.where(
      hot, jnp.abs(mismatch)[..., None], 0.0
    ).sum((0, 1))
  return jax.tree.map(jax.lax.stop_gradient, sums)


def add(
  a: Mapping[str, jax.Array], b: Mapping[str, jax.Array]
) -> dict[str, jax.Array]:
  """Sums of two microbatches."""
  return {
    k: jnp.maximum(a[k], b[k]) if k.startswith('max/') else a[k] + b[k]
    for k in a
  }


def finish(sums: Mapping[str, jax.Array]) -> dict[str, float]:
  """Means over real terms, on the host; nan where there are none."""
  host = {k: np.asarray(v, np.float64) for k, v in sums.items()}
  terms = float(host.pop('terms'))
  metrics = {'terms': terms}
  for key in ('loss', 'weight', 'non_finite'):
    if key in host:
      metrics[key] = float(host.pop(key))
  counts = host.pop('depth_terms', None)
  by_depth = host.pop('depth_mismatch_abs', None)
  if counts is not None and by_depth is not None:
    for i in np.flatnonzero(counts):
      low = 0 if i == 0 else _FIRST_BIN * 2 ** (i - 1)
      metrics[f'mismatch_abs_depth_{low}'] = float(by_depth[i] / counts[i])
  for key, value in host.items():
    if key.startswith('max/'):
      metrics['max_' + key[4:]] = float(value)
    else:
      metrics[key] = float(value / terms) if terms else float('nan')
  return metrics


# Of an optimiser step as a whole; everything else is a mean over its terms.
_BY_STEP = frozenset(
  {
    'terms',
    'loss',
    'weight',
    'grad_norm',
    'update_norm',
    'skipped',
    'value_loss',
    'value_grad_norm',
    'value_skipped',
  }
)


def combine(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """Numbers of several optimiser steps as one.

  Maxima are maxima, 'non_finite' is a sum, means over terms stay means over
  all terms, and what belongs to a step as a whole is the mean over steps.
  """
  out = {}
  for name in dict.fromkeys(n for numbers in steps for n in numbers):
    having = [numbers for numbers in steps if name in numbers]
    values = [numbers[name] for numbers in having]
    if name.startswith('max_'):
      out[name] = float(np.max(values))
    elif name == 'non_finite':
      out[name] = float(np.sum(values))
    elif name in _BY_STEP:
      out[name] = float(np.mean(values))
    else:
      terms = np.array([numbers.get('terms', 1.0) for numbers in having])
      seen = np.where(terms > 0, values, 0.0)
      total = terms.sum()
      out[name] = float(terms @ seen / total) if total else float('nan')
  return out


def _cut(log_ratio: jax.Array) -> jax.Array:
  return jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def _k3(log_ratio: jax.Array) -> jax.Array:
  """exp(d) - 1 - d: KL(sampler || d's other side), never negative."""
  d = _cut(log_ratio)
  return jnp.exp(d) - 1 - d
