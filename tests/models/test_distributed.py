"""Two processes of `jax.distributed` compute what one process does."""

import json
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from clawjax.models import checkpoint, qwen3
from clawjax.models.config import Config

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
CONFIG = Config.tiny(
  vocab=64, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
  experts=4, experts_per_token=2, expert_width=16,
)  # fmt: skip


def run(processes, folder):
  """What process 0 printed."""
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    port = probe.getsockname()[1]
  jobs = [
    subprocess.Popen(
      [
        sys.executable, HERE / 'distributed_cases.py',
        str(processes), str(i), str(port), folder,
      ],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      cwd=ROOT,
      env={'PYTHONPATH': str(ROOT), 'PATH': '/usr/bin:/bin'},
    )
    for i in range(processes)
  ]  # fmt: skip
  try:
    done = [job.communicate(timeout=300) for job in jobs]
  finally:
    for job in jobs:
      job.kill()
  for job, (_, stderr) in zip(jobs, done, strict=True):
    assert job.returncode == 0, stderr[-4000:]
  return json.loads(done[0][0].splitlines()[-1])


@pytest.fixture(scope='module')
def results(tmp_path_factory):
  folder = tmp_path_factory.mktemp('distributed')
  params = qwen3.init(CONFIG, jax.random.key(0))
  checkpoint.save_hf(params, CONFIG, folder / 'start')
  one, two = run(1, folder), run(2, folder)
  ends = [checkpoint.load_hf(folder / f'end{n}')[0] for n in (1, 2)]
  return params, one, two, ends


@pytest.mark.slow
def test_two_processes_equal_one(results):
  params, one, two, (end_one, end_two) = results
  assert (one['processes'], two['processes']) == (1, 2)
  assert one['rows'] == two['rows'] == 8
  np.testing.assert_allclose(two['logp'], one['logp'], atol=1e-5)
  assert two['metrics'] == pytest.approx(one['metrics'], rel=1e-4, abs=1e-6)
  # Adam moved every weight that had a gradient by the rate; a difference of a
  # hundredth of it would be a different gradient.
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), params, end_one)
  assert max(jax.tree.leaves(moved)) > 0.009
  for a, b in zip(
    jax.tree.leaves(end_one), jax.tree.leaves(end_two), strict=True
  ):
    assert np.mean(np.abs(np.asarray(a) - np.asarray(b)) > 1e-4) < 0.01
