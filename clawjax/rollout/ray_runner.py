"""Rollouts on a Ray cluster: one worker per node, an actor of its own.

The trainer keeps the queue, the groups and the engine; nodes come and go. A
node that joins gets a worker and work; when one is lost, what ran there is
reported as lost (`HostLost`), and the fleet starts it anew elsewhere under
another id. Nothing that a lost worker may still do counts: its results have no
way back, and its requests to the engine end with its connections.

Workers run on all nodes without a TPU, or on those with a resource of your
choice (`ray start --resources='{"rollout": 1}'`, resource='rollout'), and need
clawjax there without extras, plus `ray` in the trainer's version.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import pathlib
import secrets
from collections.abc import Callable
from typing import Any

from clawjax import errors, types
from clawjax.rollout import door, fleet, worker
from clawjax.rollout import hosts as hosts_lib

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class RayConfig:
  """Which cluster, and which of its nodes.

  Attributes:
    address: of the head ('auto': the cluster that this machine belongs to).
    resource: only nodes with this custom resource; '': all without a TPU.
    slots: most rollouts on one node, or None: as many as its memory holds.
    engine_port: port of the engine's door on the trainer; 0: any free one.
    poll_s: seconds between two looks at who is there.
  """

  address: str = 'auto'
  resource: str = ''
  slots: int | None = None
  engine_port: int = 0
  poll_s: float = 2.0


class RayRunner:
  """See `fleet.Runner`.

  Args:
    spec: what workers run with; where the engine is, is filled in here.
    client: the way to the model, on this side.
    config: see `RayConfig`.
    out_dir: run folder; what harnesses printed goes below it.
    memory_bytes: per host for rollouts; None: four fifths of what it has.

  Attributes:
    hosts: nodes with a worker.
    facts: what each worker found, by host name.
    faults: why nodes have no worker, by node.
  """

  def __init__(
    self,
    spec: worker.WorkerSpec,
    client: types.SamplingClient,
    config: RayConfig | None = None,
    *,
    out_dir: pathlib.Path | None = None,
    memory_bytes: int | None = None,
  ):
    self._spec, self._client = spec, client
    self._config = config or RayConfig()
    self._out_dir, self._memory_bytes = out_dir, memory_bytes
    self.hosts = hosts_lib.Hosts()
    self.facts: dict[str, worker.Facts] = {}
    self.faults: dict[str, str] = {}
    self._actors: dict[str, Any] = {}  # by host name, which is the node's id
    self._starting: dict[str, asyncio.Future] = {}
    self._limits: dict[str, float] = {}
    self._stack = contextlib.AsyncExitStack()
    self._watcher: asyncio.Task | None = None

  # ---- start and end ----

  async def start(self) -> None:
    """Joins the cluster and waits for a first worker.

    Raises:
      ConfigError: there is no Ray or no cluster.
      SandboxError: no node can run rollouts.
    """
    try:
      import ray
    except ImportError as e:
      raise errors.ConfigError(
        "fleet.kind 'ray' needs Ray on the trainer and on all nodes:"
        " pip install 'clawjax[ray]'"
      ) from e
    joined = ray.is_initialized()
    try:
      await asyncio.to_thread(
        ray.init,
        address=self._config.address,
        namespace='clawjax',
        ignore_reinit_error=True,
        log_to_driver=False,
        configure_logging=False,
      )
    except (ConnectionError, RuntimeError, ValueError) as e:
      raise errors.ConfigError(
        f'no Ray cluster at {self._config.address!r}: {e}; start one with'
        ' `ray start --head`'
      ) from e
    if not joined:
      self._stack.push_async_callback(asyncio.to_thread, ray.shutdown)
    token = secrets.token_urlsafe(24)
    url = await self._stack.enter_async_context(
      door.serve_client(
        self._client,
        host=ray.util.get_node_ip_address(),
        port=self._config.engine_port,
        token=token,
      )
    )
    self._spec = dataclasses.replace(
      self._spec, engine_url=url, engine_token=token
    )
    await self._look()
    if self._starting:
      await asyncio.wait(self._starting.values())
    if not self.hosts.all:
      found = '; '.join(self.faults.values()) or 'no node fits'
      raise errors.SandboxError(f'no Ray node can run rollouts: {found}')
    self._watcher = asyncio.ensure_future(self._watch())

  async def stop(self) -> None:
    """Ends the workers and leaves the cluster."""
    import ray

    if self._watcher is not None:
      self._watcher.cancel()
    for job in list(self._starting.values()):
      job.cancel()
    actors = [actor for actor in self._actors.values() if actor is not None]
    if actors:
      ends = [_result(actor.stop.remote()) for actor in actors]
      await asyncio.wait(ends, timeout=20)
      await asyncio.gather(*ends, return_exceptions=True)
    for actor in actors:
      with contextlib.suppress(Exception):
        ray.kill(actor)
    self._actors.clear()
    await self._stack.aclose()

  # ---- nodes ----

  async def _watch(self) -> None:
    while True:
      await asyncio.sleep(self._config.poll_s)
      try:
        await self._look()
      except Exception:  # the head is busy: look again later
        log.exception('looking at the nodes of the Ray cluster')

  async def _look(self) -> None:
    """Gives new nodes a worker and strikes out lost ones."""
    import ray

    nodes = await asyncio.to_thread(ray.nodes)
    alive = {n['NodeID']: n for n in nodes if n['Alive'] and self._fits(n)}
    for host in list(self.hosts.all):
      if host.name not in alive:
        self._strike(host)
    for node_id in alive:
      if node_id not in self._actors and node_id not in self._starting:
        job = asyncio.ensure_future(self._join(node_id))
        self._starting[node_id] = job
        job.add_done_callback(
          lambda job, node_id=node_id: self._starting.pop(node_id, None)
        )

  def _fits(self, node: dict[str, Any]) -> bool:
    has = node.get('Resources', {})
    if self._config.resource:
      return self._config.resource in has
    return 'TPU' not in has

  async def _join(self, node_id: str) -> None:
    """Starts a node's worker; on success the node is a host."""
    import ray
    from ray.util import scheduling_strategies

    actor = (
      ray.remote(worker.Worker)
      .options(
        num_cpus=0,
        max_restarts=0,
        max_task_retries=0,
        max_concurrency=1000,
        scheduling_strategy=scheduling_strategies.NodeAffinitySchedulingStrategy(
          node_id, soft=False
        ),
      )
      .remote(self._spec)
    )
    try:
      facts = await _result(actor.start.remote())
    except Exception as e:  # as it came over from the worker
      text = str(getattr(e, 'cause', None) or e).strip().splitlines()
      self.faults[node_id] = f'node {node_id[:8]}: {text[-1] if text else e!r}'
      log.warning('no worker on %s', self.faults[node_id])
      with contextlib.suppress(Exception):
        ray.kill(actor)
      # Kept, so that it is not tried again every two seconds.
      self._actors[node_id] = None
      return
    memory = self._memory_bytes or int(0.8 * facts.memory_bytes)
    self._actors[node_id] = actor
    self.facts[node_id] = facts
    for batch, seconds in self._limits.items():
      actor.limit.remote(batch, seconds)
    self.hosts.add(hosts_lib.Host(node_id, memory, self._config.slots))

  def _strike(self, host: hosts_lib.Host) -> None:
    import ray

    self.hosts.remove(host)
    actor = self._actors.pop(host.name, None)
    if actor is not None:
      # It may only be out of reach; what it does must not count any more.
      with contextlib.suppress(Exception):
        ray.kill(actor)

  # ---- rollouts ----

  async def run(
    self,
    job: fleet.Job,
    host: hosts_lib.Host,
    on_stage: Callable[[str], None],
  ) -> types.Rollout:
    """See `fleet.Runner`; of the stages only the first is told."""
    import ray

    actor = self._actors.get(host.name)
    if actor is None:
      raise hosts_lib.HostLost(host, 'it left the cluster')
    on_stage('create')
    ref = actor.run.remote(job)
    try:
      rollout, printed = await _result(ref)
    except asyncio.CancelledError:
      with contextlib.suppress(Exception):
        ray.cancel(ref)
      raise
    except ray.exceptions.RayTaskError as e:
      return _fault(job, str(e).strip().splitlines()[-1])
    except ray.exceptions.RayError as e:
      self._strike(host)
      raise hosts_lib.HostLost(host, type(e).__name__) from e
    if printed and self._out_dir is not None:
      path = self._out_dir / rollout.telemetry
      path.parent.mkdir(parents=True, exist_ok=True)
      await asyncio.to_thread(path.write_bytes, printed)
    return rollout

  def limit(self, batch: str, seconds: float | None) -> None:
    """See `fleet.Runner`; holds for nodes that come later, too."""
    if seconds is None:
      self._limits.pop(batch, None)
    else:
      self._limits[batch] = seconds
    for host in self.hosts.all:
      if actor := self._actors.get(host.name):
        actor.limit.remote(batch, seconds)


def _result(ref: Any) -> asyncio.Future:
  """A Ray reference as a future of this loop."""
  return asyncio.wrap_future(ref.future())


def _fault(job: fleet.Job, reason: str) -> types.Rollout:
  """The record of a rollout that our own code on the worker failed."""
  return types.Rollout(
    rollout_id=job.rollout_id,
    task_id=job.task.id,
    harness=job.harness.name,
    harness_version=job.harness.version,
    index=job.index,
    outcome='infra_error',
    reason=f'the worker: {reason}',
  )
