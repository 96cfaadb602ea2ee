"""Loading holds the result and little beside it; saving, little."""

import json
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from clawjax.models import checkpoint
from clawjax.models.config import PRESETS

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


def write_random(config, folder, shard_bytes):
  """A folder of random bfloat16 weights, one shard in memory at a time."""
  rng = np.random.default_rng(0)
  weight_map, shard, size, number = {}, {}, 0, 0

  def flush():
    nonlocal shard, size, number
    name = f'model-{number:05d}.safetensors'
    save_file(shard, folder / name)
    weight_map.update(dict.fromkeys(shard, name))
    shard, size, number = {}, 0, number + 1

  for source in checkpoint.mapping(config):
    # Random bits of small numbers: much faster than drawing normals.
    bits = rng.integers(0x3C00, 0x3D00, source.hf_shape, dtype=np.uint16)
    shard[source.name] = bits.view(ml_dtypes.bfloat16)
    size += bits.nbytes
    if size >= shard_bytes:
      flush()
  if shard:
    flush()
  (folder / checkpoint.INDEX).write_text(json.dumps({'weight_map': weight_map}))
  (folder / 'config.json').write_text(json.dumps(config.to_hf()))


def measure(folder, target, shard_bytes):
  done = subprocess.run(
    [
      sys.executable,
      HERE / 'load_cases.py',
      folder,
      target,
      str(shard_bytes),
    ],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu'},
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


def check(config, folder, shard_bytes):
  """Peaks of loading and saving; what was saved is what was there."""
  (folder / 'in').mkdir()
  write_random(config, folder / 'in', shard_bytes)
  result = measure(folder / 'in', folder / 'out', shard_bytes)
  assert result['params'] == config.total_params * 2
  extra = result['load'] - result['params']
  print(
    f'beside the parameters: load {extra / 2**20:.0f} MiB, '
    f'save {result["save"] / 2**20:.0f} MiB, shard {shard_bytes / 2**20:.0f}'
  )
  assert extra < 2 * shard_bytes
  assert result['save'] < 2 * shard_bytes
  index = [
    json.loads((folder / name / checkpoint.INDEX).read_text())['weight_map']
    for name in ('in', 'out')
  ]
  assert set(index[0]) == set(index[1])
  assert len(set(index[1].values())) > 2
  for name in [*index[0]][:: max(1, len(index[0]) // 8)]:
    one, two = (
      safe_open(folder / part / places[name], 'numpy')
      for part, places in zip(('in', 'out'), index, strict=True)
    )
    assert np.array_equal(
      one.get_tensor(name).view(np.uint16), two.get_tensor(name).view(np.uint16)
    )


@pytest.mark.slow
def test_peaks_of_a_small_folder(tmp_path):
  """Qwen3-8B's width, two narrow layers; shards of 64 MiB."""
  config = PRESETS['qwen3-8b'].replace(layers=2, vocab=4096, mlp_width=1024)
  check(config, tmp_path, 2**26)


@pytest.mark.slow
def test_peaks_of_the_whole_8b(tmp_path):
  """36 layers, 16.4 GB: disk for two copies and memory for one and a bit."""
  check(PRESETS['qwen3-8b'], tmp_path, 2**30)


@pytest.mark.slow
def test_peaks_of_8b_with_two_layers(tmp_path):
  check(PRESETS['qwen3-8b'].replace(layers=2), tmp_path, 2**29)
