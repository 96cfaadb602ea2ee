"""Packed rows on meshes of 8 CPU devices equal each call alone on one."""

import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


def _check(*names):
  done = subprocess.run(
    [sys.executable, HERE / 'mesh_cases.py', *names],
    capture_output=True,
    text=True,
    env={'PYTHONPATH': str(HERE.parents[1]), 'PATH': '/usr/bin:/bin'},
  )
  assert done.returncode == 0, done.stderr[-4000:]
  result = json.loads(done.stdout.splitlines()[-1])
  assert set(result) == set(names)
  for name, numbers in result.items():
    assert numbers['loss'] < 2e-6, name
    assert numbers['logprob'] < 5e-6, name
    assert numbers['grad'] < 1e-5, name
    assert numbers['rows'] > 2, name
  return result


def test_context_and_all_axes_together():
  result = _check('dealt context', 'all')
  assert result['all']['parts'] == 8  # D is cut along all three axes


@pytest.mark.slow
def test_each_axis():
  result = _check('data', 'fsdp', 'tensor', 'expert', 'context')
  assert result['fsdp']['parts'] == 8
  assert result['tensor']['parts'] == 2
