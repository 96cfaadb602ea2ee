"""Cuts by hand, draws by frequency, replay of the sets drawn from."""

import asyncio

import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.serving import sampler
from clawjax.serving.scheduler import Scheduler
from clawjax.types import SamplingParams

from .conftest import make_engine, reference_logits

# Probabilities 0.4, 0.3, 0.2, 0.1 of tokens 2, 0, 3, 1.
PROBS = np.array([0.3, 0.1, 0.4, 0.2], np.float32)


def draws(
  rows=1, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=None
):
  seeds = range(rows) if seeds is None else seeds
  return sampler.Draws(
    jnp.full(rows, temperature, jnp.float32),
    jnp.full(rows, top_k, jnp.int32),
    jnp.full(rows, top_p, jnp.float32),
    jnp.full(rows, min_p, jnp.float32),
    jnp.array([sampler.split_seed(s) for s in seeds], jnp.uint32),
  )


@pytest.mark.parametrize(
  ('cuts', 'want'),
  [
    ({}, [0, 1, 2, 3]),
    ({'top_k': 1}, [2]),
    ({'top_k': 3}, [0, 2, 3]),
    ({'top_k': 9}, [0, 1, 2, 3]),
    # Mass before 2, 0, 3, 1: 0, .4, .7, .9.
    ({'top_p': 0.39}, [2]),
    ({'top_p': 0.41}, [0, 2]),
    ({'top_p': 0.75}, [0, 2, 3]),
    ({'top_p': 1e-6}, [2]),
    # 0.6 of the largest, 0.24: keeps .4 and .3.
    ({'min_p': 0.6}, [0, 2]),
    ({'min_p': 1.0}, [2]),
    # top_k first: 2 and 0 are left with 4/7 and 3/7; .55 needs only one.
    ({'top_k': 2, 'top_p': 0.55}, [2]),
    # Without top_k, .55 needs two.
    ({'top_p': 0.55}, [0, 2]),
    # top_p before min_p: min_p looks at the ratio, which no cut changes.
    ({'top_p': 0.95, 'min_p': 0.45}, [0, 2, 3]),
  ],
)
def test_cuts_by_hand(cuts, want):
  logits = jnp.log(jnp.asarray(PROBS))[None]
  keep = sampler.kept(logits, draws(**cuts))
  assert np.flatnonzero(keep[0]).tolist() == want


def test_temperature_comes_before_the_cuts():
  # At temperature 2 probabilities go as square roots: .632 .548 .447 .316,
  # normalised .325 .282 .230 .163; the mass before them is 0 .325 .607 .837.
  logits = jnp.log(jnp.asarray(PROBS))[None]
  out = sampler.sample(
    logits,
    draws(temperature=2.0, top_p=0.6),
    jnp.int32(0),
    jnp.zeros(1, jnp.int32),
  )
  assert np.flatnonzero(out.keep_BV[0]).tolist() == [0, 2]
  token = int(out.token_B[0])
  roots = np.sqrt(PROBS)
  want = np.log(roots[token] / (roots[0] + roots[2]))
  np.testing.assert_allclose(out.logprob_B[0], want, rtol=1e-5)
  np.testing.assert_allclose(
    out.raw_logprob_B[0], np.log(PROBS[token]), rtol=1e-5
  )


def test_ties_go_to_the_lower_id():
  keep = sampler.kept(jnp.zeros((1, 5)), draws(top_k=2))
  assert np.flatnonzero(keep[0]).tolist() == [0, 1]


@pytest.mark.parametrize('cuts', [{}, {'top_k': 3}])
def test_frequencies_are_the_probabilities(cuts):
  rows = 20_000
  logits = jnp.tile(jnp.log(jnp.asarray(PROBS)), (rows, 1))
  out = sampler.sample(
    logits, draws(rows, **cuts), jnp.int32(3), jnp.zeros(rows, jnp.int32)
  )
  want = PROBS.astype(np.float64)
  if cuts:
    want[1] = 0
  want /= want.sum()
  got = np.bincount(out.token_B, minlength=4) / rows
  # Five standard deviations of a frequency of 20,000 draws.
  assert (np.abs(got - want) <= 5 * np.sqrt(want * (1 - want) / rows)).all()


def test_frequencies_over_a_vocabulary_of_many_parts():
  """150 ids are cut into parts of three; ids of weight 0 are never drawn."""
  rows = 40_000
  rng = np.random.default_rng(0)
  weight = rng.exponential(size=150) * (rng.random(150) < 0.7)
  weight[147:] = 0
  logits = np.full(150, -np.inf, np.float32)
  logits[weight > 0] = np.log(weight[weight > 0])
  out = sampler.sample(
    jnp.tile(jnp.asarray(logits), (rows, 1)),
    draws(rows),
    jnp.int32(0),
    jnp.full(rows, 7, jnp.int32),
  )
  want = weight / weight.sum()
  got = np.bincount(out.token_B, minlength=150) / rows
  assert (got[want == 0] == 0).all()
  # 150 frequencies, so five standard deviations, and half a draw for the rare.
  slack = 5 * np.sqrt(want * (1 - want) / rows) + 0.5 / rows
  assert (np.abs(got - want) <= slack).all()
  np.testing.assert_allclose(
    out.logprob_B, np.log(want[np.asarray(out.token_B)]), atol=1e-5
  )


def test_seed_version_and_index_each_change_the_numbers():
  def numbers(seed, version, index):
    seeds = jnp.array([sampler.split_seed(seed)], jnp.uint32)
    return np.asarray(
      sampler.uniforms(seeds, jnp.int32(version), jnp.array([index]))
    )

  base = numbers(1, 2, 3)
  np.testing.assert_array_equal(base, numbers(1, 2, 3))
  for other in [(2, 2, 3), (1 << 40, 2, 3), (1, 3, 3), (1, 2, 4), (1, 3, 2)]:
    assert (numbers(*other) != base).all()


def test_greedy_and_drawn_rows_share_a_batch():
  logits = jnp.tile(jnp.log(jnp.asarray(PROBS)), (3, 1))
  mixed = draws(3)._replace(temperature_B=jnp.array([0.0, 1.0, 0.0]))
  index = jnp.arange(3, dtype=jnp.int32)
  out = sampler.sample(logits, mixed, jnp.int32(0), index)
  alone = sampler.sample(logits, draws(3), jnp.int32(0), index)
  assert out.token_B[0] == out.token_B[2] == 2
  assert out.token_B[1] == alone.token_B[1]
  np.testing.assert_array_equal(out.logprob_B[jnp.array([0, 2])], 0)


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_a_nan_shows_in_both_numbers(temperature):
  logits = jnp.array([[0.0, jnp.nan, 1.0]])
  out = sampler.sample(
    logits,
    draws(temperature=temperature),
    jnp.int32(0),
    jnp.zeros(1, jnp.int32),
  )
  assert not np.isfinite(out.logprob_B[0])
  assert not np.isfinite(out.raw_logprob_B[0])


def test_kept_sets_replay_the_distribution(params):
  """Masking a plain forward to the recorded ids gives the log-probs back."""
  engine = make_engine(params, record_kept=16, slots=2)
  scheduler = Scheduler(engine).start()
  prompt = np.arange(10, dtype=np.int32)
  heat = 0.8

  async def draw():
    return await asyncio.gather(
      scheduler.client().sample(
        prompt,
        SamplingParams(
          temperature=heat, top_k=12, top_p=0.9, max_tokens=15, seed=3
        ),
      ),
      scheduler.client().sample(prompt, SamplingParams(max_tokens=4)),
    )

  sample, uncut = asyncio.run(draw())
  scheduler.stop()
  logits = reference_logits(params, [*prompt, *sample.token_ids]) / heat
  for i, (token, kept) in enumerate(
    zip(sample.token_ids, sample.kept, strict=True)
  ):
    row = logits[len(prompt) - 1 + i].astype(np.float64)
    assert 1 <= len(kept) <= 12 and token in kept
    want = row[token] - np.log(np.exp(row[kept]).sum())
    np.testing.assert_allclose(sample.logprobs[i], want, atol=1e-4)
  assert uncut.kept == (None,) * 4  # 97 ids are more than 16
