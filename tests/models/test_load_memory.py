"""Loading holds the result and little beside it."""

import json
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
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


def measure(folder):
  done = subprocess.run(
    [sys.executable, HERE / 'load_cases.py', folder],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu'},
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize('layers', [2, 36])
def test_peak_memory_is_the_result_and_two_shards(layers, tmp_path):
  """Qwen3-8B's shapes; 36 layers are the whole (16 GB of disk and memory)."""
  config = PRESETS['qwen3-8b'].replace(layers=layers)
  if layers < 36:
    config = config.replace(vocab=16384)
  shard_bytes = 2**28 if layers < 36 else 2**30
  write_random(config, tmp_path, shard_bytes)
  result = measure(tmp_path)
  assert result['params'] == config.total_params * jnp.bfloat16.dtype.itemsize
  extra = result['grown'] - result['params']
  print(f'beside the parameters: {extra / 2**20:.0f} MiB')
  assert extra < 2 * shard_bytes
