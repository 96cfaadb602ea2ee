"""The loop on recorded rollouts: resume after kill -9, shares, control."""

import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from clawjax import types
from clawjax.train import accounts, checkpoint, loop

HERE = pathlib.Path(__file__).parent
_spec = importlib.util.spec_from_file_location('toy_run', HERE / 'toy_run.py')
toy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toy)

STEPS = 4


def _leaves(run_dir, parts):
  store = checkpoint.Checkpoints(run_dir / 'checkpoints')
  step, state, facts = store.restore(parts.state)
  store.close()
  assert facts['policy_version'] == step
  return step, [np.asarray(x) for x in jax.tree.leaves(state)]


def _run(folder, *arguments):
  root = HERE.parents[1]
  environment = os.environ | {'PYTHONPATH': str(root), 'JAX_PLATFORMS': 'cpu'}
  return subprocess.run(
    [sys.executable, str(HERE / 'toy_run.py'), str(folder), *arguments],
    env=environment, capture_output=True, text=True, timeout=300,
  )  # fmt: skip


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
  folder = tmp_path_factory.mktemp('unbroken')
  parts = toy.parts(folder)
  page = loop.train(parts, toy.config(STEPS))
  return folder, parts, page


def test_killed_run_resumes_to_the_same_state(unbroken, tmp_path):
  whole, parts, _ = unbroken
  folder = tmp_path / 'run'
  killed = _run(folder, str(STEPS), '3')
  assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
  assert [r['step'] for r in toy.rows(folder)] == [0, 1, 2]
  resumed = _run(folder, str(STEPS))
  assert resumed.returncode == 0, resumed.stderr[-2000:]
  # The checkpoint of step 2 was being written when the kill came, or was whole.
  assert re.search(r'resumed after step [12]\b', resumed.stdout)
  step, leaves = _leaves(folder, parts)
  wanted_step, wanted = _leaves(whole, parts)
  assert step == wanted_step == STEPS
  for got, want in zip(leaves, wanted, strict=True):
    np.testing.assert_array_equal(got, want)
  assert toy.rows(folder) == toy.rows(whole)


def test_resume_takes_complete_groups_from_the_run_folder(tmp_path):
  folder = tmp_path / 'run'
  assert _run(folder, str(STEPS), '3').returncode == -signal.SIGKILL
  parts = toy.parts(folder)
  loop.train(parts, toy.config(STEPS))
  third = [p for p in parts.service.asked if p.startswith('train/3/')]
  assert len(third) == 2  # of four groups two were complete


def test_a_finished_run_is_left_as_it_is(unbroken):
  folder, _, page = unbroken
  before = toy.rows(folder)
  parts = toy.parts(folder)
  assert loop.train(parts, toy.config(STEPS)) == page
  assert parts.service.asked == []
  assert toy.rows(folder) == before


def test_versions_go_to_the_engine_in_order(unbroken):
  _, parts, _ = unbroken
  assert parts.serving.versions == [1, 2, 3, 4]


def test_run_folder_is_complete(unbroken):
  folder, _, page = unbroken
  assert page.exists() and page.suffix == '.html'
  assert (folder / 'metrics.jsonl').exists()
  assert list((folder / 'tensorboard').glob('events*'))
  stored = list((folder / 'rollouts' / 'train' / '00001').glob('*.json'))
  assert len(stored) == 12
  back = types.rollout_from_json(json.loads(stored[0].read_text()))
  assert back.valid
  for when in ('before', 'after'):
    trials = json.loads((folder / 'eval' / f'{when}.json').read_text())
    assert len(trials) == 3 * 2 + 3  # two samples and one greedy per task


def test_the_first_ratio_is_one_and_the_state_moves(unbroken):
  folder, parts, _ = unbroken
  rows = [r for r in toy.rows(folder) if 'train/loss' in r]
  assert len(rows) == STEPS
  for row in rows:
    # max |ratio - 1| at the first minibatch: old and new are one program.
    assert row['train/first_max_ratio'] < 1e-5
    assert row['train/optimizer_steps'] == 4
    assert row['train/delivered_fraction'] == 1.0
    assert row['train/kl_k3'] > 0
  _, leaves = _leaves(folder, parts)
  fresh = toy.parts(folder).state
  start = [np.asarray(x) for x in jax.tree.leaves(fresh)]
  assert any((a != b).any() for a, b in zip(leaves, start, strict=True))


def test_shares_of_wall_time_sum_to_one():
  clock = accounts.Clock()
  clock._start -= 10.0
  clock.spent['collect'] = 5.0
  rollout = types.Rollout(
    'r', 't', 'h',
    timings={'total': 4.0, 'model': 1.0, 'harness': 3.0, 'create': 0.5},
  )  # fmt: skip
  shares = accounts.shares([rollout], clock)
  # Half of the wall is collecting: 1/4 of it model, 2/4 harness, 1/8 sandbox.
  assert shares['time/share_model'] == pytest.approx(0.125, rel=1e-3)
  assert shares['time/share_harness'] == pytest.approx(0.25, rel=1e-3)
  assert shares['time/share_sandbox'] == pytest.approx(0.0625, rel=1e-3)
  assert sum(shares.values()) == pytest.approx(1.0)
