"""What is written to gs:// and read from there, against a GCS server.

See `tests/gcs.py` for what it needs; run folders are in `tests/test_mirror.py`.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax import errors, types
from clawjax.models import checkpoint, qwen3
from clawjax.models.config import Config
from clawjax.tasks import dataset, formats
from clawjax.train import checkpoint as train_checkpoint
from tests.gcs import gcs

assert gcs
pytestmark = pytest.mark.slow

TASKS = [types.Task(f't/{n}', (f'Do {n}.',), {'a': b'\xff'}) for n in range(7)]


def test_a_data_set(gcs, tmp_path):
  pytest.importorskip('array_record')
  pytest.importorskip('grain')
  place = f'{gcs}/sets/one'
  assert not dataset.is_set(place)
  assert dataset.write(place, TASKS, shards=3, facts={'a': 1}) == 7
  assert dataset.is_set(place) and not dataset.is_set(f'{gcs}/sets')
  with pytest.raises(errors.TaskError, match='overwritten'):
    dataset.write(place, TASKS)
  with pytest.raises(errors.TaskError, match='no data set there'):
    dataset.open(f'{gcs}/sets/two', cache_dir=tmp_path)
  source = dataset.open(place, cache_dir=tmp_path / 'cache')
  assert list(source) == TASKS and source.facts == {'a': 1}
  batches = dataset.loader(source, seed=1, batch=2)
  first = next(batches)
  state = batches.get_state()
  second = next(batches)
  again = dataset.loader(
    dataset.open(place, cache_dir=tmp_path / 'other'), seed=1, batch=2
  )
  again.set_state(state)
  assert next(again) == second != first


def test_a_task_set_for_training(gcs, tmp_path, monkeypatch):
  """By the command, and loaded as `tasks.path` is."""
  pytest.importorskip('array_record')
  monkeypatch.setenv('HOME', str(tmp_path))
  local, place = tmp_path / 'local', f'{gcs}/sets/made'
  dataset.write(local, TASKS)
  for out, source in ((place, local), (str(tmp_path / 'back'), place)):
    made = subprocess.run(
      [
        *(sys.executable, '-m', 'clawjax.tasks.dataset', out),
        *('--tasks', str(source), '--format', 'arrayrecord'),
      ],
      capture_output=True,
      text=True,
    )
    assert made.returncode == 0, made.stderr
    assert '7 written' in made.stdout
    report = formats.load(out, 'arrayrecord')
    assert [t.id for t in report.tasks] == [t.id for t in TASKS]


def test_a_model_folder(gcs):
  config = Config.tiny(vocab=48, width=16, layers=2)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32),
    qwen3.abstract(config),
  )
  place = f'{gcs}/models/tiny'
  checkpoint.save_hf(params, config, place, shard_bytes=4000)
  loaded, read = checkpoint.load_hf(place)
  assert read.width == 16 and read.layers == 2
  jax.tree.map(np.testing.assert_array_equal, params, loaded)
  with pytest.raises(errors.CheckpointError, match='models/none'):
    checkpoint.load_hf(f'{gcs}/models/none')


def test_a_training_state(gcs):
  """Written by Orbax and read by another manager, as after a restart."""
  place = f'{gcs}/run/checkpoints'
  state = {'a': jnp.arange(5.0), 'b': jnp.ones((2, 3), jnp.int32)}
  writer = train_checkpoint.Checkpoints(place, keep=1)
  for step in (1, 2):
    writer.save(step, {**state, 'b': state['b'] * step}, {'seed': 7})
  writer.wait()
  found = train_checkpoint.Checkpoints(place).restore(state)
  assert found is not None and found[0] == 2
  np.testing.assert_array_equal(found[1]['a'], np.arange(5.0))
  np.testing.assert_array_equal(found[1]['b'], np.full((2, 3), 2))
  assert found[2] == {'step': 2, 'seed': 7}
