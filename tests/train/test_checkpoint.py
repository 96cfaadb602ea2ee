"""Checkpoints are whole or absent; a bad one is named and the last good loads."""

import jax
import jax.numpy as jnp
import pytest

from clawjax import errors
from clawjax.train import checkpoint, state

OPTIMIZER = state.make_optimizer(state.OptimConfig(learning_rate=0.1))


def _state(value: float, width: int = 3) -> state.TrainState:
  return state.init({'w': jnp.full((2, width), value)}, OPTIMIZER)


def _files(folder):
  return [p for p in folder.rglob('*') if p.is_file()]


def test_keeps_the_last_ones_and_restores_the_newest(tmp_path):
  store = checkpoint.Checkpoints(tmp_path, keep=2)
  assert store.restore(_state(0.0)) is None
  for step in (1, 2, 3):
    store.save(step, _state(float(step)), {'policy_version': step})
  assert store.steps() == [2, 3]
  step, restored, facts = store.restore(_state(0.0))
  assert step == 3 and facts['policy_version'] == 3
  assert isinstance(restored, state.TrainState)
  same = jax.tree.map(lambda a, b: bool((a == b).all()), restored, _state(3.0))
  assert jax.tree.all(same)
  store.close()


def test_truncated_checkpoint_falls_back_to_the_one_before(tmp_path):
  store = checkpoint.Checkpoints(tmp_path)
  store.save(1, _state(1.0), {})
  store.save(2, _state(2.0), {})
  store.close()
  for path in _files(tmp_path / '2' / 'state'):
    path.write_bytes(path.read_bytes()[:7])
  store = checkpoint.Checkpoints(tmp_path)
  step, restored, _ = store.restore(_state(0.0))
  assert step == 1 and float(restored.params['w'][0, 0]) == 1.0
  store.close()


def test_no_readable_checkpoint_is_one_clear_line(tmp_path):
  store = checkpoint.Checkpoints(tmp_path)
  store.save(1, _state(1.0), {})
  store.close()
  for path in _files(tmp_path / '1' / 'state'):
    path.write_bytes(b'')
  store = checkpoint.Checkpoints(tmp_path)
  with pytest.raises(errors.CheckpointError, match='can be read') as caught:
    store.restore(_state(0.0))
  assert '\n' not in str(caught.value)
  store.close()


def test_checkpoint_of_another_model_is_refused_with_both_shapes(tmp_path):
  store = checkpoint.Checkpoints(tmp_path)
  store.save(1, _state(1.0), {})
  with pytest.raises(errors.CheckpointError, match='another model') as caught:
    store.restore(_state(0.0, width=4))
  assert '(2, 3)' in str(caught.value) and '(2, 4)' in str(caught.value)
  store.close()
