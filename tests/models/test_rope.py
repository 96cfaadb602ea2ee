"""Rotary angles and their scalings, by hand."""

import math

import jax.numpy as jnp
import numpy as np

from clawjax.models import rope
from clawjax.models.config import Config, RopeScaling

PLAIN = Config.tiny(head_size=8, heads=1, kv_heads=1, rope_theta=10_000.0)


def test_frequencies_are_powers_of_theta():
  # 10000 ** -(0, 2/8, 4/8, 6/8)
  freq, factor = rope.frequencies(PLAIN)
  np.testing.assert_allclose(freq, [1, 0.1, 0.01, 0.001], rtol=1e-6)
  assert factor == 1


def test_a_quarter_turn_moves_the_first_half_into_the_second():
  # Pair (0, 4) turns by 90 degrees: (1, 0) -> (0, 1). Others hold zeros.
  x = jnp.zeros((1, 1, 1, 8)).at[..., 0].set(1.0)
  quarter = jnp.full((1, 1, 1, 4), math.pi / 2)
  out = rope.rotate(x, (jnp.cos(quarter), jnp.sin(quarter)))
  np.testing.assert_allclose(out[0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0], atol=1e-6)


def test_linear_scaling_divides_all():
  scaled = PLAIN.replace(
    rope_scaling=RopeScaling(kind='linear', factor=4, original_window=32)
  )
  freq, _ = rope.frequencies(scaled)
  np.testing.assert_allclose(freq, np.array([1, 0.1, 0.01, 0.001]) / 4)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones():
  """Window 200 pi: pair i turns 100 * 10 ** -i times in it.

  32 turns fall at pair log10(100 / 32) = 0.49 -> 0, 1 turn at pair 2 -> 2; so
  pair 0 is kept, pair 1 is half way, pairs 2 and 3 are divided by 4.
  """
  scaled = PLAIN.replace(
    rope_scaling=RopeScaling(
      kind='yarn', factor=4, original_window=200 * math.pi
    )
  )
  freq, factor = rope.frequencies(scaled)
  half = (0.1 + 0.1 / 4) / 2
  np.testing.assert_allclose(freq, [1, half, 0.0025, 0.00025], rtol=1e-6)
  assert factor == 0.1 * math.log(4) + 1


def test_llama3_scaling_by_wavelength():
  """Window 20 pi: 10, 1, 0.1, 0.01 turns.

  More than 4 turns: kept. Fewer than 1: divided by 8. Just 1: divided too.
  """
  scaled = PLAIN.replace(
    rope_scaling=RopeScaling(
      kind='llama3', factor=8, original_window=20 * math.pi
    )
  )
  freq, factor = rope.frequencies(scaled)
  want = [1, 0.1 / 8, 0.01 / 8, 0.001 / 8]
  np.testing.assert_allclose(freq, want, rtol=1e-5)
  assert factor == 1
