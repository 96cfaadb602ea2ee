"""The run folder: one run, one process group, the same config to the end."""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator

import fsspec

from clawjax import config as config_lib
from clawjax import errors
from clawjax.experiment.sections import Experiment

# Keys that a resumed run may change; the rest would make it another run.
FREE_KEYS = (
  'loop.steps',
  'loop.keep_checkpoints',
  'loop.collect.concurrency',
  'sft.steps',
  'sft.log_every',
  'sft.save_every',
  'fleet.kind',
  'fleet.memory_mib',
  'fleet.ray.address',
  'fleet.ray.resource',
  'fleet.ray.slots',
  'fleet.ray.engine_port',
  'fleet.ray.poll_s',
  'judge.api_key_env',
  'judge.concurrency',
  'judge.cache_dir',
  'engine.urls',
  'engine.weights_dir',
  'engine.admin_token_env',
  'pod.coordinator',
  'pod.processes',
  'pod.process',
  'export',
)


@contextlib.contextmanager
def locked(run_dir: pathlib.Path) -> Iterator[None]:
  """Holds the run folder, so that two runs never share one."""
  with (run_dir / '.lock').open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      raise errors.ConfigError(
        f'run folder {run_dir} is in use by another process; wait for it or'
        ' give another --run_dir'
      ) from error
    yield


def check_same_run(experiment: Experiment, run_dir: pathlib.Path) -> None:
  """Saves the config of a new run; compares it with that of an old one."""
  path = run_dir / 'config.json'
  if path.exists():
    old = config_lib.flatten(config_lib.load(Experiment, path))
    new = config_lib.flatten(experiment)
    changed = [
      f'{key} was {old.get(key)!r}, now {new.get(key)!r}'
      for key in sorted(old.keys() | new.keys())
      if old.get(key) != new.get(key) and key not in FREE_KEYS
    ]
    if changed:
      raise errors.ConfigError(
        f'run folder {run_dir} holds another run ({"; ".join(changed)});'
        ' give another --run_dir, or remove it'
      )
  config_lib.save(experiment, path)


# Not for the mirror: the checkpoints are there already, the rest is of this host.
_HERE_ONLY = ('checkpoints', 'proxy', '.lock')


class Mirror:
  """A copy of a run folder at an address, so that a run outlives its host.

  Records, metrics and pages are written here, as files, and copied after each
  step; checkpoints are written there at once. A start on an empty folder brings
  back what is there.

  Args:
    run_dir: the run folder.
    url: anything that fsspec knows, e.g. `gs://BUCKET/RUN`.

  Raises:
    ConfigError: it cannot be reached.
  """

  def __init__(self, run_dir: pathlib.Path, url: str):
    self._run_dir, self._url = run_dir, url.rstrip('/')
    try:
      self._there, self._root = fsspec.core.url_to_fs(self._url)
      self._there.exists(self._root)
    except ImportError as error:
      raise errors.ConfigError(
        f"{url}: {error}; for gs:// pip install -e '.[gcs]'"
      ) from error
    except Exception as error:  # each file system has its own kinds
      raise errors.ConfigError(f'cannot reach {url}: {error}') from error
    self._known: dict[str, tuple[int, int]] = {}

  def address(self, name: str) -> str:
    """Where something of the run is, there."""
    return f'{self._url}/{name}'

  def pull(self) -> bool:
    """Brings the run here unless it is; returns whether it did."""
    if (self._run_dir / 'config.json').exists():
      return False
    if not self._there.exists(f'{self._root}/config.json'):
      return False
    start = len(self._root.rstrip('/')) + 1
    found = {str(p)[start:]: p for p in self._there.find(self._root)}
    # The config last: it is what says that all of it is here.
    for name in sorted(found, key=lambda n: (n == 'config.json', n)):
      path = found[name]
      if name.split('/')[0] not in _HERE_ONLY:
        to = self._run_dir / name
        to.parent.mkdir(parents=True, exist_ok=True)
        self._there.get_file(path, str(to))
    self._known = self._stamps()
    return True

  def push(self) -> None:
    """Copies what has changed since the last time.

    Raises:
      ConfigError: it could not be written there.
    """
    now = self._stamps()
    try:
      for name in sorted(n for n in now if now[n] != self._known.get(n)):
        to = f'{self._root}/{name}'
        self._there.makedirs(to.rpartition('/')[0], exist_ok=True)
        self._there.put_file(str(self._run_dir / name), to)
        self._known[name] = now[name]
    except Exception as error:
      raise errors.ConfigError(
        f'cannot copy the run folder to {self._url}: {error}; the run is whole'
        f' in {self._run_dir}, and the same command goes on'
      ) from error

  def _stamps(self) -> dict[str, tuple[int, int]]:
    """File -> time of its last change and size."""
    return {
      str(path.relative_to(self._run_dir)): (stat.st_mtime_ns, stat.st_size)
      for path in self._run_dir.rglob('*')
      if path.relative_to(self._run_dir).parts[0] not in _HERE_ONLY
      and path.is_file()
      and (stat := path.stat())
    }
