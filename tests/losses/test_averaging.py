"""Advantages and weights by hand; correction weights by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.losses import advantages, correction, weights

# rollouts 0 and 1 of task a (2 and 1 terms), 2 of task b (3 terms), one padding
TERM = np.array([[0, 0, 1, -1], [2, 2, 2, -1]])
GROUPS = ['a', 'a', 'b']


@pytest.mark.parametrize(
  ('aggregation', 'want'),
  [
    ('rollout_mean', [1 / 6, 1 / 3, 1 / 9]),
    ('token_mean', [1 / 6, 1 / 6, 1 / 6]),
    ('prompt_mean', [1 / 6, 1 / 6, 1 / 6]),
    ('constant', [1 / 30, 1 / 30, 1 / 30]),
  ],
)
def test_weights(aggregation, want):
  """3 rollouts; 6 terms; groups of 3 and 3 terms; c = 10."""
  got = weights.term_weights(
    TERM, groups=GROUPS, aggregation=aggregation, constant=10
  )
  real = TERM >= 0
  np.testing.assert_allclose(got[real], np.array(want)[TERM[real]], rtol=1e-6)
  assert (got[~real] == 0).all()


def test_inactive_rollouts_weigh_nothing():
  active = np.array([True, True, False])
  got = weights.term_weights(TERM, groups=GROUPS, active=active)
  np.testing.assert_allclose(got[0], [1 / 6, 1 / 6, 1 / 3, 0], rtol=1e-6)
  assert (got[1] == 0).all()
  alone = weights.term_weights(
    TERM, groups=GROUPS, active=active, count_inactive=False
  )
  np.testing.assert_allclose(alone[0], [1 / 4, 1 / 4, 1 / 2, 0], rtol=1e-6)


def test_constant_wants_its_constant():
  with pytest.raises(ValueError, match='constant'):
    weights.term_weights(TERM, groups=GROUPS, aggregation='constant')


def test_group_advantages_by_hand():
  """rewards 1, 0, 0, 1 in a: mean .5, population std .5 -> +-1."""
  got = advantages.group_advantages([1, 0, 0, 1], ['a'] * 4)
  np.testing.assert_allclose(got.advantage, [1, -1, -1, 1], rtol=1e-5)
  assert got.active.all()


def test_harnesses_are_apart():
  got = advantages.group_advantages(
    [1, 0, 5, 4], [('t', 'pi'), ('t', 'pi'), ('t', 'oc'), ('t', 'oc')]
  )
  np.testing.assert_allclose(got.advantage, [1, -1, 1, -1], rtol=1e-5)


def test_leave_one_out_and_no_scale():
  """1, 0, 0: 1 - 0, 0 - .5, 0 - .5."""
  config = advantages.AdvantageConfig(baseline='leave_one_out', scale='none')
  got = advantages.group_advantages([1, 0, 0], 'aaa', config=config)
  np.testing.assert_allclose(got.advantage, [1, -0.5, -0.5], rtol=1e-6)


@pytest.mark.parametrize('spread', [0.0, 1e-9])
def test_equal_rewards_say_nothing(spread):
  got = advantages.group_advantages([0.1, 0.1 + spread, 0.1], 'aaa')
  assert (got.advantage == 0).all()
  assert not got.active.any()
  assert got.stats['degenerate_groups'] == 1
  kept = advantages.group_advantages(
    [0.1, 0.1, 0.1],
    'aaa',
    config=advantages.AdvantageConfig(mask_degenerate=False),
  )
  assert (kept.advantage == 0).all()
  assert kept.active.all()


def test_rollouts_that_are_not_valid_are_out():
  """The crash (nan) and the invalid 9 touch nothing; one alone is dropped."""
  got = advantages.group_advantages(
    [1, 0, np.nan, 9, 1],
    ['a', 'a', 'a', 'a', 'b'],
    [True, True, True, False, True],
  )
  np.testing.assert_allclose(got.advantage, [1, -1, 0, 0, 0], rtol=1e-5)
  assert got.active.tolist() == [True, True, False, False, False]
  assert got.stats['small_groups'] == 1


def test_per_term():
  got = advantages.per_term(np.array([5.0, 6.0, 7.0]), TERM)
  assert got.tolist() == [[5, 5, 6, 0], [7, 7, 7, 0]]


# ratios old / rollout: 4, 1.5, .25; the first two belong to one call
D = np.log(np.array([[4.0, 1.5, 0.25, 1.0]]))
MASK = np.array([[True, True, True, False]])
CALL = np.array([[0, 0, 1, -1]])


@pytest.mark.parametrize(
  ('kind', 'level', 'want'),
  [
    ('none', 'token', [1, 1, 1]),
    ('truncate', 'token', [2, 1.5, 0.25]),
    ('mask', 'token', [0, 1.5, 0.25]),
    ('two_sided', 'token', [0, 1.5, 0]),
    ('truncate', 'sequence', [2, 2, 0.25]),
    ('mask', 'sequence', [0, 0, 0.25]),
    ('truncate', 'sequence_mean', [2, 2, 0.25]),
    ('two_sided', 'sequence_mean', [0, 0, 0]),
  ],
)
def test_correction(kind, level, want):
  """Call 0: product 6, geometric mean 2.449; cap 2, floor .5."""
  got, cut = correction.importance_weights(
    jnp.asarray(D),
    jnp.zeros(D.shape),
    jnp.asarray(MASK),
    config=correction.CorrectionConfig(kind=kind, level=level),
    term_call=jnp.asarray(CALL),
  )
  np.testing.assert_allclose(got, [[*want, 0]], rtol=1e-5)
  assert cut[0, 3] == 0
