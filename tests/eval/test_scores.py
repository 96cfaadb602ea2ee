"""Scores by hand: every expected number is worked out in a comment."""

import itertools
import math

import numpy as np
import pytest

from clawjax import types
from clawjax.eval import scores


def _trials(task_id, rewards, **fields):
  return [
    scores.Trial(task_id, r, sample_index=i, **fields)
    for i, r in enumerate(rewards)
  ]


def _error(task_id, outcome='infra_error'):
  return scores.Trial(task_id, None, outcome=outcome)


def test_pass1_is_the_mean_per_task_first():
  # a: (1 + 0) / 2 = 0.5; b: 1. Mean of tasks 0.75 (of trials: 2/3).
  trials = _trials('a', [1.0, 0.0]) + _trials('b', [1.0])
  assert scores.pass1(trials).value == pytest.approx(0.75)
  assert scores.pass1(trials).tasks == 2


def test_pass1_keeps_partial_credit_and_success_does_not():
  # a: (0.5 + 1) / 2 = 0.75, one of two solved; b: 0.25, none solved.
  trials = _trials('a', [0.5, 1.0]) + _trials('b', [0.25])
  assert scores.pass1(trials).value == pytest.approx(0.5)
  assert scores.success(trials).value == pytest.approx(0.25)
  # At threshold 0.5: a 2/2, b 0/1.
  assert scores.success(trials, threshold=0.5).value == pytest.approx(0.5)


def test_a_mean_of_checks_that_is_one_but_for_rounding_is_solved():
  assert scores.solved(sum([0.1] * 10))  # 0.9999999999999999
  assert not scores.solved(0.999)


def test_errors_are_not_zeros():
  trials = _trials('a', [1.0, 0.0]) + [
    _error('a'),
    _error('b', 'verifier_error'),
    scores.Trial('c', None, outcome='ok'),  # ok, but nothing scored it
  ]
  summary = scores.summarise(trials)
  assert summary.pass1.value == pytest.approx(0.5)  # a alone
  assert summary.tasks == 1
  assert summary.unscored_tasks == 2
  assert (summary.trials, summary.scored, summary.zeros) == (5, 2, 1)
  assert summary.errors == {
    'infra_error': 1,
    'no_reward': 1,
    'verifier_error': 1,
  }


def test_a_reward_beside_a_fault_is_not_used():
  # A sandbox that died after scoring: outcome decides, as in types.Rollout.
  trials = [scores.Trial('a', 1.0, outcome='infra_error')]
  assert scores.summarise(trials).scored == 0


def test_timeouts_and_harness_errors_are_scored():
  trials = [
    scores.Trial('a', 0.5, outcome='timeout'),
    scores.Trial('b', 1.0, outcome='harness_error'),
  ]
  assert scores.pass1(trials).value == pytest.approx(0.75)


@pytest.mark.parametrize('n, c', [(4, 0), (4, 1), (4, 2), (5, 4), (3, 3)])
def test_pass_at_k_and_pass_hat_k_count_subsets(n, c):
  """Both are the share of k-subsets of the n samples, listed one by one."""
  outcomes = [1] * c + [0] * (n - c)
  for k in range(1, n + 1):
    subsets = list(itertools.combinations(outcomes, k))
    best = np.mean([max(s) for s in subsets])
    worst = np.mean([min(s) for s in subsets])
    assert scores.pass_at_k(n, c, k) == pytest.approx(best)
    assert scores.pass_hat_k(n, c, k) == pytest.approx(worst)


def test_pass_at_k_by_hand():
  # 4 samples, 1 success, k = 2: 3 of 6 pairs hold it.
  assert scores.pass_at_k(4, 1, 2) == pytest.approx(0.5)
  # 4 samples, 3 successes, k = 2: 3 of 6 pairs are all good.
  assert scores.pass_hat_k(4, 3, 2) == pytest.approx(0.5)


@pytest.mark.parametrize('n, c, k', [(2, 3, 1), (2, 1, 3), (2, 1, 0)])
def test_impossible_counts_are_refused(n, c, k):
  with pytest.raises(ValueError, match='wanted'):
    scores.pass_at_k(n, c, k)


def test_pass_at_k_leaves_out_tasks_with_too_few_samples():
  trials = _trials('a', [1.0, 0.0, 0.0, 0.0]) + _trials('b', [1.0])
  assert scores.pass_at(trials, 2).value == pytest.approx(0.5)
  assert scores.pass_at(trials, 2).tasks == 1
  summary = scores.summarise(trials)
  assert sorted(summary.pass_at) == [2, 4]
  assert summary.pass_at[4].value == 1.0
  assert summary.pass_hat[4].value == 0.0


def test_nothing_scored_is_nan_not_zero():
  summary = scores.summarise([_error('a')])
  assert math.isnan(summary.pass1.value)
  assert summary.pass1.tasks == 0
  assert scores.summarise([]).trials == 0


def test_bootstrap_of_equal_values_is_that_value():
  assert scores.bootstrap([0.25] * 9) == (0.25, 0.25)


def test_bootstrap_covers_like_a_normal_interval():
  """For many values the percentile interval is mean +- 1.96 s / sqrt(n)."""
  values = np.random.default_rng(1).random(4000)
  low, high = scores.bootstrap(values, resamples=4000)
  half = 1.96 * values.std() / math.sqrt(values.size)
  assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
  assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_bootstrap_depends_on_the_seed_alone():
  values = [0.0, 1.0, 0.5, 0.25, 0.9]
  assert scores.bootstrap(values) == scores.bootstrap(values)
  assert scores.bootstrap(values) != scores.bootstrap(values, seed=1)


def test_bootstrap_resamples_tasks_not_samples():
  # Two tasks, eight equal samples each: only three means are possible.
  trials = _trials('a', [0.0] * 8) + _trials('b', [1.0] * 8)
  estimate = scores.pass1(trials)
  assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_split_by_family():
  trials = _trials('a', [1.0], family='sort') + _trials(
    'b', [0.0], family='copy'
  )
  parts = scores.split(trials)
  assert list(parts) == ['copy', 'sort']
  assert scores.pass1(parts['sort']).value == 1.0


def test_weighted_uses_the_benchmark_weights():
  trials = (
    _trials('a', [1.0], domain='x')
    + _trials('b', [0.0], domain='x')
    + _trials('c', [1.0], domain='y')
  )
  # x: 0.5, y: 1. Weights 3 and 1: (1.5 + 1) / 4.
  assert scores.weighted(trials, {'x': 3, 'y': 1}) == pytest.approx(0.625)
  # Weights equal to the counts give the plain mean over tasks.
  assert scores.weighted(trials, {'x': 2, 'y': 1}) == pytest.approx(2 / 3)
  assert math.isnan(scores.weighted(trials, {'x': 1, 'z': 1}))
  assert scores.weighted(trials, {'x': 1, 'z': 0}) == pytest.approx(0.5)


def test_difference_is_paired_by_task():
  before = _trials('a', [0.0]) + _trials('b', [0.5]) + _trials('gone', [1.0])
  after = _trials('a', [1.0]) + _trials('b', [0.5]) + _trials('new', [0.0])
  result = scores.difference(before, after)
  assert (result.before, result.after) == (0.25, 0.75)
  assert result.change.value == pytest.approx(0.5)
  assert (result.better, result.worse, result.equal) == (1, 0, 1)


def test_sign_flips_by_hand():
  # Four tasks each +1: of 16 sign patterns only ++++ and ---- reach |4|.
  before = [t for k in 'abcd' for t in _trials(k, [0.0])]
  after = [t for k in 'abcd' for t in _trials(k, [1.0])]
  assert scores.difference(before, after).p_value == pytest.approx(2 / 16)
  assert scores.difference(before, before).p_value == 1.0
  assert math.isnan(scores.difference(before, []).p_value)


def test_sign_flips_of_many_tasks_agree_with_the_normal_test():
  """30 tasks, 20 better and 10 worse by the same amount: binomial test."""
  before = [t for i in range(30) for t in _trials(f't{i}', [0.5])]
  after = [
    t for i in range(30) for t in _trials(f't{i}', [1.0 if i < 20 else 0.0])
  ]
  tail = sum(math.comb(30, i) for i in range(20, 31)) / 2**30
  p = scores.difference(before, after).p_value
  assert p == pytest.approx(2 * tail, abs=0.015)


def test_success_difference():
  before = _trials('a', [0.5, 0.5])
  after = _trials('a', [0.9, 1.0])
  assert scores.difference(before, after, threshold=1.0).after == 0.5


def test_trial_of_a_rollout_and_back():
  rollout = types.Rollout(
    'eval/0/t/pi/1',
    't',
    'pi',
    index=1,
    reward=0.5,
    outcome='timeout',
    reason='120 s',
    timings={'total': 3.5},
  )
  task = types.Task('t', ('do',), metadata={'family': 'copy', 'domain': 'd'})
  item = scores.trial(rollout, task, greedy=True)
  assert item == scores.Trial(
    task_id='t',
    reward=0.5,
    outcome='timeout',
    harness='pi',
    family='copy',
    domain='d',
    sample_index=1,
    greedy=True,
    rollout_id='eval/0/t/pi/1',
    reason='120 s',
    seconds=3.5,
  )
  assert scores.trial_from_json(scores.trial_to_json(item)) == item


@pytest.mark.parametrize('reward', [None, float('nan'), float('inf'), 'x'])
def test_a_reward_that_is_no_number_is_unknown(reward):
  item = scores.trial_from_json({'task_id': 'a', 'reward': reward, 'x': 1})
  assert item.reward is None and not item.scored
