"""Where rollouts run, and how many of them fit.

A host is a machine with so much memory for rollouts. A rollout reserves what
its harness is expected to need (a pi takes a tenth of an OpenClaw) and gets the
host with the most room. Who waits is served in order: the first in line is not
passed by a smaller one, so a large rollout never starves. One that is larger
than a whole host runs on an empty one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import itertools
import pathlib
from collections.abc import Sequence

from clawjax.errors import SandboxError
from clawjax.sandbox import base, cgroups

MIB = base.MIB
# Memory of the process trees, measured once per harness (one sample, shared
# pages counted in each process, so upper bounds); the fleet goes on from there
# with what it sees itself.
FIRST_GUESS_MIB = {
  'pi': 160,
  'claude_code': 260,
  'codex': 200,
  'mini_swe': 300,
  'opencode': 700,
  'qwen_code': 600,
  'openclaw': 1700,
  'agent_loop': 64,
}
_UNKNOWN_MIB = 512


def available_bytes() -> int:
  """Memory that this machine, or the group it confines us to, has to give."""
  free = 0
  for line in pathlib.Path('/proc/meminfo').read_text().splitlines():
    if line.startswith('MemAvailable:'):
      free = int(line.split()[1]) * 1024
  return min([free, *cgroups.free_memory()])


class Footprints:
  """Expected memory of a rollout by harness, from those that have ended."""

  def __init__(self, *, limit_bytes: int):
    """Args:
    limit_bytes: what one sandbox may use at most.
    """
    self.limit_bytes = limit_bytes
    self._peak: dict[str, float] = {}

  def expected(self, harness: str) -> int:
    """Bytes to reserve; names like 'codex_trimmed' are their harness's."""
    if harness in self._peak:
      wanted = 1.15 * self._peak[harness]
    else:
      known = [n for n in FIRST_GUESS_MIB if harness.startswith(n)]
      guess = FIRST_GUESS_MIB[max(known, key=len)] if known else _UNKNOWN_MIB
      wanted = guess * MIB
    return int(min(wanted, self.limit_bytes))

  def add(self, harness: str, peak_bytes: int | None) -> None:
    """Notes a peak; an old one fades, a higher one counts at once."""
    if peak_bytes:
      old = self._peak.get(harness, 0.0)
      self._peak[harness] = max(peak_bytes, 0.9 * old)


@dataclasses.dataclass(eq=False)
class Host:
  """A place for rollouts.

  Attributes:
    name: for records.
    memory_bytes: for all rollouts there together, or None for no bound.
    slots: most rollouts there at once, or None.
    used_bytes, live: what is reserved now.
  """

  name: str
  memory_bytes: int | None = None
  slots: int | None = None
  used_bytes: int = 0
  live: int = 0

  def fits(self, need_bytes: int) -> bool:
    """Whether one more rollout of this size may start."""
    if self.slots is not None and self.live >= self.slots:
      return False
    if self.memory_bytes is None or not self.live:
      return True
    return self.used_bytes + need_bytes <= self.memory_bytes

  @property
  def room(self) -> tuple[float, int]:
    """Sorts hosts by how free they are."""
    share = self.used_bytes / self.memory_bytes if self.memory_bytes else 0.0
    return (1.0 - share, -self.live)


class HostLost(Exception):
  """A host has gone, and what ran there with it.

  Attributes:
    host: which.
  """

  def __init__(self, host: Host, reason: str):
    super().__init__(f'host {host.name} was lost: {reason}')
    self.host = host


class Hosts:
  """All hosts, and the line of those who want one.

  Attributes:
    all: hosts in use.
    concurrency: most rollouts at once over all hosts.
  """

  def __init__(
    self,
    hosts: Sequence[Host] = (),
    *,
    concurrency: int = 8,
    patience_s: float = 120.0,
  ):
    """Args:
    hosts: known from the start; more may come and go.
    concurrency: see above.
    patience_s: how long to wait for a first host when there is none.
    """
    self.all = list(hosts)
    self.concurrency = concurrency
    self.patience_s = patience_s
    self._line: list[tuple[tuple, int, int, asyncio.Future[Host]]] = []
    self._number = itertools.count()

  @property
  def live(self) -> int:
    """Rollouts that hold a place now."""
    return sum(host.live for host in self.all)

  async def acquire(self, need_bytes: int, order: tuple = ()) -> Host:
    """Waits for a place.

    Args:
      need_bytes: what to reserve.
      order: smaller ones are served first.

    Raises:
      SandboxError: there is no host, and none comes.
    """
    future: asyncio.Future[Host] = asyncio.get_running_loop().create_future()
    heapq.heappush(self._line, (order, next(self._number), need_bytes, future))
    self._serve()
    try:
      while True:
        try:
          return await asyncio.wait_for(asyncio.shield(future), self.patience_s)
        except TimeoutError:
          if not self.all:
            raise SandboxError(
              f'no host for rollouts for {self.patience_s:g} s; start one, or '
              'look at why they have gone'
            ) from None
    except BaseException:
      if future.done() and not future.cancelled():
        self.release(future.result(), need_bytes)
      future.cancel()
      raise

  def release(self, host: Host, need_bytes: int) -> None:
    """Gives a place back."""
    host.live -= 1
    host.used_bytes -= need_bytes
    self._serve()

  def add(self, host: Host) -> None:
    """A host has come."""
    self.all.append(host)
    self._serve()

  def remove(self, host: Host) -> None:
    """A host has gone; places on it are released by their holders."""
    if host in self.all:
      self.all.remove(host)

  def _serve(self) -> None:
    while self._line:
      _, _, need_bytes, future = self._line[0]
      if future.done():  # whoever waited has been cancelled
        heapq.heappop(self._line)
        continue
      free = [h for h in self.all if h.fits(need_bytes)]
      if not free or self.live >= self.concurrency:
        return
      heapq.heappop(self._line)
      host = max(free, key=lambda h: h.room)
      host.live += 1
      host.used_bytes += need_bytes
      future.set_result(host)
