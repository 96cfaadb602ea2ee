"""Many rollouts side by side, on one machine or on many.

A `Fleet` decides what runs when: groups are started longest-expected-first,
each rollout waits for a host with room for it, and a group is handed over as
it becomes complete, so training need not wait for the slowest. A rollout that
failed through a fault of ours is run again, under a new id, while the budget
lasts; one whose host was lost is run again elsewhere and costs no budget. Each
place in a group is filled by one rollout, whatever was tried for it.

A `Runner` is where they run: in this process (`LocalRunner`) or on a Ray
cluster (`clawjax.rollout.ray_runner`).
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from clawjax import types
from clawjax.harness import Harness
from clawjax.rollout import cutter as cutter_lib
from clawjax.rollout import hosts as hosts_lib
from clawjax.rollout import reaper as reaper_lib
from clawjax.rollout import run
from clawjax.rollout import straggler as straggler_lib
from clawjax.sandbox import base

FAULTS = ('infra_error', 'verifier_error')
# So often is one rollout started anew because its host went away.
MOST_LOSSES = 5

OnRollout = Callable[[types.Rollout], None]
OnStage = Callable[[str, str], None]


@dataclasses.dataclass(frozen=True)
class GroupRequest:
  """A group to be run: `size` rollouts of one task through one harness.

  Attributes:
    task: the task.
    harness: the harness.
    size: number of rollouts.
    prefix: their ids are 'prefix/0', 'prefix/1', ...; a rollout that is run
      again gets '~1', '~2', ... behind its id.
  """

  task: types.Task
  harness: Harness
  size: int
  prefix: str


@dataclasses.dataclass(frozen=True)
class Job:
  """One rollout to be run.

  Attributes:
    task, harness, rollout_id, index, limits: see `run.run_rollout`.
    batch: the step it belongs to; a limit on stragglers holds for a batch.
  """

  task: types.Task
  harness: Harness
  rollout_id: str
  index: int
  limits: run.RolloutLimits
  batch: str = ''


class Runner(Protocol):
  """Where rollouts run.

  Attributes:
    hosts: the machines.
  """

  hosts: hosts_lib.Hosts

  async def run(
    self, job: Job, host: hosts_lib.Host, on_stage: Callable[[str], None]
  ) -> types.Rollout:
    """Runs one; cancelling it ends it and leaves nothing.

    Raises:
      HostLost: the host has gone.
    """

  def limit(self, batch: str, seconds: float | None) -> None:
    """Most seconds that harnesses of a batch may run; None: forget it."""


class Durations:
  """Expected seconds of a rollout, from those that have ended."""

  def __init__(self, default_s: float = 60.0):
    self.default_s = default_s
    self._mean: dict[tuple[str, ...], float] = {}

  @staticmethod
  def _keys(task: types.Task, harness: str) -> list[tuple[str, ...]]:
    family = str(task.metadata.get('family', ''))
    return [(harness, family, task.id), (harness, family), (harness,)]

  def expected(self, task: types.Task, harness: str) -> float:
    """From the task itself if known, else its family, else its harness."""
    for key in self._keys(task, harness):
      if key in self._mean:
        return self._mean[key]
    return self.default_s

  def add(self, task: types.Task, harness: str, seconds: float) -> None:
    """Notes how long one took."""
    for key in self._keys(task, harness):
      old = self._mean.get(key, seconds)
      self._mean[key] = 0.7 * old + 0.3 * seconds


class LocalRunner:
  """Runs rollouts on asyncio in this process.

  Args:
    backend, proxy, socket_dir, run_seed, out_dir: see `run.run_rollout`.
    memory_bytes: for all rollouts together; None: four fifths of what the
      machine has to give now.
  """

  def __init__(
    self,
    *,
    backend: base.Backend,
    proxy: run.Proxy,
    socket_dir: pathlib.Path,
    run_seed: int = 0,
    out_dir: pathlib.Path | None = None,
    memory_bytes: int | None = None,
    name: str = 'local',
  ):
    if not isinstance(backend, reaper_lib.Reaper):
      backend = reaper_lib.Reaper(backend)
    self.backend, self.proxy = backend, proxy
    self.socket_dir, self.run_seed = socket_dir, run_seed
    self.out_dir = out_dir
    if memory_bytes is None:
      memory_bytes = int(0.8 * hosts_lib.available_bytes())
    self.hosts = hosts_lib.Hosts([hosts_lib.Host(name, memory_bytes)])
    self._cutters: dict[str, cutter_lib.Cutter] = {}

  def _cutter(self, batch: str) -> cutter_lib.Cutter:
    if batch not in self._cutters:
      self._cutters[batch] = cutter_lib.Cutter(self.backend)
    return self._cutters[batch]

  def limit(self, batch: str, seconds: float | None) -> None:
    """See `Runner`."""
    if seconds is None:
      self._cutters.pop(batch, None)
    else:
      self._cutter(batch).limit(seconds)

  async def run(
    self, job: Job, host: hosts_lib.Host, on_stage: Callable[[str], None]
  ) -> types.Rollout:
    """See `Runner`."""
    cutter = self._cutter(job.batch)
    cutter.agent(job.rollout_id)
    try:
      rollout = await run.run_rollout(
        job.task,
        harness=job.harness,
        backend=cutter,
        proxy=self.proxy,
        socket_dir=self.socket_dir,
        rollout_id=job.rollout_id,
        index=job.index,
        run_seed=self.run_seed,
        limits=job.limits,
        out_dir=self.out_dir,
        on_stage=on_stage,
      )
    finally:
      cut = cutter.done(job.rollout_id)
    if cut:
      rollout = dataclasses.replace(
        rollout, extra={**rollout.extra, 'cut': True}
      )
    return rollout


class _Group:
  """What has come of one request."""

  def __init__(self, request: GroupRequest, planned: int, place: int):
    self.request, self.planned, self.place = request, planned, place
    self.valid: list[types.Rollout] = []
    self.failed: list[types.Rollout] = []
    self.members: list[asyncio.Future[None]] = []
    self.full = asyncio.Event()

  def rollouts(self) -> list[types.Rollout]:
    """The group by index; failed ones fill the places that are left."""
    missing = self.request.size - len(self.valid)
    failed = self.failed[:missing]
    if self.planned > self.request.size:
      failed = [
        dataclasses.replace(r, index=len(self.valid) + i)
        for i, r in enumerate(failed)
      ]
    return sorted(self.valid + failed, key=lambda r: r.index)


class Fleet:
  """Runs groups of rollouts on a runner.

  Attributes:
    limits: of a rollout; read as a group is started.
    durations, footprints: what is expected of a rollout; share them between
      fleets to keep what was learnt.
    counts: 'retried', 'lost' (with their host), 'cut' and 'surplus' (not
      needed any more, stopped) rollouts so far.
  """

  def __init__(
    self,
    runner: Runner,
    *,
    limits: run.RolloutLimits | None = None,
    straggler: straggler_lib.StragglerConfig | None = None,
    durations: Durations | None = None,
    footprints: hosts_lib.Footprints | None = None,
  ):
    self.runner = runner
    self.limits = limits
    self.straggler = straggler or straggler_lib.StragglerConfig()
    self.durations = durations or Durations()
    limits = limits or run.RolloutLimits()
    self.footprints = footprints or hosts_lib.Footprints(
      limit_bytes=limits.sandbox.memory_bytes
    )
    self.counts: collections.Counter[str] = collections.Counter()

  async def run_groups(
    self,
    requests: Sequence[GroupRequest],
    *,
    concurrency: int,
    on_rollout: OnRollout = lambda rollout: None,
    on_stage: OnStage = lambda rollout_id, stage: None,
    retry_budget: int = 0,
  ) -> AsyncIterator[list[types.Rollout]]:
    """Runs all requests; yields each group when it is complete.

    Args:
      requests: the groups.
      concurrency: most rollouts at once.
      on_rollout: told of every rollout that ended, failed attempts included.
      on_stage: told (rollout id, stage) as a rollout goes on.
      retry_budget: most further attempts, over all requests together.

    Yields:
      The group's rollouts by index, each the last attempt.

    Raises:
      SandboxError: there is no host left to run on.
    """
    order = sorted(
      requests,
      key=lambda r: -self.durations.expected(r.task, r.harness.name),
    )
    self.runner.hosts.concurrency = concurrency
    batch = _Batch(self, requests, on_rollout, on_stage, retry_budget)
    groups = [
      _Group(r, self.straggler.planned(r.size), place)
      for place, r in enumerate(order)
    ]
    jobs = [asyncio.ensure_future(batch.run(g)) for g in groups]
    try:
      for done in asyncio.as_completed(jobs):
        yield await done
    finally:
      left: list[asyncio.Future[Any]] = [
        *jobs,
        *(m for g in groups for m in g.members),
      ]
      for job in left:
        job.cancel()
      await asyncio.gather(*left, return_exceptions=True)
      self.runner.limit(batch.name, None)


class _Batch:
  """One call of `run_groups`."""

  _number = 0

  def __init__(self, fleet, requests, on_rollout, on_stage, retry_budget):
    self.fleet, self.runner = fleet, fleet.runner
    self.limits = fleet.limits or run.RolloutLimits()
    self.on_rollout, self.on_stage = on_rollout, on_stage
    self.budget = retry_budget
    self.asked = time.monotonic()
    total = sum(fleet.straggler.planned(r.size) for r in requests)
    self.quantile = straggler_lib.Quantile(fleet.straggler, total)
    _Batch._number += 1
    self.name = f'batch-{_Batch._number}'

  async def run(self, group: _Group) -> list[types.Rollout]:
    """Starts the members; returns when there are enough of them."""
    # Made in order of the groups, so those who wait for a host are, too.
    group.members = [
      asyncio.ensure_future(self._member(group, i))
      for i in range(group.planned)
    ]
    full = asyncio.ensure_future(group.full.wait())
    everyone = asyncio.ensure_future(
      asyncio.wait(group.members, return_when=asyncio.FIRST_EXCEPTION)
    )
    try:
      await asyncio.wait({everyone, full}, return_when=asyncio.FIRST_COMPLETED)
      for member in group.members:
        if member.done():
          member.result()  # raises what it raised
      return group.rollouts()
    finally:
      # Nobody waits here for surplus ones to clean up: `run_groups` does.
      left: list[asyncio.Future[Any]] = [full, everyone, *group.members]
      for job in left:
        job.cancel()

  async def _member(self, group: _Group, index: int) -> None:
    attempt = losses = 0
    while True:
      try:
        rollout = await self._attempt(group, index, attempt)
      except hosts_lib.HostLost as e:
        rollout = _lost(group.request, index, _id(group, index, attempt), e)
      except asyncio.CancelledError:
        self.fleet.counts['surplus'] += group.full.is_set()
        raise
      if group.full.is_set():
        self.fleet.counts['surplus'] += 1
        return
      attempt += 1
      if 'lost' in rollout.extra and losses < MOST_LOSSES:
        self.on_rollout(rollout)
        self.fleet.counts['lost'] += 1
        losses += 1
        continue
      if rollout.valid and group.planned > group.request.size:
        # Places go to whoever comes first.
        rollout = dataclasses.replace(rollout, index=len(group.valid))
      self.on_rollout(rollout)
      if rollout.outcome in FAULTS and self.budget > 0:
        self.fleet.counts['retried'] += 1
        self.budget -= 1
        continue
      if not rollout.valid:
        group.failed.append(rollout)
        return
      group.valid.append(rollout)
      if len(group.valid) == group.request.size:
        group.full.set()
      return

  async def _attempt(
    self, group: _Group, index: int, attempt: int
  ) -> types.Rollout:
    fleet, request = self.fleet, group.request
    need = fleet.footprints.expected(request.harness.name)
    host = await self.runner.hosts.acquire(need, (group.place, index))
    queued = time.monotonic() - self.asked
    rollout_id = _id(group, index, attempt)
    job = Job(
      request.task, request.harness, rollout_id, index, self.limits, self.name
    )
    try:
      rollout = await self.runner.run(
        job, host, lambda stage: self.on_stage(rollout_id, stage)
      )
    finally:
      self.runner.hosts.release(host, need)
    self._learn(request, rollout)
    return dataclasses.replace(
      rollout,
      timings={**rollout.timings, 'queue': round(queued, 4)},
      extra={**rollout.extra, 'attempt': attempt, 'host': host.name},
    )

  def _learn(self, request: GroupRequest, rollout: types.Rollout) -> None:
    fleet, name = self.fleet, request.harness.name
    fleet.footprints.add(name, rollout.extra.get('peak_memory_bytes'))
    if rollout.extra.get('cut'):
      fleet.counts['cut'] += 1
    if rollout.outcome in types.SCORED_OUTCOMES:
      fleet.durations.add(request.task, name, rollout.timings['total'])
    limit = self.quantile.add(rollout.timings.get('harness', 0.0))
    if limit is not None:
      self.runner.limit(self.name, limit)


def _id(group: _Group, index: int, attempt: int) -> str:
  return f'{group.request.prefix}/{index}' + f'~{attempt}' * bool(attempt)


def _lost(
  request: GroupRequest,
  index: int,
  rollout_id: str,
  error: hosts_lib.HostLost,
) -> types.Rollout:
  """The record of a rollout that went with its host."""
  return types.Rollout(
    rollout_id=rollout_id,
    task_id=request.task.id,
    harness=request.harness.name,
    harness_version=request.harness.version,
    index=index,
    outcome='infra_error',
    reason=str(error),
    extra={'lost': True, 'host': error.host.name},
  )


class LocalFleet(Fleet):
  """A fleet in this process.

  Args:
    backend, proxy, socket_dir, run_seed, limits, out_dir: see
      `run.run_rollout`.
    memory_bytes: see `LocalRunner`.
    straggler: see `Fleet`.
  """

  def __init__(
    self,
    *,
    backend: base.Backend,
    proxy: run.Proxy,
    socket_dir: pathlib.Path,
    run_seed: int = 0,
    limits: run.RolloutLimits | None = None,
    out_dir: pathlib.Path | None = None,
    memory_bytes: int | None = None,
    straggler: straggler_lib.StragglerConfig | None = None,
    durations: Durations | None = None,
    footprints: hosts_lib.Footprints | None = None,
  ):
    runner = LocalRunner(
      backend=backend,
      proxy=proxy,
      socket_dir=socket_dir,
      run_seed=run_seed,
      out_dir=out_dir,
      memory_bytes=memory_bytes,
    )
    super().__init__(
      runner,
      limits=limits,
      straggler=straggler,
      durations=durations,
      footprints=footprints,
    )
