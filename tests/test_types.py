"""Records survive JSON; the sampling seed depends on its three parts."""

import json

import numpy as np
import pytest

from clawjax import types


def _rollout():
  sample = types.Sample(
    token_ids=np.array([5, 6], np.int32),
    logprobs=np.array([-0.1, -1.7], np.float32),
    finish='stop',
    policy_version=3,
    routes=np.array([[[0, 1]], [[-1, -1]]], np.int16),
  )
  call = types.Call(
    call_id='c0',
    rollout_id='r',
    index=0,
    prompt_ids=np.array([1, 2, 3], np.int32),
    sample=sample,
    params=types.SamplingParams(stop=('x',), stop_ids=(9,), seed=2**62),
    normalised=('clock',),
  )
  failed = types.Call(
    'c1', 'r', 1, np.array([1], np.int32), None, status='error'
  )
  return types.Rollout('r', 't', 'pi', calls=(call, failed), reward=0.5)


def test_json_round_trip_is_exact():
  rollout = _rollout()
  text = types.dumps(rollout)
  back = types.rollout_from_json(json.loads(text))
  assert types.dumps(back) == text
  sample = back.calls[0].sample
  assert sample.logprobs.dtype == np.float32
  np.testing.assert_array_equal(
    sample.logprobs, rollout.calls[0].sample.logprobs
  )
  assert back.calls[0].params == rollout.calls[0].params
  assert back.calls[1].sample is None and not back.calls[1].trainable


def test_non_finite_logprobs_are_refused():
  bad = types.Sample(
    np.array([1], np.int32), np.array([np.nan], np.float32), 'stop'
  )
  with pytest.raises(ValueError, match='finite'):
    types.to_json(bad)


def test_validity_follows_outcome_and_reward():
  rollout = _rollout()
  assert rollout.valid
  for outcome, valid in [
    ('timeout', True),
    ('harness_error', True),
    ('infra_error', False),
    ('verifier_error', False),
  ]:
    changed = types.Rollout('r', 't', 'pi', reward=1.0, outcome=outcome)
    assert changed.valid is valid
  assert not types.Rollout('r', 't', 'pi', reward=None).valid


def test_sampling_seed_differs_by_each_part():
  base = types.sampling_seed(0, 'a', 0)
  assert base == types.sampling_seed(0, 'a', 0)
  others = {
    types.sampling_seed(1, 'a', 0),
    types.sampling_seed(0, 'b', 0),
    types.sampling_seed(0, 'a', 1),
  }
  assert base not in others and len(others) == 3
  assert 0 <= base < 2**63
