"""One machine of a fleet: sandboxes, a proxy, and the way to the engine.

A worker is told once what to run with (`WorkerSpec`) and then runs one `Job`
after another, many side by side, each as it would run in the trainer's process.
Its proxy samples over HTTP. It needs no jax, knows nothing of Ray, and sends
back what the trainer would have found: the rollout, and what was printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from clawjax import errors, sandbox, types
from clawjax.chat import tokenizers
from clawjax.harness import Harness
from clawjax.proxy import serve
from clawjax.proxy.app import Proxy, ProxyConfig
from clawjax.rollout import fleet, hosts, reaper
from clawjax.sandbox import base
from clawjax.serving import http_client
from clawjax.tasks import scoring


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerSpec:
  """What a worker runs with.

  Attributes:
    tokenizer: see `chat.tokenizers.load`.
    harnesses: those that will run; checked and warmed at the start.
    backend, backend_options: see `sandbox.load`.
    proxy: how its proxy behaves.
    run_seed: of the run.
    engine_url, engine_token: see `door.serve_client`.
  """

  tokenizer: str
  harnesses: Sequence[Harness]
  backend: str = 'bwrap'
  backend_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  proxy: ProxyConfig = ProxyConfig()
  run_seed: int = 0
  engine_url: str = ''
  engine_token: str = ''


@dataclasses.dataclass(frozen=True)
class Facts:
  """What a worker found where it is.

  Attributes:
    name: of the machine.
    pid: of the worker.
    memory_bytes: that it has to give now.
    probe: what its sandboxes can do.
  """

  name: str
  pid: int
  memory_bytes: int
  probe: base.Probe


async def prepare(harnesses: Sequence[Harness], backend: Any) -> base.Probe:
  """Makes sure that rollouts can run here: sandboxes, no leftovers, harnesses.

  Raises:
    SandboxError, HarnessError: they cannot, and what to do about it.
  """
  probe = await backend.probe()
  if not probe.ok:
    raise errors.SandboxError(probe.text)
  await backend.sweep()
  for harness in harnesses:
    if not harness.installed():
      raise errors.HarnessError(
        f'{harness.name} {harness.version} is not installed; run'
        f' python -m clawjax.harness.install {harness.name}'
      )
    await harness.prepare(backend)
  return probe


class Worker:
  """See the top of the file; used through `ray_runner`."""

  def __init__(self, spec: WorkerSpec):
    self._spec = spec
    self._stack = contextlib.AsyncExitStack()
    self._runner: fleet.LocalRunner | None = None
    self._folder: pathlib.Path | None = None

  async def start(self) -> Facts:
    """Starts proxy and sandboxes; what was found here.

    Raises:
      SandboxError, HarnessError, EngineError: it cannot work here.
    """
    spec = self._spec
    backend = sandbox.load(spec.backend, **dict(spec.backend_options))
    probe = await prepare(spec.harnesses, backend)
    self._stack.push_async_callback(backend.close)
    self._stack.push_async_callback(scoring.close_judges)
    buried = reaper.Reaper(backend)
    self._stack.push_async_callback(buried.finish)
    client = await http_client.HttpClient.connect(
      [spec.engine_url],
      http=httpx.AsyncClient(
        timeout=httpx.Timeout(600.0, connect=10.0),
        limits=httpx.Limits(max_connections=None),
        headers={'authorization': f'Bearer {spec.engine_token}'},
        trust_env=False,
      ),
    )
    self._stack.push_async_callback(client.close)
    proxy = Proxy(client, tokenizers.load(spec.tokenizer), config=spec.proxy)
    # Short, since a socket's path may have 107 bytes; open to sandbox uids.
    self._folder = pathlib.Path(tempfile.mkdtemp(prefix='clawjax-'))
    self._folder.chmod(0o755)
    self._stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
    await self._stack.enter_async_context(
      serve.serve(proxy.app, uds=self._folder / base.SOCKET_NAME)
    )
    self._runner = fleet.LocalRunner(
      backend=buried,
      proxy=proxy,
      socket_dir=self._folder,
      run_seed=spec.run_seed,
      out_dir=self._folder / 'out',
    )
    return Facts(
      name=socket.gethostname(),
      pid=os.getpid(),
      memory_bytes=hosts.available_bytes(),
      probe=probe,
    )

  async def run(self, job: fleet.Job) -> tuple[types.Rollout, bytes]:
    """Runs a job; its rollout, and what the harness printed."""
    rollout = await self._runner.run(
      job, self._runner.hosts.all[0], lambda stage: None
    )
    log = b''
    if rollout.telemetry:
      path = self._folder / 'out' / rollout.telemetry
      with contextlib.suppress(FileNotFoundError):
        log = path.read_bytes()
        path.unlink()
    return rollout, log

  async def limit(self, batch: str, seconds: float | None) -> None:
    """See `fleet.Runner`."""
    self._runner.limit(batch, seconds)

  async def loaded(self) -> list[str]:
    """Names of the top-level modules in this process."""
    return sorted({name.partition('.')[0] for name in sys.modules})

  async def stop(self) -> None:
    """Ends everything here."""
    await self._stack.aclose()
