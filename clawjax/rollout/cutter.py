"""A backend whose agents can be cut short.

`limit(seconds)` puts a wall clock over every agent of a batch, those that run
already included. Who is over is killed, and the command ends as timed out: the
workspace is still scored. Graders and everything else are left alone: only
sandboxes whose label was named as an agent's are held to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from clawjax.sandbox import base


class Cutter:
  """Wraps a backend; see `base.Backend`.

  Attributes:
    cut: labels of the agents that were cut.
  """

  def __init__(self, backend: base.Backend):
    self._backend = backend
    self.name = backend.name
    self.cut: set[str] = set()
    self._limit_s: float | None = None
    self._agents: set[str] = set()
    self._running: set[_Run] = set()

  def agent(self, label: str) -> None:
    """Sandboxes with this label are an agent's."""
    self._agents.add(label)

  def done(self, label: str) -> bool:
    """Forgets an agent; whether it was cut."""
    self._agents.discard(label)
    was = label in self.cut
    self.cut.discard(label)
    return was

  def limit(self, seconds: float | None) -> None:
    """Most seconds that an agent's harness may run from now on."""
    self._limit_s = seconds
    for run in self._running:
      run.arm(seconds)

  async def probe(self) -> base.Probe:
    """See `base.Backend`."""
    return await self._backend.probe()

  async def create(self, spec: base.SandboxSpec) -> Any:
    """See `base.Backend`."""
    sandbox = await self._backend.create(spec)
    if spec.label in self._agents:
      return _Sandbox(self, sandbox, spec.label)
    return sandbox

  async def sweep(self) -> int:
    """See `base.Backend`."""
    return await self._backend.sweep()


class _Run:
  """One command of an agent, with its alarm."""

  def __init__(self, begun: float):
    self.begun = begun  # of the agent's first command
    self.over = asyncio.Event()
    self._timer: asyncio.TimerHandle | None = None

  def arm(self, seconds: float | None) -> None:
    self.disarm()
    if seconds is not None:
      left = self.begun + seconds - time.monotonic()
      loop = asyncio.get_running_loop()
      self._timer = loop.call_later(max(0.0, left), self.over.set)

  def disarm(self) -> None:
    if self._timer is not None:
      self._timer.cancel()
      self._timer = None


class _Sandbox:
  """An agent's sandbox; all but `exec` is the inner one's."""

  def __init__(self, cutter: Cutter, inner: Any, label: str):
    self._cutter, self._inner, self._label = cutter, inner, label
    self._begun: float | None = None

  def __getattr__(self, name: str) -> Any:
    return getattr(self._inner, name)

  async def exec(self, argv, **options) -> base.ExecResult:
    """See `base.Sandbox`."""
    start = time.monotonic()
    if self._begun is None:
      self._begun = start
    run = _Run(self._begun)
    self._cutter._running.add(run)
    run.arm(self._cutter._limit_s)
    job = asyncio.ensure_future(self._inner.exec(argv, **options))
    alarm = asyncio.ensure_future(run.over.wait())
    try:
      await asyncio.wait({job, alarm}, return_when=asyncio.FIRST_COMPLETED)
      if job.done():
        return job.result()
      self._cutter.cut.add(self._label)
      job.cancel()  # which kills all that the command started
      with contextlib.suppress(asyncio.CancelledError):
        return await job
      return base.ExecResult(
        137, timed_out=True, seconds=time.monotonic() - start
      )
    finally:
      run.disarm()
      self._cutter._running.discard(run)
      alarm.cancel()
      if not job.done():
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
