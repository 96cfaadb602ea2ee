"""From rollouts to filled terms: credit by hand, concatenation changes nothing."""

import numpy as np
import pytest

from clawjax import errors, types
from clawjax.config import build
from clawjax.train import harvest
from clawjax.trie import FilterConfig, PackConfig

PACK = PackConfig(row_tokens=32, row_buckets=(32,), term_multiple=16)


def _call(index, prompt, output, parent='', role='main'):
  sample = types.Sample(
    np.array(output, np.int32),
    np.full(len(output), -0.5, np.float32),
    'stop',
  )
  return types.Call(
    f'c{index}', '', index, np.array(prompt, np.int32), sample,
    parent=parent, role=role,
  )  # fmt: skip


def _rollout(task, index, reward, outputs, outcome='ok'):
  """One chain: prompt 1 2, then each output followed by one token 9."""
  history, calls = [1, 2], []
  for i, output in enumerate(outputs):
    calls.append(_call(i, history, output, f'c{i - 1}' if i else ''))
    history = history + output + [9]
  return types.Rollout(
    f'{task}/{index}', task, 'pi', index=index, calls=tuple(calls),
    reward=reward, outcome=outcome,
  )  # fmt: skip


def _gather(*rollouts):
  return harvest.gather(
    rollouts, filter_config=FilterConfig(), pack_config=PACK
  )


def _fill(chunks, config=None, minibatches=1):
  return harvest.fill(
    chunks,
    config or harvest.CreditConfig(),
    minibatches=minibatches,
    rng=np.random.default_rng(0),
    order=np.random.default_rng(1),
  )


def _terms(batch):
  """rollout id -> (set of advantages, sum of weights, number of terms)."""
  out = {}
  for i, name in enumerate(batch.rollout_ids):
    mine = batch.term_rollout == i
    out[name] = (
      set(np.round(batch.advantage[mine], 4).tolist()),
      float(batch.weight[mine].sum()),
      int(mine.sum()),
    )
  return out


def test_advantage_and_weight_by_hand():
  # Rewards 1, 0: mean 0.5, population std 0.5, so advantages are +1 and -1.
  # Eq. 6: each rollout weighs 1/2 in all, whatever its number of tokens.
  chunk = _gather(
    _rollout('a', 0, 1.0, [[3, 4], [5]]), _rollout('a', 1, 0.0, [[6]])
  )
  filled = _fill([chunk])
  terms = _terms(filled.minibatches[0])
  assert terms['a/0'] == ({1.0}, pytest.approx(0.5), 3)
  assert terms['a/1'] == ({-1.0}, pytest.approx(0.5), 1)
  assert filled.advantage == pytest.approx({'a/0': 1.0, 'a/1': -1.0}, abs=1e-5)


def test_invalid_rollouts_leave_statistics_and_loss():
  chunk = _gather(
    _rollout('a', 0, 1.0, [[3]]),
    _rollout('a', 1, 0.0, [[4]]),
    _rollout('a', 2, None, [[5]], outcome='infra_error'),
    _rollout('a', 3, None, [[6]], outcome='verifier_error'),
  )
  filled = _fill([chunk])
  assert set(filled.advantage) == {'a/0', 'a/1'}
  assert filled.statistics['reward_mean'] == 0.5
  assert set(filled.minibatches[0].rollout_ids) == {'a/0', 'a/1'}


def test_equal_rewards_weigh_nothing():
  chunk = _gather(_rollout('a', 0, 0.7, [[3]]), _rollout('a', 1, 0.7, [[4]]))
  filled = _fill([chunk])
  assert filled.statistics['degenerate_groups'] == 1
  assert filled.minibatches == ()


def test_chunks_that_teach_nothing_make_no_optimiser_step():
  # A step without a gradient would still move the weights by its momentum.
  flat = [
    _gather(_rollout(t, 0, 0.7, [[3]]), _rollout(t, 1, 0.7, [[4]]))
    for t in ('a', 'b')
  ]
  taught = _gather(_rollout('c', 0, 1.0, [[3]]), _rollout('c', 1, 0.0, [[4]]))
  filled = _fill([*flat, taught], minibatches=2)
  [batch] = filled.minibatches
  assert set(batch.rollout_ids) == {'c/0', 'c/1'}
  assert filled.statistics['degenerate_groups'] == 2


def test_over_branching_rollouts_leave_the_statistics():
  many = types.Rollout(
    'a/9', 'a', 'pi', index=9, reward=0.0,
    calls=tuple(_call(i, [1, 2, i + 10], [3]) for i in range(5)),
  )  # fmt: skip
  chunk = harvest.gather(
    [_rollout('a', 0, 1.0, [[3]]), _rollout('a', 1, 0.0, [[4]]), many],
    filter_config=FilterConfig(max_leaves=4),
    pack_config=PACK,
  )
  assert {r.rollout_id for r in chunk.rollouts} == {'a/0', 'a/1'}
  assert chunk.reports['a/9'].dropped
  counts = harvest.accounting(chunk.reports)
  assert counts['sampled_tokens'] == 7
  assert counts['trained_tokens'] == 2
  assert counts['delivered_fraction'] == pytest.approx(2 / 7)
  assert counts['dropped_rollouts'] == 1


def test_nothing_to_train_gives_no_chunk():
  assert _gather(_rollout('a', 0, None, [[3]], outcome='infra_error')) is None


def test_minibatches_never_split_a_rollout_and_cover_all():
  chunks = [
    _gather(
      _rollout(t, 0, 1.0, [[3, 4], [5]]), _rollout(t, 1, 0.0, [[6], [7, 8]])
    )
    for t in ('a', 'b', 'c')
  ]
  filled = _fill(chunks, minibatches=2)
  names = [set(b.rollout_ids) for b in filled.minibatches]
  assert not names[0] & names[1]
  assert names[0] | names[1] == {f'{t}/{i}' for t in 'abc' for i in (0, 1)}
  for batch in filled.minibatches:
    assert batch.weight.sum() == pytest.approx(1.0)


def test_concatenation_keeps_every_term_and_every_slot():
  wide = PackConfig(row_tokens=64, row_buckets=(64,), term_multiple=32)
  first = _gather(_rollout('a', 0, 1.0, [[3, 4]])).batch
  second = harvest.gather(
    [_rollout('b', 0, 0.0, [[5], [6, 7]])],
    filter_config=FilterConfig(),
    pack_config=wide,
  ).batch
  both = harvest.concatenate([first, second])
  assert both.tokens.shape == (2, 64) and both.term_slot.shape == (2, 32)
  # Padding slots see themselves only.
  tail = both.subtree_end[0, 32:]
  np.testing.assert_array_equal(tail, np.arange(33, 65))
  for row, alone in ((0, first), (1, second)):
    real = both.term_rollout[row] >= 0
    mine = alone.term_rollout[0] >= 0
    np.testing.assert_array_equal(
      both.tokens[row][both.term_slot[row][real]],
      alone.tokens[0][alone.term_slot[0][mine]],
    )
    name = both.rollout_ids[both.term_rollout[row][real][0]]
    assert name == alone.rollout_ids[0]
    call = both.call_keys[both.term_call[row][real][-1]]
    assert call == alone.call_keys[alone.term_call[0][mine][-1]]
  assert both.stats['tokens'] == first.stats['tokens'] + second.stats['tokens']


def test_shuffled_rewards_stay_in_their_group():
  rollouts = [
    _rollout(t, i, r, [[3 + i]])
    for t, rewards in (('a', [0.0, 0.2, 1.0]), ('b', [0.5, 0.6, 0.9]))
    for i, r in enumerate(rewards)
  ]
  chunk = _gather(*rollouts)
  plain = _fill([chunk])
  moved = 0
  for seed in range(8):
    dealt = harvest.fill(
      [chunk],
      harvest.CreditConfig(shuffle_rewards=True),
      minibatches=1,
      rng=np.random.default_rng(seed),
      order=np.random.default_rng(0),
    )
    for task in 'ab':
      mine = sorted(v for k, v in dealt.advantage.items() if k[0] == task)
      true = sorted(v for k, v in plain.advantage.items() if k[0] == task)
      assert mine == pytest.approx(true)
    moved += dealt.advantage != plain.advantage
  assert moved >= 6


def test_constant_aggregation_wants_its_constant():
  with pytest.raises(errors.ConfigError, match='constant'):
    build(harvest.CreditConfig, {'aggregation': 'constant'}, path='credit')
