"""The optimiser step: Adam by hand, clipping, and nothing on a bad gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax import errors
from clawjax.config import build
from clawjax.models import qwen3
from clawjax.train import state


def _params():
  return {'w': jnp.ones((2, 2)), 'layers': [{'b': jnp.zeros(3)}]}


def test_first_adam_step_moves_each_weight_by_the_rate():
  # With bias correction m/sqrt(v) = g/|g| at step 1, whatever |g| is.
  config = state.OptimConfig(learning_rate=0.01, max_grad_norm=0.0)
  optimizer = state.make_optimizer(config)
  before = state.init(_params(), optimizer)
  grads = {'w': jnp.full((2, 2), 5.0), 'layers': [{'b': jnp.full(3, -0.1)}]}
  after, metrics = state.apply_gradients(before, grads, optimizer)
  np.testing.assert_allclose(after.params['w'], 1 - 0.01, rtol=1e-6)
  np.testing.assert_allclose(after.params['layers'][0]['b'], 0.01, rtol=1e-5)
  assert int(after.updates) == 1 and int(after.skipped) == 0
  norm = np.sqrt(4 * 25 + 3 * 0.01)
  np.testing.assert_allclose(metrics['grad_norm'], norm, rtol=1e-6)


def test_a_fresh_state_can_be_given_up_to_its_first_step():
  optimizer = state.make_optimizer(state.OptimConfig(learning_rate=0.01))
  take = jax.jit(
    lambda s, g: state.apply_gradients(s, g, optimizer), donate_argnums=0
  )
  fresh = state.init(_params(), optimizer)
  after, _ = take(fresh, jax.tree.map(jnp.ones_like, fresh.params))
  assert (int(after.updates), int(after.skipped)) == (1, 0)


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_non_finite_gradient_changes_nothing_but_the_count(bad):
  optimizer = state.make_optimizer(state.OptimConfig(learning_rate=0.01))
  before = state.init(_params(), optimizer)
  grads = {'w': jnp.full((2, 2), bad), 'layers': [{'b': jnp.zeros(3)}]}
  after, metrics = state.apply_gradients(before, grads, optimizer)
  np.testing.assert_array_equal(after.params['w'], before.params['w'])
  assert int(after.updates) == 0 and int(after.skipped) == 1
  assert float(metrics['skipped']) == 1
  good = {'w': jnp.ones((2, 2)), 'layers': [{'b': jnp.zeros(3)}]}
  again, _ = state.apply_gradients(after, good, optimizer)
  assert np.isfinite(again.params['w']).all()
  assert int(again.updates) == 1


def test_weight_decay_spares_vectors():
  config = state.OptimConfig(
    learning_rate=0.1, weight_decay=0.5, max_grad_norm=0.0
  )
  optimizer = state.make_optimizer(config)
  params = {'w': jnp.ones((2, 2)), 'b': jnp.ones(2)}
  zeros = {'w': jnp.zeros((2, 2)), 'b': jnp.zeros(2)}
  after, _ = state.apply_gradients(
    state.init(params, optimizer), zeros, optimizer
  )
  np.testing.assert_allclose(after.params['w'], 1 - 0.1 * 0.5)
  np.testing.assert_array_equal(after.params['b'], 1)


def test_schedules_by_hand():
  config = state.OptimConfig(
    learning_rate=1.0,
    schedule='linear',
    warmup_steps=2,
    decay_steps=6,
    final_fraction=0.5,
  )
  rate = state.schedule(config)
  got = [float(rate(i)) for i in range(7)]
  np.testing.assert_allclose(got, [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5])


def test_impossible_schedule_is_one_clear_error():
  with pytest.raises(errors.ConfigError, match='decay_steps > warmup_steps'):
    build(state.OptimConfig, {'schedule': 'cosine'}, path='optim')


def _layers(rng):
  def draw(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  return {
    'embed': draw(7, 6),
    'layers': [
      {
        'q': draw(6, 2, 3),
        'o': draw(2, 3, 6),
        'up': draw(4, 6, 5),
        'router': draw(6, 4),
        'attention_norm': draw(6),
      }
      for _ in range(2)
    ],
  }


def _moves(config, params, grads):
  optimizer = state.make_optimizer(config)
  before = state.init(params, optimizer)
  after, _ = state.apply_gradients(before, grads, optimizer)
  return jax.tree.map(lambda a, b: np.asarray(a - b), after.params, params)


def test_muon_moves_a_matrix_by_an_orthogonal_one():
  # Its Newton-Schulz iteration brings singular values into about [0.7, 1.2].
  params = _layers(np.random.default_rng(0))
  grads = _layers(np.random.default_rng(1))
  config = state.OptimConfig(
    optimizer='muon', learning_rate=0.1, adam_share=0.5, max_grad_norm=0.0
  )
  moved = _moves(config, params, grads)
  layer = moved['layers'][0]
  for matrix in (
    layer['q'].reshape(6, 6),
    layer['o'].reshape(6, 6),
    *layer['up'],
  ):
    values = np.linalg.svd(matrix / 0.1, compute_uv=False)
    assert values.min() > 0.5 and values.max() < 1.3, values
  # The rest goes by AdamW with Nesterov momentum: with g the gradient, the
  # first step's numerator is b1 (1 - b1) g / (1 - b1^2) + g, its root is |g|.
  first = 0.1 * 0.5 * (1 + 0.9 / 1.9)
  for rest in (moved['embed'], layer['router'], layer['attention_norm']):
    np.testing.assert_allclose(abs(rest), first, rtol=1e-4)


def test_muon_does_not_mind_stacked_layers():
  params = _layers(np.random.default_rng(0))
  grads = _layers(np.random.default_rng(1))
  config = state.OptimConfig(optimizer='muon', learning_rate=0.1)
  listed = _moves(config, params, grads)
  stacked = _moves(
    config, qwen3.stack_layers(params), qwen3.stack_layers(grads)
  )
  wanted = qwen3.stack_layers(listed)
  for got, want in zip(
    jax.tree.leaves(stacked), jax.tree.leaves(wanted), strict=True
  ):
    np.testing.assert_allclose(got, want, atol=1e-5)
