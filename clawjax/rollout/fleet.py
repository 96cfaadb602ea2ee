"""Many rollouts side by side, in one process.

Groups are started longest-expected-first and handed over as each becomes
complete, so training need not wait for the slowest. A rollout that failed
through a fault of ours is run again, under a new id, while the budget lasts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from clawjax import types
from clawjax.harness import Harness
from clawjax.rollout import run
from clawjax.sandbox import base

FAULTS = ('infra_error', 'verifier_error')


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


class LocalFleet:
  """Runs rollouts on asyncio in this process.

  Args:
    backend, proxy, socket_dir, run_seed, limits, out_dir: see
      `run.run_rollout`.
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
  ):
    self.backend, self.proxy = backend, proxy
    self.socket_dir, self.run_seed = socket_dir, run_seed
    self.limits, self.out_dir = limits, out_dir
    self.durations = Durations()

  async def run_groups(
    self,
    requests: Sequence[GroupRequest],
    *,
    concurrency: int,
    on_rollout: Callable[[types.Rollout], None] = lambda rollout: None,
    on_stage: Callable[[str, str], None] = lambda rollout_id, stage: None,
    retry_budget: int = 0,
  ) -> AsyncIterator[list[types.Rollout]]:
    """Runs all requests; yields each group when its last rollout has ended.

    Args:
      requests: the groups.
      concurrency: most rollouts at once.
      on_rollout: told of every rollout that ended, failed attempts included.
      on_stage: told (rollout id, stage) as a rollout goes on.
      retry_budget: most further attempts, over all requests together.

    Yields:
      The group's rollouts by index, each the last attempt.
    """
    order = sorted(
      requests,
      key=lambda r: -self.durations.expected(r.task, r.harness.name),
    )
    free = asyncio.Semaphore(concurrency)
    budget = [retry_budget]
    asked = time.monotonic()

    async def one(request: GroupRequest, index: int) -> types.Rollout:
      attempt = 0
      while True:
        async with free:
          rollout = await self._one(request, index, attempt, asked, on_stage)
        on_rollout(rollout)
        if rollout.outcome not in FAULTS or budget[0] <= 0:
          return rollout
        budget[0] -= 1
        attempt += 1

    async def group(request: GroupRequest) -> list[types.Rollout]:
      # Made in order, so the semaphore's queue keeps the order too.
      return list(await asyncio.gather(*members[id(request)]))

    members = {
      id(r): [asyncio.ensure_future(one(r, i)) for i in range(r.size)]
      for r in order
    }
    groups = [asyncio.ensure_future(group(r)) for r in order]
    try:
      for done in asyncio.as_completed(groups):
        yield await done
    finally:
      jobs = [*groups, *(m for ms in members.values() for m in ms)]
      for job in jobs:
        job.cancel()
      await asyncio.gather(*jobs, return_exceptions=True)

  async def _one(
    self, request, index: int, attempt: int, asked: float, on_stage
  ) -> types.Rollout:
    rollout_id = f'{request.prefix}/{index}' + f'~{attempt}' * bool(attempt)
    queued = time.monotonic() - asked
    rollout = await run.run_rollout(
      request.task,
      harness=request.harness,
      backend=self.backend,
      proxy=self.proxy,
      socket_dir=self.socket_dir,
      rollout_id=rollout_id,
      index=index,
      run_seed=self.run_seed,
      limits=self.limits,
      out_dir=self.out_dir,
      on_stage=lambda stage: on_stage(rollout_id, stage),
    )
    if rollout.outcome in types.SCORED_OUTCOMES:
      self.durations.add(
        request.task, request.harness.name, rollout.timings['total']
      )
    return dataclasses.replace(
      rollout,
      timings={**rollout.timings, 'queue': round(queued, 4)},
      extra={**rollout.extra, 'attempt': attempt},
    )
