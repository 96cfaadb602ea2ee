"""Sandboxes whose destroy failed or hung are buried by somebody else.

A rollout waits for its destroy a few seconds and no longer: its result is
known, and its place is wanted. What is not gone by then is handed to the
reaper, which asks the backend to remove it another way (`Backend.reap`: a
process or a connection of its own) again and again, with growing pauses. What
outlives all that is found by the sweep of the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from clawjax.errors import ClawjaxError, SandboxError
from clawjax.sandbox import base


class Reaper:
  """Wraps a backend; see `base.Backend`.

  Attributes:
    waiting: sandboxes that are still to be buried, by id.
    reaped: how many it has buried.
  """

  def __init__(
    self,
    backend: base.Backend,
    *,
    patience_s: float = 5.0,
    pause_s: float = 1.0,
    attempts: int = 8,
    attempt_s: float = 60.0,
  ):
    """Args:
    backend: makes the sandboxes.
    patience_s: how long a rollout waits for a destroy.
    pause_s: before the first try of another way; doubles each time.
    attempts: most tries.
    attempt_s: longest wait for one of them.
    """
    self._backend = backend
    self.name = backend.name
    self._patience_s, self._pause_s = patience_s, pause_s
    self._attempts, self._attempt_s = attempts, attempt_s
    self.waiting: dict[str, str] = {}
    self.reaped = 0
    self._jobs: set[asyncio.Future] = set()

  async def probe(self) -> base.Probe:
    """See `base.Backend`."""
    return await self._backend.probe()

  async def sweep(self) -> int:
    """See `base.Backend`."""
    return await self._backend.sweep()

  async def create(self, spec: base.SandboxSpec) -> Any:
    """See `base.Backend`."""
    return _Sandbox(self, await self._backend.create(spec))

  async def reap(self, sandbox: Any) -> None:
    """See `base.Backend`."""
    await self._backend.reap(sandbox)

  async def finish(self, timeout_s: float = 10.0) -> int:
    """Waits for what is waiting; returns how many are left to the sweep."""
    if self._jobs:
      await asyncio.wait(self._jobs, timeout=timeout_s)
    for job in list(self._jobs):
      job.cancel()
    await asyncio.gather(*self._jobs, return_exceptions=True)
    return len(self.waiting)

  def _keep(self, job: asyncio.Future) -> None:
    self._jobs.add(job)
    job.add_done_callback(self._jobs.discard)

  async def _bury(self, sandbox: Any, first: asyncio.Future | None) -> None:
    pause = self._pause_s
    for _ in range(self._attempts):
      if first is not None:
        await asyncio.wait({first}, timeout=pause)
        if first.done() and first.exception() is None:
          break  # it was only slow
      else:
        await asyncio.sleep(pause)
      pause *= 2
      try:
        await asyncio.wait_for(self.reap(sandbox), self._attempt_s)
        break
      except (ClawjaxError, OSError, TimeoutError) as e:
        self.waiting[sandbox.id] = str(e) or type(e).__name__
    else:
      return
    self.reaped += 1
    del self.waiting[sandbox.id]
    if first is not None:
      first.cancel()


class _Sandbox:
  """All but `destroy` is the inner one's."""

  def __init__(self, reaper: Reaper, inner: Any):
    self._reaper, self._inner = reaper, inner
    self._asked = False

  def __getattr__(self, name: str) -> Any:
    return getattr(self._inner, name)

  async def destroy(self) -> None:
    """Destroys, or hands over to the reaper and says so.

    Raises:
      SandboxError: it is not gone yet; the reaper has it.
    """
    if self._asked:
      return
    self._asked = True
    reaper, inner = self._reaper, self._inner
    job = asyncio.ensure_future(inner.destroy())
    job.add_done_callback(_look)
    try:
      await asyncio.wait_for(asyncio.shield(job), reaper._patience_s)
      return
    except TimeoutError:
      fault = f'destroy not done after {reaper._patience_s:g} s'
    except (ClawjaxError, OSError) as e:
      fault, job = str(e), None
    except asyncio.CancelledError:
      # The destroy goes on by itself; somebody has to see it through.
      self._hand_over(job, 'cancelled')
      raise
    self._hand_over(job, fault)
    raise SandboxError(f'{fault}; it is being removed another way')

  def _hand_over(self, job: asyncio.Future | None, fault: str) -> None:
    reaper = self._reaper
    reaper.waiting[self._inner.id] = fault
    reaper._keep(asyncio.ensure_future(reaper._bury(self._inner, job)))


def _look(job: asyncio.Future) -> None:
  """An exception that nobody asks for any more is no news."""
  with contextlib.suppress(asyncio.CancelledError):
    job.exception()
