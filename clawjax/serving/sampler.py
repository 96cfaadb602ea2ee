"""Draws one token per slot and says how likely it was, twice.

The order is temperature, top_k, top_p, min_p; each cut works on what the one
before it left. Two log-probs come back, both natural and float32: under the
distribution that was sampled from, and under the untouched softmax. Greedy
(temperature 0) is a point mass, so its first log-prob is exactly 0.

Noise is a function of (seed, policy version, token index) and of the token id,
never of the batch or the slot: the same request draws the same tokens alone
and among 64 others. Sorting the vocabulary is the dear part, so it is skipped
on the device when no slot of the batch asks for a cut.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


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


def noise(
  seed_B2: jax.Array, version: jax.Array, index_B: jax.Array, vocab: int
) -> jax.Array:
  """Gumbel noise float32 [B, V]; row b depends on its own arguments only."""

  def row(seed_2, index):
    key = jax.random.wrap_key_data(seed_2, impl='threefry2x32')
    key = jax.random.fold_in(key, version)
    key = jax.random.fold_in(key, index)
    return jax.random.gumbel(key, (vocab,), jnp.float32)

  return jax.vmap(row)(seed_B2, index_B)


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
  noisy_BV = masked_BV + noise(
    draws.seed_B2, version, index_B, logits_BV.shape[-1]
  )
  token_B = jnp.where(
    greedy_B, jnp.argmax(logits_BV, axis=-1), jnp.argmax(noisy_BV, axis=-1)
  ).astype(jnp.int32)

  def at_token(values_BV):
    return jnp.take_along_axis(values_BV, token_B[:, None], axis=-1)[:, 0]

  raw_B = at_token(logits_BV) - jax.nn.logsumexp(logits_BV, axis=-1)
  logprob_B = at_token(masked_BV) - jax.nn.logsumexp(masked_BV, axis=-1)
  # A poisoned row must show in both numbers, also when it was greedy.
  logprob_B = jnp.where(greedy_B, raw_B * 0, logprob_B)
  return Drawn(token_B, logprob_B, raw_B, keep_BV)
