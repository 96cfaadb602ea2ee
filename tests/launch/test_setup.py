"""launch/setup.sh against machines made of stand-ins.

The script runs in a copy of its own with a PATH of our making: the system's
small tools, and a `python3.X` that is a shell script. That one knows three
things: it tells its version, `-m venv DIR` puts itself into DIR/bin, and
`-m pip` appends its arguments to a file and does what $PIP says. So each test
takes a fraction of a second and no network.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = (
  *('bash', 'env', 'cat', 'cut', 'sort', 'paste', 'tr', 'awk', 'sed', 'grep'),
  *('sha256sum', 'mkdir', 'mv', 'rm', 'ls', 'ln', 'cp', 'touch', 'tail', 'df'),
  *('dirname', 'flock', 'sleep', 'chmod', 'id'),
)

PYTHON = r"""#!/bin/bash
# A stand-in for Python {version}.
has="{has}"
case "$1 $2" in
  '-c import sys; print("%d.%d"'*) echo {version} ;;
  '-c import ensurepip, venv') [[ $has = *venv* ]] ;;
  '-m venv')
    [ "$VENV" = slow ] && {{ mkdir -p "$3/bin"; sleep 300; }}
    mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  '-m pip')
    [[ $has = *pip* ]] || exit 1
    [ "$3" = --version ] && exit 0
    echo "${{@:3}}" >>"$PIP_LOG"
    case $PIP in
      full) echo 'OSError: [Errno 28] No space left on device' ; exit 1 ;;
      broken) echo 'no such package' ; exit 1 ;;
      slow) sleep 300 ;;
    esac ;;
  -c*) exit 0 ;;
  -V*) echo Python {version} ;;
esac
"""


class Machine:
  """A checkout with only the set-up in it, and a PATH."""

  def __init__(self, folder: pathlib.Path):
    self.root = folder / 'checkout'
    (self.root / 'launch').mkdir(parents=True)
    shutil.copy(ROOT / 'launch/setup.sh', self.root / 'launch')
    (self.root / 'setup.py').write_text('# 1\n')
    self.bin = folder / 'bin'
    self.bin.mkdir()
    for tool in TOOLS:
      found = shutil.which(tool)
      assert found, tool
      (self.bin / tool).symlink_to(found)
    self.home = folder / 'home'
    self.log = folder / 'pip.log'
    self.stamps = self.root / '.venv/.stamps'

  def python(self, version, *, has='venv pip', path=None):
    path = path or self.bin / f'python{version}'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PYTHON.format(version=version, has=has))
    path.chmod(0o755)

  def start(self, *arguments, **env):
    return subprocess.Popen(
      [self.root / 'launch/setup.sh', *(arguments or ('train',))],
      env={
        'PATH': str(self.bin),
        'HOME': str(self.home),
        'PIP_LOG': str(self.log),
        **env,
      },
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )

  def setup(self, *arguments, **env) -> tuple[int, str]:
    process = self.start(*arguments, **env)
    _, text = process.communicate(timeout=300)
    return process.returncode, text

  def pip(self) -> list[str]:
    return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path):
  return Machine(tmp_path)


def test_takes_the_newest_python(machine):
  for version in ('3.11', '3.13', '3.12'):
    machine.python(version)
  status, text = machine.setup()
  assert status == 0
  assert f'Python 3.13 at {machine.bin}/python3.13' in text


def test_a_version_that_pyenv_has_but_not_on_the_path(machine):
  machine.python('3.11')
  inside = machine.home / '.pyenv/versions/3.12.1/bin/python'
  machine.python('3.12', path=inside)
  # The shim of a version that is not active is on PATH and fails.
  (machine.bin / 'python3.12').write_text('#!/bin/bash\nexit 127\n')
  (machine.bin / 'python3.12').chmod(0o755)
  status, text = machine.setup()
  assert status == 0
  assert f'Python 3.12 at {inside}' in text


def test_plain_python3_counts_when_its_version_fits(machine):
  machine.python('3.11', path=machine.bin / 'python3')
  status, text = machine.setup()
  assert status == 0
  assert 'Python 3.11 at' in text


@pytest.mark.parametrize('version', ['3.10', '3.14'])
def test_other_versions_are_refused_in_one_line(machine, version):
  machine.python(version, path=machine.bin / 'python3')
  status, text = machine.setup()
  assert status == 1
  assert len(text.splitlines()) == 1
  assert 'no Python 3.11, 3.12 or 3.13' in text and f'Python {version}' in text
  assert not (machine.root / '.venv').exists()


def test_the_second_time_does_nothing(machine):
  machine.python('3.12')
  assert machine.setup()[0] == 0
  calls = machine.pip()
  assert machine.setup() == (0, '')
  assert machine.pip() == calls
  assert len(calls) == 1


def test_a_changed_setup_py_installs_again(machine):
  machine.python('3.12')
  machine.setup()
  (machine.root / 'setup.py').write_text('# 2\n')
  machine.setup()
  assert len(machine.pip()) == 2


def test_extras_of_the_two_commands_add_up(machine):
  """tests/run.sh after launch/run.sh, and then launch/run.sh once more."""
  machine.python('3.12')
  machine.setup('train,harness')
  machine.setup('train,harness,dev')
  assert machine.setup('train,harness') == (0, '')
  assert [c.split()[-1] for c in machine.pip()] == [
    '.[harness,train]',
    '.[dev,harness,train]',
  ]


@pytest.mark.parametrize('stage', [{'VENV': 'slow'}, {'PIP': 'slow'}])
def test_an_interrupted_set_up_starts_over(machine, stage):
  machine.python('3.12')
  process = machine.start(**stage)
  deadline = time.monotonic() + 120
  while not (
    machine.pip() if 'PIP' in stage else (machine.root / '.venv/bin').exists()
  ):
    assert time.monotonic() < deadline
    time.sleep(0.02)
  os.killpg(process.pid, signal.SIGKILL)
  process.communicate()
  assert not machine.stamps.exists()
  (machine.root / '.venv/rubble').touch()
  status, text = machine.setup()
  assert status == 0
  assert 'interrupted; starting the environment over' in text
  assert not (machine.root / '.venv/rubble').exists()
  assert machine.setup() == (0, '')


def test_an_interrupted_upgrade_starts_over(machine):
  machine.python('3.12')
  machine.setup('train')
  process = machine.start('train,dev', PIP='slow')
  deadline = time.monotonic() + 120
  while len(machine.pip()) < 2:
    assert time.monotonic() < deadline
    time.sleep(0.02)
  os.killpg(process.pid, signal.SIGKILL)
  process.communicate()
  status, text = machine.setup('train')
  assert status == 0 and 'starting the environment over' in text


def test_an_environment_of_the_user_is_used_and_never_removed(machine):
  machine.python('3.12', path=machine.root / '.venv/bin/python')
  (machine.root / '.venv/mine').touch()
  assert machine.setup(PIP='broken')[0] == 1
  assert machine.setup()[0] == 0
  assert (machine.root / '.venv/mine').exists()
  assert len(machine.pip()) == 2


def test_an_environment_whose_python_is_gone(machine):
  machine.python('3.12')
  machine.setup()
  (machine.root / '.venv/bin/python').unlink()
  status, text = machine.setup()
  assert status == 0 and 'starting the environment over' in text


def test_a_full_disk_is_said(machine):
  machine.python('3.12')
  status, text = machine.setup(PIP='full')
  assert status == 1
  assert 'the disk is full' in text.splitlines()[-1]


def test_a_failing_pip_shows_what_it_said_and_leaves_nothing_whole(machine):
  machine.python('3.12')
  status, text = machine.setup(PIP='broken')
  assert status == 1
  assert 'no such package' in text
  assert 'installing Python packages failed' in text.splitlines()[-1]
  assert not machine.stamps.exists()
  assert machine.setup()[0] == 0


def test_without_venv_pip_fetches_virtualenv(machine):
  machine.python('3.12', has='pip')
  machine.setup()
  assert 'virtualenv' in machine.pip()[0]


def test_without_venv_and_pip_one_line_names_the_package(machine):
  machine.python('3.12', has='')
  status, text = machine.setup()
  assert status == 1
  assert 'apt-get install python3-venv' in text.splitlines()[-1]
  assert not (machine.root / '.venv').exists()


def test_two_at_once_wait_for_each_other(machine):
  machine.python('3.12')
  both = [machine.start() for _ in range(2)]
  texts = [p.communicate(timeout=300)[1] for p in both]
  assert [p.returncode for p in both] == [0, 0]
  assert len(machine.pip()) == 1, texts
