"""Who owns what on this machine: run folders, sandbox records, uids.

Everything a backend makes is written down before it is made, in files that a
later process can read, so that nothing of a killed trainer stays: `sweep` goes
through the records of owners that are no longer alive. A process is told apart
from a later one with the same pid by its start time.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import secrets
import stat
import tempfile
from collections.abc import Iterator

from clawjax.errors import SandboxError
from clawjax.sandbox import files

# Above ordinary users and below 65536, which small user namespaces end at.
FIRST_UID, LAST_UID = 40_000, 59_999


def start_time(pid: int) -> int | None:
  """Start time of a process in clock ticks since boot, or None if gone."""
  try:
    text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return None
  fields = text[text.rindex(')') + 2 :].split()
  return None if fields[0] in 'ZX' else int(fields[19])


def private_folder(path: pathlib.Path) -> pathlib.Path:
  """Makes a folder of ours that others may pass through but not list."""
  path.mkdir(mode=0o711, parents=True, exist_ok=True)
  info = path.lstat()
  if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
    raise SandboxError(
      f'{path}: wanted a folder of uid {os.geteuid()}, got one of uid '
      f'{info.st_uid}; remove it or choose another state folder'
    )
  path.chmod(0o711)
  return path


def default_root() -> pathlib.Path:
  """The state folder of this user's sandboxes on this machine."""
  return pathlib.Path(tempfile.gettempdir()) / f'clawjax-{os.geteuid()}'


class Run:
  """One backend's folder below the state root, with its records."""

  def __init__(self, root: pathlib.Path):
    self.root = private_folder(root)
    self.name = f'run-{os.getpid()}-{secrets.token_hex(4)}'
    self.path = private_folder(root / self.name)
    owner = {'pid': os.getpid(), 'start': start_time(os.getpid())}
    write_json(self.path / 'owner.json', owner)

  def close(self) -> None:
    """Removes the folder when nothing is recorded in it any more."""
    if not list(self.path.glob('*.sandbox')):
      for path in (self.path / 'etc').glob('*'):
        path.unlink()
      with contextlib.suppress(OSError):
        (self.path / 'etc').rmdir()
      # Copies for sandboxes, see reach.py.
      files.remove(self.path / 'readonly')
      for path in self.path.iterdir():
        with contextlib.suppress(OSError):
          path.unlink()
      with contextlib.suppress(OSError):
        self.path.rmdir()


def write_json(path: pathlib.Path, data: dict) -> None:
  """Writes so that a reader sees all or nothing."""
  part = path.with_name(path.name + '.part')
  part.write_text(json.dumps(data))
  part.rename(path)


def dead_runs(root: pathlib.Path) -> Iterator[pathlib.Path]:
  """Run folders whose owner is not alive."""
  for path in sorted(root.glob('run-*')):
    try:
      owner = json.loads((path / 'owner.json').read_text())
      alive = start_time(owner['pid']) == owner['start']
    except FileNotFoundError:
      # Just being made, or just being removed: the name carries the pid.
      alive = start_time(int(path.name.split('-')[1])) is not None
    except (ValueError, KeyError):
      alive = False
    if not alive:
      yield path


def remove_empty(root: pathlib.Path) -> None:
  """Removes dead run folders in which no sandbox is recorded."""
  for path in dead_runs(root):
    if not list(path.glob('*.sandbox')):
      files.remove(path)


class Uids:
  """Leases uids, one per live sandbox, over all processes of this machine."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder

  def lease(self, holder: str) -> int:
    """A uid that no live sandbox has."""
    private_folder(self.folder.parent)
    private_folder(self.folder)
    span = LAST_UID - FIRST_UID + 1
    start = random.randrange(span)
    for i in range(span):
      uid = FIRST_UID + (start + i) % span
      try:
        fd = os.open(
          self.folder / str(uid), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
        )
      except FileExistsError:
        continue
      with os.fdopen(fd, 'w') as file:
        file.write(holder)
      return uid
    raise SandboxError(
      f'all uids from {FIRST_UID} to {LAST_UID} are in use; '
      f'see the leases in {self.folder}'
    )

  def held(self, uid: int, holder: str) -> bool:
    """Whether the lease of a uid is (still) that of `holder`."""
    try:
      return (self.folder / str(uid)).read_text() == holder
    except FileNotFoundError:
      return False

  def release(self, uid: int) -> None:
    """Gives a uid back."""
    (self.folder / str(uid)).unlink(missing_ok=True)
