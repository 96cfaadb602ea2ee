"""The mesh table, its errors, and meshes of 8 CPU devices against one."""

import json
import pathlib
import subprocess
import sys

import jax
import pytest
from jax.sharding import PartitionSpec as P

from clawjax.errors import ConfigError
from clawjax.models import qwen3
from clawjax.models.config import Config
from clawjax.models.sharding import MESH_AXES, RULES, Sharding, make_mesh

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]


def FakeMesh(**sizes):
  """A mesh as far as sizes go, without the devices."""
  return jax.sharding.AbstractMesh(
    tuple(sizes.get(axis, 1) for axis in MESH_AXES), tuple(MESH_AXES)
  )


def test_logical_axes_become_mesh_axes():
  sharding = Sharding(FakeMesh(data=2, fsdp=4, tensor=2))
  assert sharding.spec(('embed', 'heads', None)) == P('fsdp', 'tensor', None)
  # Axes of one device are left out.
  assert sharding.spec(('expert', 'embed')) == P(None, 'fsdp')
  assert sharding.spec(('batch', 'length')) == P(('data', 'fsdp'), None)
  # Devices that share a row do not share parameters.
  wide = Sharding(FakeMesh(fsdp=4, context=2))
  assert wide.spec(('embed', 'heads')) == P(('fsdp', 'context'), None)
  assert wide.spec(('batch', 'length')) == P('fsdp', 'context')


def test_a_clash_shows_both_sides():
  rules = {**RULES, 'mlp': ('fsdp',)}
  sharding = Sharding(FakeMesh(fsdp=4), rules)
  text = (
    r"'embed' -> \('fsdp', 'context', 'expert'\) and 'mlp' -> \('fsdp',\)"
    " both use mesh axis 'fsdp'"
  )
  with pytest.raises(ConfigError, match=text):
    sharding.spec(('embed', 'mlp'))
  with pytest.raises(ConfigError, match='unknown logical axis'):
    sharding.spec(('depth',))


def test_sizes_that_do_not_divide_are_named():
  config = Config.tiny(heads=4, kv_heads=1, head_size=8)
  sharding = Sharding(FakeMesh(tensor=2))
  with pytest.raises(
    ConfigError, match=r"layers.0.k \[160, 1, 8\]: 'kv_heads'"
  ):
    sharding.of(qwen3.table(config))
  with pytest.raises(ConfigError, match='4 query heads cannot be spread'):
    Sharding(FakeMesh(tensor=2, context=4)).attend(None, config)


def test_meshes():
  mesh = make_mesh(jax.devices()[:1], fsdp=-1)
  assert dict(mesh.shape) == {
    'data': 1, 'fsdp': 1, 'expert': 1, 'context': 1, 'tensor': 1
  }  # fmt: skip
  with pytest.raises(ConfigError, match='wants 2 devices, got 1'):
    make_mesh(jax.devices()[:1], tensor=2)
  with pytest.raises(ConfigError, match='unknown mesh axes'):
    make_mesh(model=2)


def _run(names, tmp_path):
  done = subprocess.run(
    [sys.executable, HERE / 'mesh_cases.py', tmp_path, *names],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={'PYTHONPATH': str(ROOT), 'PATH': '/usr/bin:/bin'},
  )
  assert done.returncode == 0, done.stderr[-4000:]
  return json.loads(done.stdout.splitlines()[-1])


def _check(result):
  assert result['loss'] < 1e-6
  assert result['grad'] < 2e-5
  assert result['moments'] < 5e-5
  # Adam divides by the root of the second moment, near 0 for some entries.
  assert result['params'] < 2e-3


def test_a_combined_mesh_equals_one_device(tmp_path):
  out = _run(['fsdp expert context', 'reload'], tmp_path)
  _check(out['fsdp expert context'])
  # D is cut along fsdp, context and expert.
  assert out['fsdp expert context']['q_parts'] == 8
  assert out['reload'] is True


@pytest.mark.slow
def test_each_axis_and_combinations_equal_one_device(tmp_path):
  names = [
    'data', 'fsdp', 'tensor', 'expert', 'context',
    'expert tensor', 'fsdp context tensor',
  ]  # fmt: skip
  out = _run(names, tmp_path)
  for name in names:
    _check(out[name])
  assert out['fsdp']['q_parts'] == 8
  assert out['tensor']['q_parts'] == 2
  assert out['data']['q_parts'] == 1
