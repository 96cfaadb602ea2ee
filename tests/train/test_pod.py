"""Several processes train as one does; news and errors of process 0 reach all."""

import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from clawjax import config, errors
from clawjax.train import pod

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
_spec = importlib.util.spec_from_file_location('toy_run', HERE / 'toy_run.py')
toy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toy)


def test_alone_everything_passes_through():
  here = pod.PodConfig().start()
  assert here.alone and here.leads
  value = object()
  assert here.share(value) is value
  assert here.lead(lambda: value) is value
  assert list(here.each(lambda: iter('abc'))) == ['a', 'b', 'c']
  with pytest.raises(ZeroDivisionError):
    here.lead(lambda: 1 / 0)


@pytest.mark.parametrize(
  ('section', 'text'),
  [
    ({'on': True, 'coordinator': 'a:1'}, 'go together'),
    ({'coordinator': 'a:1', 'processes': 2, 'process': 0}, 'on is True'),
    (
      {'on': True, 'coordinator': 'a:1', 'processes': 2, 'process': 2},
      'below 2',
    ),
  ],
)
def test_half_a_pod_is_refused(section, text):
  with pytest.raises(errors.ConfigError, match=text):
    config.build(pod.PodConfig, section, path='pod')


def start(processes, folder, *arguments):
  """The processes of one run."""
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    port = probe.getsockname()[1]
  return [
    subprocess.Popen(
      [
        sys.executable, HERE / 'pod_run.py', str(processes), str(i), str(port),
        folder, *arguments,
      ],
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=HERE,
      env=os.environ | {'PYTHONPATH': f'{ROOT}:{HERE}'},
    )
    for i in range(processes)
  ]  # fmt: skip


def ended(jobs):
  """(status, stdout, stderr) of each."""
  try:
    said = [job.communicate(timeout=400) for job in jobs]
  finally:
    for job in jobs:
      job.kill()
  return [(j.returncode, *s) for j, s in zip(jobs, said, strict=True)]


@pytest.fixture(scope='module')
def one(tmp_path_factory):
  folder = tmp_path_factory.mktemp('one')
  [(status, _, stderr)] = ended(start(1, folder, '2'))
  assert status == 0, stderr[-3000:]
  return toy.rows(folder)


def check(folder, one):
  two = toy.rows(folder)
  assert [row['step'] for row in two] == [0, 1, 2, 2]
  for got, want in zip(two, one, strict=True):
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_two_processes_train_as_one(one, tmp_path):
  for status, stdout, stderr in ended(start(2, tmp_path, '2')):
    assert status == 0, stderr[-3000:]
    assert f'page {tmp_path}/report.html' in stdout
  check(tmp_path, one)
  trials = json.loads((tmp_path / 'eval' / 'after.json').read_text())
  assert len(trials) == 3 * 2 + 3


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_resumes(one, tmp_path):
  [(first, *_), (second, *_)] = ended(start(2, tmp_path, '2', '2'))
  assert first == -signal.SIGKILL and second != 0
  assert [row['step'] for row in toy.rows(tmp_path)] == [0, 1]
  for status, _, stderr in ended(start(2, tmp_path, '2')):
    assert status == 0, stderr[-3000:]
  check(tmp_path, one)


@pytest.mark.slow
def test_an_error_of_process_0_is_named_by_all(tmp_path):
  [(first, _, here), (second, _, there)] = ended(
    start(2, tmp_path, '2', 'fail')
  )
  assert (first, second) == (2, 2)
  assert here.rstrip().endswith('no sandbox here')
  assert there.rstrip().endswith('process 0: SandboxError: no sandbox here')
