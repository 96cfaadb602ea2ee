"""The rollout side of a run: one event loop in a thread of its own.

The trainer is ordinary blocking code; proxy, fleet and sandboxes are asyncio.
`RolloutService` keeps them apart: it runs groups and hands them to the trainer
one by one as each completes, so that packing and scoring go on while slower
rollouts still run. Where they run is the config's choice: here, with the proxy
on a Unix socket, or on a Ray cluster, with a proxy on each node that asks this
process for samples.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import pathlib
import queue
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Literal, TypeVar

from clawjax import errors, types
from clawjax.harness import Harness
from clawjax.proxy import serve as serve_lib
from clawjax.proxy.app import Proxy
from clawjax.rollout import fleet as fleet_lib
from clawjax.rollout import hosts as hosts_lib
from clawjax.rollout import ray_runner as ray_lib
from clawjax.rollout import reaper as reaper_lib
from clawjax.rollout import run as run_lib
from clawjax.rollout import straggler as straggler_lib
from clawjax.rollout import worker as worker_lib
from clawjax.sandbox import base
from clawjax.tasks import scoring

T = TypeVar('T')
# So many faults and not one good rollout since the start end the run.
HOPELESS = 16


@dataclasses.dataclass(frozen=True)
class FleetConfig:
  """Where rollouts run, and how they share it.

  Attributes:
    kind: 'local' (this process) or 'ray' (the nodes of a cluster).
    memory_mib: for all rollouts of one host together; None: four fifths of
      what it has to give.
    straggler: what to do about the slowest, see `rollout.straggler`.
    ray: which cluster, see `rollout.ray_runner`.
  """

  kind: Literal['local', 'ray'] = 'local'
  memory_mib: int | None = None
  straggler: straggler_lib.StragglerConfig = straggler_lib.StragglerConfig()
  ray: ray_lib.RayConfig = ray_lib.RayConfig()

  def __post_init__(self):
    if self.kind not in ('local', 'ray'):
      raise ValueError(
        f"fleet.kind: wanted 'local' or 'ray', got {self.kind!r}"
      )
    if self.memory_mib is not None and self.memory_mib < 1:
      raise ValueError(
        f'fleet.memory_mib: wanted at least 1, got {self.memory_mib}'
      )

  @property
  def memory_bytes(self) -> int | None:
    """`memory_mib` in bytes."""
    return self.memory_mib and self.memory_mib * base.MIB


class RolloutService:
  """Proxy, sandboxes and fleet, behind blocking calls. Use as a context.

  Args:
    proxy: the serving proxy, with its engine's client.
    backend: makes the sandboxes.
    harnesses: those that will run; checked and warmed at the start.
    run_dir: telemetry goes below it.
    run_seed: part of every sampling seed.
    limits: of one rollout.
    concurrency: rollouts side by side.
    fleet: where they run.
    backend_spec: name and options of the backend, for workers elsewhere.

  Attributes:
    probe: what the sandboxes can do.
    counts: of the fleet, see `rollout.fleet.Fleet`.
  """

  def __init__(
    self,
    *,
    proxy: Proxy,
    backend: base.Backend,
    harnesses: Sequence[Harness],
    run_dir: pathlib.Path,
    run_seed: int = 0,
    limits: run_lib.RolloutLimits | None = None,
    concurrency: int = 8,
    fleet: FleetConfig | None = None,
    backend_spec: tuple[str, dict[str, Any]] | None = None,
  ):
    self._proxy = proxy
    self._backend = reaper_lib.Reaper(backend)
    self._fleet = fleet or FleetConfig()
    self._backend_spec = backend_spec or (backend.name, {})
    self._harnesses = harnesses
    self._run_dir = run_dir
    self._run_seed = run_seed
    self._limits = limits or run_lib.RolloutLimits()
    self._concurrency = concurrency
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
      target=self._loop.run_forever, name='rollouts', daemon=True
    )
    self._stack = contextlib.AsyncExitStack()
    self._durations = fleet_lib.Durations()
    self._footprints = hosts_lib.Footprints(
      limit_bytes=self._limits.sandbox.memory_bytes
    )
    self._runner: fleet_lib.Runner | None = None
    self.counts: collections.Counter[str] = collections.Counter()
    self._ended = 0
    self.socket_dir: pathlib.Path | None = None
    self.probe: base.Probe | None = None

  def __enter__(self) -> RolloutService:
    self._thread.start()
    try:
      self.call(self._start())
    except BaseException:
      self.__exit__()
      raise
    return self

  def __exit__(self, *_) -> None:
    with contextlib.suppress(Exception):
      self.call(self._stack.aclose())
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join(timeout=10)
    self._loop.close()
    if self.socket_dir is not None:
      shutil.rmtree(self.socket_dir, ignore_errors=True)

  def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the service's loop and waits for it."""
    return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

  async def _start(self) -> None:
    self._stack.push_async_callback(scoring.close_judges)
    self._stack.push_async_callback(self._backend.finish)
    await (self._start_ray if self._fleet.kind == 'ray' else self._start_here)()

  async def _start_here(self) -> None:
    self.probe = await worker_lib.prepare(self._harnesses, self._backend)
    # Short, since a socket's path may have 107 bytes; open to sandbox uids.
    self.socket_dir = pathlib.Path(tempfile.mkdtemp(prefix='clawjax-'))
    self.socket_dir.chmod(0o755)
    await self._stack.enter_async_context(
      serve_lib.serve(self._proxy.app, uds=self.socket_dir / base.SOCKET_NAME)
    )
    self._runner = fleet_lib.LocalRunner(
      backend=self._backend,
      proxy=self._proxy,
      socket_dir=self.socket_dir,
      run_seed=self._run_seed,
      out_dir=self._run_dir,
      memory_bytes=self._fleet.memory_bytes,
    )

  async def _start_ray(self) -> None:
    name, options = self._backend_spec
    spec = worker_lib.WorkerSpec(
      tokenizer=self._proxy.tokenizer.name,
      harnesses=tuple(self._harnesses),
      backend=name,
      backend_options=options,
      proxy=self._proxy.config,
      run_seed=self._run_seed,
    )
    runner = ray_lib.RayRunner(
      spec,
      self._proxy.client,
      self._fleet.ray,
      out_dir=self._run_dir,
      memory_bytes=self._fleet.memory_bytes,
    )
    self._stack.push_async_callback(runner.stop)
    await runner.start()
    self._runner = runner
    probes = [facts.probe for facts in runner.facts.values()]
    self.probe = base.Probe(
      True,
      f'{len(probes)} Ray nodes, the first: {probes[0].text}',
      tuple(dict.fromkeys(w for probe in probes for w in probe.weaker)),
    )

  def groups(
    self,
    requests: Sequence[fleet_lib.GroupRequest],
    *,
    greedy: bool = False,
    retry_budget: int = 0,
    on_start: Callable[[], None] = lambda: None,
    on_rollout: Callable[[types.Rollout], None] = lambda rollout: None,
  ) -> Iterator[list[types.Rollout]]:
    """Runs groups; yields each as its last rollout has ended.

    Args:
      requests: the groups.
      greedy: sample at temperature 0.
      retry_budget: most further attempts after faults of ours, in all.
      on_start: called as each rollout begins (on the loop's thread).
      on_rollout: called with every ended attempt, in the caller's thread.
    """
    if not requests:
      return
    limits = self._limits
    if greedy:
      limits = dataclasses.replace(
        limits, sampling={**limits.sampling, 'temperature': 0.0}
      )
    fleet = fleet_lib.Fleet(
      self._runner,
      limits=limits,
      straggler=self._fleet.straggler,
      durations=self._durations,
      footprints=self._footprints,
    )
    fleet.counts = self.counts
    events: queue.Queue[tuple[str, Any]] = queue.Queue()
    seen: collections.Counter[str] = collections.Counter()

    def stage(rollout_id: str, name: str) -> None:
      seen[rollout_id] += 1
      if seen[rollout_id] == 1:
        on_start()

    async def run() -> None:
      try:
        async for group in fleet.run_groups(
          requests,
          concurrency=self._concurrency,
          on_rollout=lambda rollout: events.put(('rollout', rollout)),
          on_stage=stage,
          retry_budget=retry_budget,
        ):
          events.put(('group', group))
        events.put(('end', None))
      except BaseException as error:
        events.put(('error', error))
        raise

    faults: list[types.Rollout] = []
    job = asyncio.run_coroutine_threadsafe(run(), self._loop)
    try:
      while True:
        kind, value = events.get()
        if kind == 'rollout':
          on_rollout(value)
          # Unbroken since the start: the machine is at fault, not a rollout.
          if value.valid:
            faults = []
          elif value.extra.get('lost'):
            pass  # a node that went away says nothing about the others
          elif len(faults) < HOPELESS:
            faults.append(value)
            if len(faults) == HOPELESS and self._ended == 0:
              raise _hopeless(faults)
          self._ended += value.valid
        elif kind == 'group':
          yield value
        elif kind == 'error':
          raise value
        else:
          return
    finally:
      job.cancel()


def _hopeless(faults: Sequence[types.Rollout]) -> errors.ClawjaxError:
  """The error of a run that cannot get a single rollout done."""
  reasons = collections.Counter(f'{r.outcome}: {r.reason}' for r in faults)
  reason, count = reasons.most_common(1)[0]
  return errors.SandboxError(
    f'the first {len(faults)} rollouts all failed, {count} of them with'
    f' {" ".join(reason.split())[:300]!r}; what the harness printed is below'
    ' telemetry/ in the run folder'
  )
