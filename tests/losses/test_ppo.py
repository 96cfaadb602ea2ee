"""Advantages from values, by hand and against ordinary GAE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.losses import ppo, value


def gae(values, reward, gamma, lam):
  """Textbook GAE on one chain; the reward comes with the last token."""
  advantage, after = np.zeros(len(values)), 0.0
  for t in reversed(range(len(values))):
    last = t == len(values) - 1
    delta = (reward if last else gamma * values[t + 1]) - values[t]
    after = delta + (0 if last else gamma * lam * after)
    advantage[t] = after
  return advantage


@pytest.mark.parametrize('gamma,lam', [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0)])
def test_on_a_chain_it_is_gae(gamma, lam):
  v = np.random.default_rng(0).normal(size=(1, 6))
  got, target = ppo.tree_gae(
    v,
    np.full((1, 6), 0.7),
    np.ones((1, 6), bool),
    np.arange(-1, 5)[None],
    gamma=gamma,
    lam=lam,
  )
  want = gae(v[0], 0.7, gamma, lam)
  np.testing.assert_allclose(got[0], want, atol=1e-6)
  np.testing.assert_allclose(target[0], want + v[0], atol=1e-6)


# a - b          reward 1; V(a) = .5, V(b) = .6, V(c) = .2
#  \\ c          and one column of padding that holds nan
VALUES = np.array([[0.5, 0.6, 0.2, np.nan]])
MASK = np.array([[True, True, True, False]])
PREVIOUS = np.array([[-1, 0, 0, -1]])
REWARD = np.array([[1.0, 1.0, 1.0, np.nan]])


def test_eq_8_with_gamma_and_lambda_one():
  got, target = ppo.tree_gae(VALUES, REWARD, MASK, PREVIOUS)
  np.testing.assert_allclose(got, [[0.5, 0.4, 0.8, 0]], atol=1e-6)
  np.testing.assert_allclose(target, [[1, 1, 1, 0]], atol=1e-6)
  plain, plain_target = ppo.reward_advantages(VALUES, REWARD, MASK)
  np.testing.assert_allclose(plain, got, atol=1e-6)
  np.testing.assert_allclose(plain_target, target, atol=1e-6)


def test_branch_with_lambda_one_half():
  """A_b = .4, A_c = .8; delta_a = (.6 + .2) / 2 - .5 = -.1;
  A_a = -.1 + .5 (.4 + .8) / 2 = .2."""
  got, _ = ppo.tree_gae(VALUES, REWARD, MASK, PREVIOUS, lam=0.5)
  np.testing.assert_allclose(got, [[0.2, 0.4, 0.8, 0]], atol=1e-6)


def test_step_rewards_go_up_the_chain():
  """r = .3 at b: A_b = .7; A_a = 1 + .3 / 2 - .5 = .65 at gamma = lambda = 1."""
  step = np.array([[0, 0.3, 0, 0]])
  got, _ = ppo.tree_gae(VALUES, REWARD, MASK, PREVIOUS, step_reward_BE=step)
  np.testing.assert_allclose(got, [[0.65, 0.7, 0.8, 0]], atol=1e-6)


def test_a_cycle_is_refused():
  with pytest.raises(ValueError, match='cycle'):
    ppo.tree_gae(np.zeros((1, 2)), np.ones((1, 2)), np.ones((1, 2)), [[1, 0]])


def test_value_loss_by_hand():
  """weights .5 .25: .5 (.5 - 1)^2 + .25 (2 - 1)^2 = .375; nan at weight 0."""
  v = jnp.array([[0.5, 2.0, jnp.nan]])
  target = jnp.array([[1.0, 1.0, 0.0]])
  weight = jnp.array([[0.5, 0.25, 0.0]])
  (loss, sums), grad = jax.value_and_grad(
    lambda v: value.value_loss(v, target=target, weight=weight), has_aux=True
  )(v)
  assert loss == pytest.approx(0.375)
  np.testing.assert_allclose(grad, [[-0.5, 0.5, 0.0]], atol=1e-7)
  assert sums['terms'] == 2


def test_value_clip_by_hand():
  """old 0, V = .5, G = 1, clip .2: max(.25, .64) = .64, and no gradient."""
  config = value.ValueLossConfig(clip=0.2)
  loss = lambda v: value.value_loss(  # noqa: E731
    v,
    target=jnp.ones((1, 1)),
    weight=jnp.ones((1, 1)),
    old_value=jnp.zeros((1, 1)),
    config=config,
  )[0]
  got, grad = jax.value_and_grad(loss)(jnp.full((1, 1), 0.5))
  assert got == pytest.approx(0.64)
  assert grad[0, 0] == 0


@pytest.mark.parametrize('clip', [None, 0.2])
def test_value_loss_by_finite_differences(clip):
  """Values inside and outside of the clip, above and below their targets."""
  f = lambda v: value.value_loss(  # noqa: E731
    jnp.asarray(v),
    target=jnp.array([[1.0, -1.0, 0.3, 0.0]]),
    weight=jnp.array([[0.5, 0.25, 2.0, 1.0]]),
    old_value=jnp.array([[0.0, 0.0, 0.1, 0.9]]),
    config=value.ValueLossConfig(clip=clip),
  )[0]
  at = np.array([[0.5, 0.1, 0.15, 0.2]])
  got = jax.grad(f)(jnp.asarray(at))
  for i in range(4):
    step = np.zeros((1, 4))
    step[0, i] = 3e-3
    slope = (float(f(at + step)) - float(f(at - step))) / 6e-3
    assert got[0, i] == pytest.approx(slope, abs=3e-4)


def test_explained_variance():
  """G = 0, 2; V = .5, 1.5: residual variance .25 of 1."""
  _, sums = value.value_loss(
    jnp.array([[0.5, 1.5]]),
    target=jnp.array([[0.0, 2.0]]),
    weight=jnp.ones((1, 2)),
  )
  assert value.explained_variance(sums) == pytest.approx(0.75)


def test_values_are_read_at_the_parent():
  got = value.term_values(
    jnp.array([[10.0, 11.0, 12.0, 13.0]]),
    jnp.array([[-1, 0, 1, 0]]),
    jnp.array([[1, 2, 3, 0]]),
  )
  assert got[0, :3].tolist() == [10.0, 11.0, 10.0]
