"""Draws one token per slot and says how likely it was, twice.

The order is temperature, top_k, top_p, min_p; each cut works on what the one
before it left. Two log-probs come back, both natural and float32: under the
distribution that was sampled from, and under the untouched softmax. Greedy
(temperature 0) is a point mass, so its first log-prob is exactly 0.

A draw takes two uniform numbers and inverts the distribution twice: first the
one over 64 equal parts of the vocabulary, then the one within the part. The
numbers are a function of (seed, policy version, token index), never of the
batch or the slot: the same request draws the same tokens alone and among 64
others. (A Gumbel number per token and an argmax would do as well, but cost more
than the model does at a batch of 32 on a CPU.) Sorting the vocabulary is dear
too, so it is skipped on the device when no slot of the batch asks for a cut.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_PARTS = 64  # a mesh that cuts the vocabulary in 2, 4, ... cuts the parts too


class Draws(NamedTuple):
  """How each slot samples.

  Attributes:
    temperature_B: float32; 0 means greedy.
    top_k_B: int32; 0 keeps all.
    top_p_B: float32; 1 keeps all.
    min_p_B: float32; 0 keeps all.
    seed_B2: uint32, high and low half of the request's 63-bit seed.
  """

  temperature_B: jax.Array | np.ndarray
  top_k_B: jax.Array | np.ndarray
  top_p_B: jax.Array | np.ndarray
  min_p_B: jax.Array | np.ndarray
  seed_B2: jax.Array | np.ndarray


class Drawn(NamedTuple):
  """What came out: int32 token, its two log-probs and the size of its set.

  Attributes:
    token_B: int32.
    logprob_B: float32 under the distribution sampled from.
    raw_logprob_B: float32 under the plain softmax.
    keep_BV: bool, the tokens that could have been drawn.
  """

  token_B: jax.Array
  logprob_B: jax.Array
  raw_logprob_B: jax.Array
  keep_BV: jax.Array


def split_seed(seed: int) -> tuple[int, int]:
  """(high, low) uint32 halves of a 63-bit seed."""
  return (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF


def uniforms(
  seed_B2: jax.Array, version: jax.Array, index_B: jax.Array
) -> jax.Array:
  """float32 [B, 2] in [0, 1); row b depends on its own arguments only."""

  def row(seed_2, index):
    key = jax.random.wrap_key_data(seed_2, impl='threefry2x32')
    key = jax.random.fold_in(key, version)
    key = jax.random.fold_in(key, index)
    return jax.random.uniform(key, (2,), jnp.float32)

  return jax.vmap(row)(seed_B2, index_B)


def _invert(weight_BN: jax.Array, uniform_B: jax.Array) -> jax.Array:
  """int32 [B]: n with probability weight[n] / sum; never one of weight 0."""
  size = weight_BN.shape[1]
  mass_BN = jnp.cumsum(weight_BN, axis=1)
  over_BN = mass_BN > (uniform_B * mass_BN[:, -1])[:, None]
  hit_B = _first(over_BN & (weight_BN > 0))
  # Sums in another order may round the last mass down: take the likeliest.
  best_B = _first(weight_BN == weight_BN.max(axis=1, keepdims=True))
  return jnp.minimum(jnp.where(hit_B < size, hit_B, best_B), size - 1)


def _first(hit_BN: jax.Array) -> jax.Array:
  """int32 [B]: the first place that holds; N where none does."""
  size = hit_BN.shape[1]
  place_N = jnp.arange(size, dtype=jnp.int32)
  return jnp.where(hit_BN, place_N, size).min(axis=1)


def kept(scaled_BV: jax.Array, draws: Draws) -> jax.Array:
  """The tokens that top_k, then top_p, then min_p leave: bool [B, V].

  Ties are broken towards the lower id. The likeliest token is always kept.

  Args:
    scaled_BV: float32 logits, temperature already applied.
    draws: the cuts.
  """
  vocab = scaled_BV.shape[-1]
  order_BV = jnp.argsort(-scaled_BV, axis=-1, stable=True)
  sorted_BV = jnp.take_along_axis(scaled_BV, order_BV, axis=-1)
  rank_V = jnp.arange(vocab)
  limit_B = jnp.where(draws.top_k_B > 0, draws.top_k_B, vocab)
  keep_BV = rank_V < limit_B[:, None]
  prob_BV = jax.nn.softmax(jnp.where(keep_BV, sorted_BV, -jnp.inf), axis=-1)
  # A token stays while the mass before it is still short of top_p.
  before_BV = jnp.cumsum(prob_BV, axis=-1) - prob_BV
  nucleus_BV = (before_BV < draws.top_p_B[:, None]) | (
    draws.top_p_B[:, None] >= 1
  )
  keep_BV &= nucleus_BV
  keep_BV &= prob_BV >= draws.min_p_B[:, None] * prob_BV[:, :1]
  keep_BV = keep_BV.at[:, 0].set(True)
  rows_B1 = jnp.arange(scaled_BV.shape[0])[:, None]
  return jnp.zeros_like(keep_BV).at[rows_B1, order_BV].set(keep_BV)


def sample(
  logits_BV: jax.Array, draws: Draws, version: jax.Array, index_B: jax.Array
) -> Drawn:
  """Draws one token per row.

  Args:
    logits_BV: float32.
    draws: how each row samples.
    version: int32 policy version.
    index_B: int32 number of the token within its answer.
  """
  assert logits_BV.ndim == 2 and logits_BV.dtype == jnp.float32
  rows, vocab = logits_BV.shape
  greedy_B = draws.temperature_B <= 0
  heat_B = jnp.where(greedy_B, 1.0, draws.temperature_B)
  scaled_BV = logits_BV / heat_B[:, None]
  cut = jnp.any((draws.top_k_B > 0) | (draws.top_p_B < 1) | (draws.min_p_B > 0))
  keep_BV = jax.lax.cond(
    cut,
    lambda: kept(scaled_BV, draws),
    lambda: jnp.ones(scaled_BV.shape, bool),
  )
  masked_BV = jnp.where(keep_BV, scaled_BV, -jnp.inf)
  # No cut drops the likeliest token, so the top of all is the top of the kept.
  raw_top_B = logits_BV.max(axis=1)
  top_B = raw_top_B / heat_B
  size = -(-vocab // _PARTS)
  padding = ((0, 0), (0, _PARTS * size - vocab))
  masked_BPS = jnp.pad(masked_BV, padding, constant_values=-jnp.inf)
  masked_BPS = masked_BPS.reshape(rows, _PARTS, size)
  mass_BP = jnp.exp(masked_BPS - top_B[:, None, None]).sum(-1)
  uniform_B2 = uniforms(draws.seed_B2, version, index_B)
  part_B = _invert(mass_BP, uniform_B2[:, 0])
  masked_BS = jnp.take_along_axis(masked_BPS, part_B[:, None, None], 1)[:, 0]
  place_B = _invert(jnp.exp(masked_BS - top_B[:, None]), uniform_B2[:, 1])
  token_B = jax.lax.cond(
    greedy_B.any(),
    lambda: jnp.where(
      greedy_B, _first(logits_BV == raw_top_B[:, None]), part_B * size + place_B
    ),
    lambda: part_B * size + place_B,
  )
  token_B = jnp.minimum(token_B, vocab - 1)  # after nan, anything goes

  def at_token(values_BV):
    return jnp.take_along_axis(values_BV, token_B[:, None], axis=-1)[:, 0]

  lse_B = top_B + jnp.log(mass_BP.sum(-1))
  raw_lse_B = jax.lax.cond(
    cut | jnp.any(heat_B != 1),
    lambda: jax.nn.logsumexp(logits_BV, axis=-1),
    lambda: lse_B,
  )
  raw_B = at_token(logits_BV) - raw_lse_B
  logprob_B = at_token(masked_BV) - lse_B
  # A poisoned row must show in both numbers, also when it was greedy.
  logprob_B = jnp.where(greedy_B, raw_B * 0, logprob_B)
  return Drawn(token_B, logprob_B, raw_B, keep_BV)
