"""Control groups: memory, processes and CPU of a whole sandbox.

Version 1 (one tree per controller) and version 2 (one tree). Groups are made
below the ones this process is in, so that a surrounding limit goes on to hold.
Where no group can be made (an ordinary user, a read-only tree) the caller is
told why, and does with rlimits and with sampling instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import time

ROOT = pathlib.Path('/sys/fs/cgroup')
CONTROLLERS = ('memory', 'pids', 'cpu')
# Version 1 counts CPU time apart; nice to have, no protection.
_ACCOUNT = 'cpuacct'
_PERIOD_US = 100_000


@dataclasses.dataclass(frozen=True)
class Tree:
  """Where groups can be made.

  Attributes:
    version: 1 or 2.
    parents: controller -> folder to make groups in (all the same for 2).
    missing: why some controllers cannot be used; one line each.
  """

  version: int
  parents: dict[str, pathlib.Path]
  missing: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Group:
  """One sandbox's groups: controller -> folder."""

  version: int
  folders: dict[str, pathlib.Path]

  @property
  def unique(self) -> list[pathlib.Path]:
    """The folders, each once."""
    return list(dict.fromkeys(self.folders.values()))


def _own(lines: list[str]) -> dict[str, str]:
  """Controller ('' for version 2) -> path, from /proc/self/cgroup."""
  result = {}
  for line in lines:
    _, controllers, path = line.split(':', 2)
    for name in controllers.split(','):
      result[name] = path
  return result


def free_memory(root: pathlib.Path = ROOT) -> list[int]:
  """Bytes left below each memory limit that surrounds this process."""
  try:
    lines = pathlib.Path('/proc/self/cgroup').read_text().splitlines()
  except OSError:
    return []
  own = _own(lines)
  if (root / 'cgroup.controllers').exists():
    top, path = root, own.get('', '/')
    names = ('memory.max', 'memory.current')
  else:
    top, path = root / 'memory', own.get('memory', '/')
    names = ('memory.limit_in_bytes', 'memory.usage_in_bytes')
  found = []
  folder = top / path.lstrip('/')
  for at in (folder, *folder.parents):
    if not at.is_relative_to(top):
      break
    with contextlib.suppress(OSError, ValueError):
      limit, used = (int((at / name).read_text()) for name in names)
      found.append(max(0, limit - used))
  return found


def find(root: pathlib.Path = ROOT) -> Tree:
  """Looks where this process may make groups, by making one."""
  try:
    lines = pathlib.Path('/proc/self/cgroup').read_text().splitlines()
  except OSError as e:
    return Tree(1, {}, (f'no control groups: {e.strerror}',))
  own = _own(lines)
  if (root / 'cgroup.controllers').exists():
    return _find_2(root, own)
  parents, missing = {}, []
  for name in (*CONTROLLERS, _ACCOUNT):
    base = root / name
    path = own.get(name)
    if path is None or not base.is_dir():
      if name == _ACCOUNT:
        continue
      missing.append(f'no {name} control group: controller not mounted')
      continue
    # In a container the path is the host's and the mount is ours already.
    parent = base / path.lstrip('/')
    parent = parent if parent.is_dir() else base
    if reason := _try(parent):
      if name != _ACCOUNT:
        missing.append(f'no {name} control group: {reason}')
    else:
      parents[name] = parent
  return Tree(1, parents, tuple(missing))


def _find_2(root: pathlib.Path, own: dict[str, str]) -> Tree:
  parent = root / own.get('', '/').lstrip('/')
  parent = parent if parent.is_dir() else root
  if reason := _try(parent):
    return Tree(2, {}, (f'no control groups: {reason}',))
  # A group that holds processes cannot have controllers for its children
  # ("no internal processes"), except the root; try, then look.
  with contextlib.suppress(OSError):
    (parent / 'cgroup.subtree_control').write_text('+memory +pids +cpu')
  active = set((parent / 'cgroup.subtree_control').read_text().split())
  return Tree(
    2,
    {name: parent for name in CONTROLLERS if name in active},
    tuple(
      f'no {name} control group: not delegated to {parent}'
      for name in CONTROLLERS
      if name not in active
    ),
  )


def _try(parent: pathlib.Path) -> str:
  """Makes and removes a group; the reason if that fails."""
  probe = parent / f'clawjax-probe-{os.getpid()}-{time.monotonic_ns()}'
  try:
    probe.mkdir()
    probe.rmdir()
  except OSError as e:
    return f'{parent}: {e.strerror}'
  return ''


def make(
  tree: Tree,
  name: str,
  *,
  memory_bytes: int,
  processes: int,
  cpus: float | None,
) -> Group:
  """Makes a sandbox's groups and sets the limits. Raises `OSError`."""
  group = Group(tree.version, {c: p / name for c, p in tree.parents.items()})
  try:
    for folder in group.unique:
      folder.mkdir()
    _limit(group, memory_bytes, processes, cpus)
  except OSError:
    remove(group)
    raise
  return group


def _limit(group, memory_bytes, processes, cpus) -> None:
  two = group.version == 2
  if folder := group.folders.get('memory'):
    limit = 'memory.max' if two else 'memory.limit_in_bytes'
    (folder / limit).write_text(str(memory_bytes))
    # Without swap accounting the file is not there; then there is only memory.
    swap = 'memory.swap.max' if two else 'memory.memsw.limit_in_bytes'
    with contextlib.suppress(OSError):
      (folder / swap).write_text('0' if two else str(memory_bytes))
  if folder := group.folders.get('pids'):
    (folder / 'pids.max').write_text(str(processes))
  if (folder := group.folders.get('cpu')) and cpus is not None:
    quota = max(1000, int(cpus * _PERIOD_US))
    if two:
      (folder / 'cpu.max').write_text(f'{quota} {_PERIOD_US}')
    else:
      (folder / 'cpu.cfs_period_us').write_text(str(_PERIOD_US))
      (folder / 'cpu.cfs_quota_us').write_text(str(quota))


def peak_memory(group: Group) -> int | None:
  """Most bytes used at once since the last `reset_peak`."""
  name = 'memory.peak' if group.version == 2 else 'memory.max_usage_in_bytes'
  return _number(group, name)


def reset_peak(group: Group) -> None:
  """Starts the peak anew where the kernel can."""
  if (folder := group.folders.get('memory')) and group.version == 1:
    with contextlib.suppress(OSError):
      (folder / 'memory.max_usage_in_bytes').write_text('0')


def oom_kills(group: Group) -> int:
  """How many processes the memory limit has killed so far."""
  if not (folder := group.folders.get('memory')):
    return 0
  name = 'memory.events' if group.version == 2 else 'memory.oom_control'
  with contextlib.suppress(OSError, ValueError):
    for line in (folder / name).read_text().splitlines():
      key, value = line.split()
      if key == 'oom_kill':
        return int(value)
  return 0


def cpu_seconds(group: Group) -> float | None:
  """CPU time used in the group so far."""
  with contextlib.suppress(OSError, ValueError):
    if group.version == 1 and (folder := group.folders.get(_ACCOUNT)):
      return int((folder / 'cpuacct.usage').read_text()) / 1e9
    if group.version == 2 and (folder := group.folders.get('cpu')):
      text = (folder / 'cpu.stat').read_text().split()
      return int(text[text.index('usage_usec') + 1]) / 1e6
  return None


def _number(group: Group, name: str) -> int | None:
  if not (folder := group.folders.get('memory')):
    return None
  try:
    return int((folder / name).read_text())
  except (OSError, ValueError):
    return None


def members(group: Group) -> set[int]:
  """Pids in any of the groups."""
  pids: set[int] = set()
  for folder in group.unique:
    with contextlib.suppress(OSError):
      pids.update(int(p) for p in (folder / 'cgroup.procs').read_text().split())
  return pids


def kill(group: Group) -> None:
  """SIGKILL to every member."""
  for pid in members(group):
    with contextlib.suppress(OSError):
      os.kill(pid, signal.SIGKILL)


def remove(group: Group, wait_s: float = 20.0) -> bool:
  """Kills what is left and removes the groups; whether all are gone.

  A group can be removed only some time after its last process has ended.
  """
  end = time.monotonic() + wait_s
  while True:
    kill(group)
    left = []
    for folder in group.unique:
      try:
        folder.rmdir()
      except FileNotFoundError:
        continue
      except OSError:
        left.append(folder)
    if not left:
      return True
    if time.monotonic() > end:
      return False
    time.sleep(0.005)
