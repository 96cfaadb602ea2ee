"""Limits by looking, where the kernel does not hold them.

Without a memory control group the processes of a sandbox are summed four times
a second; without a quota its folder is measured once a second. Whoever is over
is killed. This can be outrun for a moment, and the probe says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import time
from collections.abc import Callable

from clawjax.sandbox import files

_PAGE = os.sysconf('SC_PAGE_SIZE')
_MEMORY_S, _FOLDER_S = 0.25, 1.0


def descendants(pid: int) -> list[int]:
  """`pid` and everything below it."""
  result, pending = [], [pid]
  while pending:
    pid = pending.pop()
    result.append(pid)
    with contextlib.suppress(OSError):
      for thread in os.listdir(f'/proc/{pid}/task'):
        text = pathlib.Path(f'/proc/{pid}/task/{thread}/children').read_text()
        pending.extend(int(p) for p in text.split())
  return result


def resident_bytes(pid: int) -> int:
  """Memory of a process tree; shared pages count in each process."""
  total = 0
  for one in descendants(pid):
    with contextlib.suppress(OSError):
      text = pathlib.Path(f'/proc/{one}/statm').read_text()
      total += int(text.split()[1]) * _PAGE
  return total


def of_uid(uid: int) -> list[int]:
  """Pids of all processes of a uid, zombies left out."""
  result = []
  for name in os.listdir('/proc'):
    if name.isdigit():
      with contextlib.suppress(OSError):
        if os.stat(f'/proc/{name}').st_uid != uid:
          continue
        text = pathlib.Path(f'/proc/{name}/stat').read_text()
        if text[text.rindex(')') + 2] not in 'ZX':
          result.append(int(name))
  return result


def kill_uid(uid: int, wait_s: float = 5.0) -> None:
  """Kills all processes of a uid that is ours; raises if one stays."""
  end = time.monotonic() + wait_s
  while pids := of_uid(uid):
    for pid in pids:
      with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    if time.monotonic() > end:
      raise OSError(f'processes {pids} of uid {uid} do not end')
    time.sleep(0.005)


class Watcher:
  """Samples one command; does nothing where the kernel holds the limits.

  Attributes:
    peak_bytes: most memory seen, or None when not sampled.
    killed_for: 'memory' or 'disk' when it ended the command, else ''.
  """

  def __init__(
    self,
    child: Callable[[], int | None],
    *,
    memory_bytes: int | None,
    folder: pathlib.Path | None,
    folder_bytes: int,
    folder_entries: int,
    kill: Callable[[], None],
  ):
    self.peak_bytes: int | None = None
    self.killed_for = ''
    self._child, self._kill = child, kill
    self._memory_bytes = memory_bytes
    self._folder = folder
    self._folder_bytes, self._folder_entries = folder_bytes, folder_entries
    self._task: asyncio.Task | None = None

  def start(self) -> None:
    """Begins, if there is anything to look at."""
    if self._memory_bytes is not None or self._folder is not None:
      self._task = asyncio.ensure_future(self._watch())

  async def stop(self) -> None:
    """Ends the sampling."""
    if self._task is not None:
      self._task.cancel()
      await asyncio.gather(self._task, return_exceptions=True)

  async def _watch(self) -> None:
    next_folder = time.monotonic() + _FOLDER_S
    while not self.killed_for:
      await asyncio.sleep(_MEMORY_S)
      if self._memory_bytes is not None and (child := self._child()):
        used = resident_bytes(child)
        self.peak_bytes = max(self.peak_bytes or 0, used)
        if used > self._memory_bytes:
          self.killed_for = 'memory'
      if self._folder is not None and time.monotonic() > next_folder:
        used, entries = await asyncio.to_thread(files.used_bytes, self._folder)
        next_folder = time.monotonic() + _FOLDER_S
        if used > self._folder_bytes or entries > self._folder_entries:
          self.killed_for = 'disk'
    self._kill()
