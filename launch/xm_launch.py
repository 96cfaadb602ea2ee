"""Starts one experiment: in this process, or as an XManager job.

  python launch/xm_launch.py --config=configs/quickstart.py
  python launch/xm_launch.py --config=configs/quickstart.py --config.seed=1
  python launch/xm_launch.py --config=configs/quickstart.py --xm

`--config` names a file with `get_config()`; `--config.a.b=v` overrides one key.
The run goes to `--run_dir` (a folder, or an address like gs://BUCKET/RUN that it
is copied to), or to `runs/NAME` with `--name`, or to where the config says. The
same command resumes a run that was stopped.

With `--xm` the same flags start the same job as an XManager local experiment
(extra `launch`); XManager keeps its own list of experiments in the home folder.

What a person can put right (a key, a file, a missing program, a full disk) is
one line on stderr and exit status 2; Ctrl-C is one line and status 130. A
traceback is a bug of ours and status 1.
"""

import difflib
import errno
import os
import pathlib
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
  sys.path.insert(0, str(ROOT))  # configs/ import each other and clawjax

try:
  import ml_collections
  from absl import flags
  from ml_collections import config_flags

  from clawjax import errors
except ImportError as missing:
  sys.exit(
    f'clawjax: {missing}; set up first: launch/run.sh does, or'
    " pip install -e '.[train,harness]'"
  )

OVERRIDE = '--config.'
# OSErrors that are about the machine, not about our code.
MACHINE = {
  errno.ENOSPC: 'the disk is full; free some space and run the same command',
  errno.EDQUOT: 'the disk quota is used up; free some space and run the same'
  ' command',
  errno.EADDRINUSE: 'the address is taken by another program; stop it or'
  ' choose another port',
  errno.EROFS: 'the folder is read-only; choose another with --run_dir',
  errno.EACCES: 'permission denied',
}

_CONFIG = config_flags.DEFINE_config_file(
  'config', None, 'Experiment file with get_config().', lock_config=True
)
_RUN_DIR = flags.DEFINE_string('run_dir', None, 'Folder or address of the run.')
_NAME = flags.DEFINE_string('name', None, 'Short for --run_dir=runs/NAME.')
_XM = flags.DEFINE_bool('xm', False, 'Start it as an XManager experiment.')


def parse(argv: Sequence[str]) -> list[str]:
  """Parses `argv` into the absl flags; returns the arguments it stands for.

  Args:
    argv: program name and arguments.

  Raises:
    ConfigError: an unknown flag or key, a value of a wrong type, a config
      file that is absent or does not run.
  """
  argv = list(argv)
  config = None
  for i, argument in enumerate(argv):
    # Both `--config=FILE` and `--config FILE`; absl takes one dash, too.
    name, equals, value = argument.partition('=')
    if name.lstrip('-') == 'config' and name.startswith('-'):
      at = i if equals else i + 1
      if at >= len(argv):
        break
      path = _config_file(value if equals else argv[at])
      argv[at] = f'{name}={path}' if equals else str(path)
      config = _read_config(path)
  if config is not None:
    for key in _overrides(argv):
      _check_key(config, key)
  # config_flags finds the overrides in sys.argv, not in what it is given.
  sys.argv = argv
  try:
    rest = flags.FLAGS(argv)
  except flags.IllegalFlagValueError as error:
    raise errors.ConfigError(_wrong_type(config, str(error))) from error
  except flags.Error as error:
    raise errors.ConfigError(f'{error} (--help lists the flags)') from error
  if len(rest) > 1:
    raise errors.ConfigError(
      f'unexpected argument {rest[1]!r}; overrides are --config.KEY=VALUE'
    )
  if _CONFIG.value is None:
    known = ' '.join(str(p.relative_to(ROOT)) for p in _experiments())
    raise errors.ConfigError(
      f'which experiment? --config=FILE, for example {known}'
    )
  return argv


def run_dir() -> pathlib.Path | str | None:
  """The folder or address that the flags ask for, or None."""
  if _RUN_DIR.value:
    if '://' in _RUN_DIR.value:
      return str(_RUN_DIR.value)
    return pathlib.Path(_RUN_DIR.value)
  return pathlib.Path('runs') / _NAME.value if _NAME.value else None


def train() -> int:
  """Runs the experiment in this process; returns the exit status."""
  from clawjax import experiment

  return int(experiment.main(_CONFIG.value, run_dir=run_dir()) or 0)


def launch(argv: Sequence[str]) -> int:
  """Starts the same command as a local XManager experiment."""
  try:
    from xmanager import xm, xm_local
  except ImportError as error:
    raise errors.ConfigError(
      f"--xm needs XManager: pip install -e '.[launch]' ({error})"
    ) from error
  title = _NAME.value or pathlib.Path(_config_name(argv)).stem
  arguments = [a for a in argv[1:] if a.lstrip('-') not in ('xm', 'xm=true')]
  try:
    with xm_local.create_experiment(experiment_title=title) as experiment:
      [job] = experiment.package(
        [
          xm.binary(
            executor_spec=xm_local.Local.Spec(),
            # The job is a program with a shebang; it sets itself up.
            path=str(ROOT / 'launch' / 'run.sh'),
          )
        ]
      )
      experiment.add(
        xm.Job(
          executable=job,
          executor=xm_local.Local(),
          args=xm.SequentialArgs.from_collection(arguments),
        )
      )
  except RuntimeError as error:
    # XManager's word for a job that ended with a status other than 0; the
    # job has said why.
    raise errors.ConfigError(f'the XManager job failed: {error}') from error
  return 0


def main(argv: Sequence[str]) -> int:
  """Parses, runs, and turns what a person can put right into one line."""
  if any(a.lstrip('-') in ('help', 'h') for a in argv[1:]):
    print(__doc__)
    print(flags.FLAGS.module_help(sys.modules[__name__]))
    return 0
  try:
    argv = parse(argv)
    return launch(argv) if _XM.value else train()
  except errors.ClawjaxError as error:
    return _stop(str(error))
  except KeyboardInterrupt:
    _stop('stopped; the same command goes on from the last finished step')
    return 128 + signal.SIGINT
  except Exception as error:
    text = _machine_fault(error)
    if text is None:
      raise
    return _stop(text)


def _stop(text: str) -> int:
  print(f'clawjax: {" ".join(text.split())}', file=sys.stderr, flush=True)
  return 2


def _config_file(name: str) -> pathlib.Path:
  """The experiment file, looked for here and in the checkout."""
  for folder in (pathlib.Path(), ROOT):
    path = folder / name
    if path.is_file():
      return path.resolve()
  near = difflib.get_close_matches(
    pathlib.Path(name).stem, [p.stem for p in _experiments()], n=1
  )
  hint = f'; did you mean configs/{near[0]}.py?' if near else ''
  raise errors.ConfigError(f'no config file {name!r}{hint}')


def _experiments() -> list[pathlib.Path]:
  return sorted((ROOT / 'configs').glob('[!_]*.py'))


def _read_config(path: pathlib.Path) -> ml_collections.ConfigDict:
  """Runs the file by itself, so that what is wrong in it is told as such."""
  try:
    config = runpy.run_path(str(path))['get_config']()
  except errors.ClawjaxError:
    raise
  except Exception as error:
    if isinstance(error, KeyError) and error.args == ('get_config',):
      raise errors.ConfigError(f'{path} has no get_config()') from error
    lines = [
      frame.lineno
      for frame in traceback.extract_tb(error.__traceback__)
      if frame.filename == str(path)
    ]
    at = f', line {lines[-1]}' if lines else ''
    raise errors.ConfigError(
      f'{path}{at}: {type(error).__name__}: {error}'
    ) from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise errors.ConfigError(
      f'{path}: get_config() must return a ConfigDict, not'
      f' {type(config).__name__}'
    )
  return config


def _overrides(argv: Sequence[str]) -> Iterator[str]:
  for argument in argv:
    bare = '--' + argument.lstrip('-')
    if argument.startswith('-') and bare.startswith(OVERRIDE):
      yield bare[len(OVERRIDE) :].partition('=')[0]


def _check_key(config: ml_collections.ConfigDict, key: str) -> None:
  """Raises ConfigError unless the dotted `key` names something in `config`."""
  node: Any = config
  parts = key.split('.')
  for depth, part in enumerate(parts):
    if not isinstance(node, ml_collections.ConfigDict):
      section = '.'.join(parts[:depth])
      raise errors.ConfigError(
        f'unknown config key {key!r}: {section!r} is a value, not a section'
      )
    if part not in node:
      near = difflib.get_close_matches(part, list(node), n=1)
      hint = '.'.join([*parts[:depth], *near])
      hint = f'; did you mean {hint!r}?' if near else ''
      known = ', '.join(sorted(node))
      raise errors.ConfigError(
        f'unknown config key {key!r}{hint} (known here: {known})'
      )
    node = node[part]


def _wrong_type(config: ml_collections.ConfigDict | None, text: str) -> str:
  """Our sentence for absl's `flag --config.a.b=v: reason`."""
  flag, _, reason = text.partition(': ')
  name, _, value = flag.removeprefix('flag ').partition('=')
  if config is None or not name.startswith(OVERRIDE):
    return f'{name}: {value!r} does not fit ({reason})'
  key = name.removeprefix(OVERRIDE)
  node: Any = config
  for part in key.split('.'):
    node = node[part]
  wanted = (
    'a section; set its keys one by one'
    if isinstance(node, ml_collections.ConfigDict)
    else type(node).__name__
  )
  return f'config key {key!r}: wanted {wanted}; got {value!r}'


def _config_name(argv: Sequence[str]) -> str:
  for i, argument in enumerate(argv):
    name, equals, value = argument.partition('=')
    if name.lstrip('-') == 'config':
      return value if equals else argv[i + 1]
  return 'clawjax'


def _machine_fault(error: BaseException) -> str | None:
  """One line for an error that is about the machine; None for others.

  Libraries wrap the system's error in their own, so the chain is looked at,
  and the text for those that keep nothing else (tensorstore does).
  """
  at: BaseException | None = error
  while at is not None:
    if isinstance(at, OSError) and at.errno in MACHINE:
      where = f' ({at.filename})' if at.filename else ''
      return f'{at.strerror}{where}: {MACHINE[at.errno]}'
    if os.strerror(errno.ENOSPC).lower() in str(at).lower():
      return f'{os.strerror(errno.ENOSPC)}: {MACHINE[errno.ENOSPC]}'
    at = at.__cause__ or at.__context__
  return None


if __name__ == '__main__':
  sys.exit(main(sys.argv))
