"""launch/xm_launch.py from outside: what it prints and its exit status.

Each case is a process with a stand-in for `clawjax.experiment` that does what the
case says. Two are started as a person starts them; the rest are forked from one
that has the libraries imported, since importing them takes longer than a case.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

EXPERIMENT = """
import ml_collections

def get_config():
  return ml_collections.ConfigDict({
    'seed': 0,
    'optimizer': {'learning_rate': 0.1, 'warmup': 3, 'name': 'adam'},
    'tags': ('a', 'b'),
    'resume': True,
  })
"""

# Serves cases: one JSON line in (arguments, what, folder), one line out (status).
# The child's output goes to files in the case's folder.
SERVER = """
import errno, json, os, runpy, signal, sys, types
# A suite started in the background hands on an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
from absl import flags
from ml_collections import config_flags
from clawjax import errors

def main(config, *, run_dir):
  if what == 'print':
    print(json.dumps([config.to_dict(), run_dir and str(run_dir)]))
    return 0
  if what == 'status':
    return 3
  if what == 'wait':
    print('ready', flush=True)
    import time
    time.sleep(60)
  if what == 'wrapped':
    try:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'runs/a/x')
    except OSError as error:
      raise ValueError('save failed') from error
  raise eval(what)

import clawjax
clawjax.experiment = types.ModuleType('clawjax.experiment')
clawjax.experiment.main = main
sys.modules['clawjax.experiment'] = clawjax.experiment

def run(arguments):
  sys.argv = arguments
  runpy.run_path(sys.argv[0], run_name='__main__')

if len(sys.argv) > 1:
  what = sys.argv[1]
  run(sys.argv[2:])
for line in sys.stdin:
  arguments, what, folder = json.loads(line)
  child = os.fork()
  if not child:
    os.chdir(folder)
    for number, name in ((1, 'stdout'), (2, 'stderr')):
      os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    run(arguments)
    os._exit(0)
  status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  print(status, flush=True)
"""
LAUNCHER = str(ROOT / 'launch/xm_launch.py')
ENV = {**os.environ, 'PYTHONPATH': str(ROOT)}


@pytest.fixture(scope='module')
def server():
  with subprocess.Popen(
    [sys.executable, '-c', SERVER],
    env=ENV,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    yield process
    process.stdin.close()


@pytest.fixture
def launch(server, tmp_path):
  (tmp_path / 'experiment.py').write_text(EXPERIMENT)

  def launch(*arguments, what='print'):
    request = [[LAUNCHER, *arguments], what, str(tmp_path)]
    server.stdin.write(json.dumps(request) + '\n')
    server.stdin.flush()
    status = int(server.stdout.readline())
    return status, *(
      (tmp_path / name).read_text() for name in ('stdout', 'stderr')
    )

  return launch


def test_runs_the_experiment_with_the_config_and_the_folder(launch):
  status, out, err = launch(
    '--config=experiment.py',
    '--config.optimizer.learning_rate=2',
    '--config.resume=false',
    "--config.tags=('c',)",
    '--name=first',
  )
  assert (status, err) == (0, '')
  config, folder = json.loads(out)
  assert config == {
    'seed': 0,
    'optimizer': {'learning_rate': 2.0, 'warmup': 3, 'name': 'adam'},
    'tags': ['c'],
    'resume': False,
  }
  assert folder == 'runs/first'


def test_flag_and_value_may_be_two_arguments(launch):
  _, out, _ = launch(
    *('--config', 'experiment.py', '--config.seed', '7'),
    *('--run_dir', 'somewhere'),
  )
  config, folder = json.loads(out)
  assert config['seed'] == 7 and folder == 'somewhere'


def test_without_folder_flags_the_config_decides(launch):
  _, out, _ = launch('--config=experiment.py')
  assert json.loads(out)[1] is None


def test_the_status_of_the_run_is_ours(launch):
  assert launch('--config=experiment.py', what='status')[0] == 3


FILE = '--config=experiment.py'


@pytest.mark.parametrize(
  'arguments, text',
  [
    ([], 'which experiment? --config=FILE'),
    (['--config=absent.py'], "no config file 'absent.py'"),
    ([FILE, '--config.sed=1'], "'sed'; did you mean 'seed'?"),
    ([FILE, '--config.nothing=1'], "unknown config key 'nothing'"),
    (
      [FILE, '--config.optimizer.learning_rat=1'],
      "did you mean 'optimizer.learning_rate'?",
    ),
    ([FILE, '--config.seed.x=1'], "'seed' is a value, not a section"),
    ([FILE, '--config.seed=many'], "'seed': wanted int; got 'many'"),
    ([FILE, '--config.seed=1.5'], "'seed': wanted int; got '1.5'"),
    ([FILE, '--config.resume=perhaps'], "'resume': wanted bool; got"),
    ([FILE, '--config.optimizer=3'], "'optimizer': wanted a section"),
    ([FILE, '--config.seed'], 'Missing value for flag --config.seed'),
    ([FILE, '--confg.seed=1'], "Unknown command line flag 'confg.seed'"),
    ([FILE, 'seed=1'], "unexpected argument 'seed=1'"),
    ([FILE, '--xm=perhaps'], '--xm'),
  ],
)
def test_what_is_wrong_with_the_command_is_one_line(launch, arguments, text):
  status, out, err = launch(*arguments)
  assert (status, out) == (2, '')
  assert len(err.splitlines()) == 1, err
  assert err.startswith('clawjax: ') and text in err


@pytest.mark.parametrize(
  'content, text',
  [
    ('x = 1', 'has no get_config()'),
    ('def get_config(:', 'SyntaxError'),
    (
      'def get_config():\n  return undefined',
      "line 2: NameError: name 'undefined'",
    ),
    ('def get_config():\n  return 3', 'must return a ConfigDict, not int'),
    ('import absent_library', 'line 1: ModuleNotFoundError: No module named'),
  ],
)
def test_what_is_wrong_with_the_file_is_one_line(
  launch, tmp_path, content, text
):
  (tmp_path / 'bad.py').write_text(content)
  status, out, err = launch('--config=bad.py')
  assert (status, out) == (2, '')
  assert len(err.splitlines()) == 1, err
  assert 'bad.py' in err and text in err


@pytest.mark.parametrize(
  'what, text',
  [
    ("errors.SandboxError('no sandbox:\\n  do this')", 'no sandbox: do this'),
    ("OSError(errno.EADDRINUSE, 'Address already in use')", 'another port'),
    ("OSError(errno.ENOSPC, 'No space left', 'x')", '(x): the disk is full'),
    ('wrapped', '(runs/a/x): the disk is full'),
    ("ValueError('RESOURCE: No space left on device')", 'the disk is full'),
  ],
)
def test_what_a_person_can_put_right_is_one_line(launch, what, text):
  status, out, err = launch(FILE, what=what)
  assert (status, out) == (2, '')
  assert len(err.splitlines()) == 1, err
  assert err.startswith('clawjax: ') and text in err


def test_a_bug_of_ours_keeps_its_traceback(launch):
  status, _, err = launch(FILE, what="ValueError('bug')")
  assert status == 1
  assert 'Traceback' in err and 'ValueError: bug' in err


def test_ctrl_c_is_one_line(tmp_path):
  (tmp_path / 'experiment.py').write_text(EXPERIMENT)
  with subprocess.Popen(
    [sys.executable, '-c', SERVER, 'wait', LAUNCHER, FILE],
    cwd=tmp_path,
    env=ENV,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stdout.readline() == 'ready\n'
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
  assert process.returncode == 130
  assert err == (
    'clawjax: stopped; the same command goes on from the last finished step\n'
  )


def test_without_the_package_one_line_says_how_to_set_up(tmp_path):
  done = subprocess.run(
    [sys.executable, '-S', LAUNCHER, FILE],
    cwd=tmp_path,
    env={},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 1
  assert len(done.stderr.splitlines()) == 1
  assert 'launch/run.sh' in done.stderr


def test_xm_without_the_extra_names_it(launch):
  try:
    import xmanager  # noqa: F401
  except ImportError:
    status, _, err = launch(FILE, '--xm')
    assert status == 2
    assert "pip install -e '.[launch]'" in err
  else:
    pytest.skip('xmanager is installed')


def test_help_shows_the_flags(launch):
  status, out, _ = launch('--help')
  assert status == 0
  assert '--run_dir' in out and 'configs/quickstart.py' in out
