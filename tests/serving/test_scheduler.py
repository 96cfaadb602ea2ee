"""Samples through the scheduler equal what a plain forward says of them."""

import asyncio

import numpy as np
import pytest

from clawjax.errors import EngineError
from clawjax.types import SamplingParams

from .conftest import (
  make_params,
  plain_forward,
  reference_logits,
  reference_logprobs,
)


def prompt(length, seed=0):
  return np.random.default_rng(seed).integers(0, 97, length).astype(np.int32)


async def test_logprobs_equal_a_plain_forward(scheduler, params):
  client = scheduler.client()
  samples = await asyncio.gather(
    *[
      client.sample(
        prompt(n, n), SamplingParams(temperature=t, max_tokens=21, seed=n)
      )
      for n, t in [
        (1, 1.0),
        (7, 1.0),
        (8, 0.7),
        (9, 1.3),
        (100, 1.0),
        (150, 0.5),
      ]
    ]
  )
  for sample, (n, t) in zip(
    samples,
    [(1, 1.0), (7, 1.0), (8, 0.7), (9, 1.3), (100, 1.0), (150, 0.5)],
    strict=True,
  ):
    assert sample.finish == 'length' and len(sample.token_ids) == 21
    want = reference_logprobs(params, prompt(n, n), sample.token_ids, t)
    np.testing.assert_allclose(sample.logprobs, want, atol=1e-4)
    raw = reference_logprobs(params, prompt(n, n), sample.token_ids)
    np.testing.assert_allclose(sample.raw_logprobs, raw, atol=1e-4)


async def test_greedy_is_the_argmax_and_a_point_mass(scheduler, params):
  sample = await scheduler.client().sample(
    prompt(20), SamplingParams(temperature=0, max_tokens=12)
  )
  ids = prompt(20).tolist()
  for token in sample.token_ids:
    assert token == reference_logits(params, ids)[-1].argmax()
    ids.append(int(token))
  np.testing.assert_array_equal(sample.logprobs, np.zeros(12, np.float32))
  want = reference_logprobs(params, prompt(20), sample.token_ids)
  np.testing.assert_allclose(sample.raw_logprobs, want, atol=1e-4)


async def test_draws_do_not_depend_on_the_batch(scheduler):
  client = scheduler.client()

  def one(i):
    return client.sample(
      prompt(30 + 9 * i, i), SamplingParams(max_tokens=20, seed=1000 + i)
    )

  alone = [await one(i) for i in range(6)]
  together = await asyncio.gather(*[one(i) for i in reversed(range(6))])
  for a, b in zip(alone, reversed(together), strict=True):
    np.testing.assert_array_equal(a.token_ids, b.token_ids)
    np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
  other = await client.sample(
    prompt(30, 0), SamplingParams(max_tokens=20, seed=999)
  )
  assert (other.token_ids != alone[0].token_ids).any()


async def test_next_call_prefills_only_what_is_new(scheduler, params):
  client = scheduler.client()
  ids, prefilled = prompt(45), 0
  for turn in range(5):
    before = scheduler.stats()['prefilled_tokens']
    sample = await client.sample(ids, SamplingParams(max_tokens=11, seed=turn))
    after = scheduler.stats()['prefilled_tokens']
    # All but the prompt's last token (decode feeds it) and what is cached:
    # everything so far but the last token drawn.
    want = 44 if turn == 0 else len(ids) - 1 - prefilled
    assert after - before == want
    assert sample.reused_tokens == (0 if turn == 0 else prefilled)
    prefilled = len(ids) + 10
    want = reference_logprobs(params, ids, sample.token_ids)
    np.testing.assert_allclose(sample.logprobs, want, atol=1e-4)
    ids = np.concatenate([ids, sample.token_ids, prompt(7, turn)])


async def test_siblings_share_the_stem(scheduler):
  client = scheduler.client()
  stem = prompt(100)
  samples = await asyncio.gather(
    *[
      client.sample(
        np.concatenate([stem, prompt(5, 50 + i)]),
        SamplingParams(max_tokens=5, seed=i),
        session_id=str(i),
      )
      for i in range(4)
    ]
  )
  # Twelve pages of 8 whole, and the first half of the 13th, which is copied.
  assert sorted(s.reused_tokens for s in samples) == [0, 100, 100, 100]


async def test_stop_id_stays_in_the_ids(scheduler):
  client = scheduler.client()
  free = await client.sample(prompt(9), SamplingParams(max_tokens=30, seed=4))
  stop = int(free.token_ids[13])
  at = free.token_ids.tolist().index(stop)
  sample = await client.sample(
    prompt(9), SamplingParams(max_tokens=30, seed=4, stop_ids=(96, stop))
  )
  if 96 not in free.token_ids[:at]:
    assert sample.finish == 'stop'
    np.testing.assert_array_equal(sample.token_ids, free.token_ids[: at + 1])


async def test_stop_string_cuts_after_the_token_that_completes_it(scheduler):
  client = scheduler.client()
  free = await client.sample(prompt(9), SamplingParams(max_tokens=30, seed=4))
  pair = ''.join(chr(48 + i) for i in free.token_ids[10:12])
  text = ''.join(chr(48 + i) for i in free.token_ids)
  end = text.index(pair) + 2
  sample = await client.sample(
    prompt(9), SamplingParams(max_tokens=30, seed=4, stop=(pair,))
  )
  assert sample.finish == 'stop'
  np.testing.assert_array_equal(sample.token_ids, free.token_ids[:end])


async def test_window_ends_a_sample(scheduler):
  sample = await scheduler.client().sample(prompt(250), SamplingParams())
  assert sample.finish == 'context_full' and len(sample.token_ids) == 6


@pytest.mark.parametrize(
  ('ids', 'sampling', 'kind'),
  [
    (prompt(256), SamplingParams(), 'too_long'),
    (prompt(0), SamplingParams(), 'bad_request'),
    (np.array([97], np.int32), SamplingParams(), 'bad_request'),
    (prompt(3), SamplingParams(top_p=0), 'bad_request'),
    (prompt(3), SamplingParams(temperature=float('nan')), 'bad_request'),
    (prompt(3), SamplingParams(max_tokens=0), 'bad_request'),
  ],
)
async def test_refusals_have_a_name(scheduler, ids, sampling, kind):
  with pytest.raises(EngineError) as error:
    await scheduler.client().sample(ids, sampling)
  assert error.value.kind == kind


async def test_cancel_frees_the_slot(scheduler):
  client = scheduler.client()
  task = asyncio.create_task(client.sample(prompt(9), SamplingParams()))
  while not scheduler.stats()['decoding']:
    await asyncio.sleep(0.01)
  task.cancel()
  with pytest.raises(asyncio.CancelledError):
    await task
  sample = await client.sample(prompt(9), SamplingParams(max_tokens=3))
  assert len(sample.token_ids) == 3
  assert scheduler.stats()['cancelled'] == 1


async def test_new_weights_between_tokens(scheduler, params):
  """Each token's log-prob is that of the version it is stamped with."""
  client = scheduler.client()
  new = make_params(1)
  ids = prompt(9)
  task = asyncio.create_task(
    client.sample(ids, SamplingParams(max_tokens=200, seed=3))
  )
  while scheduler.stats()['steps'] < 20:
    await asyncio.sleep(0.005)
  await asyncio.to_thread(scheduler.load_params, new, 7)
  sample = await task
  versions = sample.token_versions
  assert set(versions) == {0, 7} and (np.diff(versions) >= 0).all()
  assert sample.policy_version == 0
  cut = int((versions == 0).sum())
  old_want = reference_logprobs(params, ids, sample.token_ids)
  new_want = reference_logprobs(new, ids, sample.token_ids)
  np.testing.assert_allclose(sample.logprobs[:cut], old_want[:cut], atol=1e-4)
  np.testing.assert_allclose(sample.logprobs[cut:], new_want[cut:], atol=1e-4)
  after = await client.sample(ids, SamplingParams(max_tokens=3, seed=3))
  assert after.policy_version == 7
  want = reference_logprobs(new, ids, after.token_ids)
  np.testing.assert_allclose(after.logprobs, want, atol=1e-4)


async def test_nothing_cached_survives_new_weights(scheduler, params):
  client = scheduler.client()
  await client.sample(prompt(50), SamplingParams(max_tokens=3))
  await asyncio.to_thread(scheduler.load_params, params, 1)
  sample = await client.sample(prompt(50), SamplingParams(max_tokens=3))
  assert sample.reused_tokens == 0 and sample.policy_version == 1


async def test_weights_that_do_not_fit_leave_the_old_ones(scheduler, params):
  client = scheduler.client()
  before = await client.sample(prompt(5), SamplingParams(max_tokens=5, seed=1))
  bad = {**params, 'final_norm': np.ones(3, np.float32)}
  with pytest.raises(EngineError, match='final_norm'):
    await asyncio.to_thread(scheduler.load_params, bad, 9)
  after = await client.sample(prompt(5), SamplingParams(max_tokens=5, seed=1))
  assert after.policy_version == 0
  np.testing.assert_array_equal(before.token_ids, after.token_ids)


async def test_poisoned_weights_fail_the_request_by_name(scheduler, params):
  bad = {**params, 'final_norm': params['final_norm'] * np.nan}
  await asyncio.to_thread(scheduler.load_params, bad, 1)
  with pytest.raises(EngineError) as error:
    await scheduler.client().sample(prompt(5), SamplingParams(max_tokens=5))
  assert error.value.kind == 'non_finite'


async def test_routes_cover_all_but_the_last_token(scheduler, params):
  client = scheduler.client()
  ids = prompt(40)
  for seed in range(2):  # the second time from the cache
    sample = await client.sample(
      ids, SamplingParams(max_tokens=9, seed=seed, return_routes=True)
    )
    every = np.zeros(256, np.int32)
    every[:49] = np.concatenate([ids, sample.token_ids])
    want = np.asarray(plain_forward(params, every)[1])
    got = np.concatenate([sample.prompt_routes, sample.routes])
    np.testing.assert_array_equal(got[:-1], want[:48])
    assert (got[-1] == -1).all()
  assert sample.reused_tokens
