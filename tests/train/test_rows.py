"""Gradients over rows: what is summed side by side is the same sum."""

import jax
import numpy as np
import pytest

from clawjax import trie, types
from clawjax.models import qwen3
from clawjax.train import state as state_lib
from clawjax.train.step import ForwardConfig, Learner


def _rollout(number, rng):
  call = types.Call(
    call_id='c0',
    rollout_id=f'r{number}',
    index=0,
    prompt_ids=rng.integers(0, 32, 9).astype(np.int32),
    sample=types.Sample(
      rng.integers(0, 32, 7).astype(np.int32), np.zeros(7, np.float32), 'stop'
    ),
  )
  return types.Rollout(
    rollout_id=f'r{number}', task_id='t', harness='none', calls=(call,)
  )


@pytest.fixture(scope='module')
def case():
  """Five rows of two trees each, a tiny model, and its optimiser."""
  rng = np.random.default_rng(0)
  tries = [trie.build(_rollout(i, rng)) for i in range(10)]
  batch = trie.pack(
    tries, config=trie.PackConfig(row_tokens=32, row_buckets=(32,))
  )
  assert len(batch.tokens) == 5
  batch = batch.replace(weight=np.where(batch.term_rollout >= 0, 0.1, 0.0))
  model = qwen3.Config.tiny(vocab=32, width=32, layers=1, heads=2, head_size=16)
  return batch, model, qwen3.init(model, jax.random.key(0))


def _fit(case, streams):
  batch, model, params = case
  optimizer = state_lib.make_optimizer(state_lib.OptimConfig())
  learner = Learner(
    model, optimizer, forward=ForwardConfig(rows=1, streams=streams)
  )
  return learner._likelihood_gradient(params, batch)


@pytest.mark.parametrize('streams', [2, 3, 9])
def test_streams_add_up_to_the_same_gradient(case, streams):
  want, sums = _fit(case, 1)
  got, got_sums = _fit(case, streams)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
  assert float(got_sums['terms']) == float(sums['terms']) == 70
  np.testing.assert_allclose(got_sums['loss'], sums['loss'], rtol=1e-5)


def test_two_runs_with_streams_agree_to_the_bit(case):
  once, again = _fit(case, 2)[0], _fit(case, 2)[0]
  jax.tree.map(np.testing.assert_array_equal, once, again)
