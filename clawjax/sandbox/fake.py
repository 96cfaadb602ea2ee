"""A sandbox in memory, for unit tests: files are a dict, commands a function.

The function gets a `Command` and answers with an `ExecResult`; it may read and
change the files, await, fail, or sleep past the time limit, so that every fate
of a rollout can be played without a process. No isolation of any kind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import inspect
import pathlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from clawjax.errors import SandboxError
from clawjax.sandbox import base


@dataclasses.dataclass(frozen=True)
class Command:
  """One call of `exec`.

  Attributes:
    argv, env, cwd, stdin, relay_port: as given, `env` with the spec's.
    files: inside path -> content; the function may change it.
    spec: of the sandbox.
  """

  argv: tuple[str, ...]
  env: Mapping[str, str]
  cwd: str
  stdin: bytes
  relay_port: int | None
  files: dict[str, bytes]
  spec: base.SandboxSpec


Answer = base.ExecResult | Awaitable[base.ExecResult]


class FakeBackend:
  """Makes fake sandboxes.

  Args:
    answer: runs the commands; by default each ends with 0 and no output.
    fail: called with 'create', 'destroy' or 'reap'; an exception that it
      raises is the fault of that step, and what it returns to be awaited is
      how long the step hangs.
  """

  name = 'fake'

  def __init__(
    self,
    answer: Callable[[Command], Answer] | None = None,
    *,
    fail: Callable[[str], Awaitable[None] | None] = lambda stage: None,
  ):
    self.answer = answer or (lambda command: base.ExecResult(0))
    self.fail = fail
    self.live: dict[str, FakeSandbox] = {}
    self.made = 0

  async def probe(self) -> base.Probe:
    """Always fine, and always weak."""
    return base.Probe(True, 'in memory', ('no isolation: for tests only',))

  async def create(self, spec: base.SandboxSpec) -> FakeSandbox:
    """See `base.Backend`."""
    await self._step('create')
    self.made += 1
    sandbox = FakeSandbox(self, spec, f'fake-{self.made}')
    self.live[sandbox.id] = sandbox
    return sandbox

  async def sweep(self) -> int:
    """Nothing outlives the process."""
    return 0

  async def reap(self, sandbox: FakeSandbox) -> None:
    """See `base.Backend`."""
    if sandbox.id in self.live:
      await self._step('reap')
      self.live.pop(sandbox.id, None)

  async def _step(self, stage: str) -> None:
    if (hang := self.fail(stage)) is not None:
      await hang

  async def close(self) -> None:
    """Forgets all."""
    self.live.clear()


class FakeSandbox:
  """See `base.Sandbox`."""

  def __init__(self, backend: FakeBackend, spec: base.SandboxSpec, id: str):
    self.backend, self.spec, self.id = backend, spec, id
    self.files: dict[str, bytes] = {}

  async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
    """See `base.Sandbox`; modes are not kept."""
    self._check()
    self.files['/'.join(base.inside_path(path))] = bytes(content)

  async def read(self, path: str, max_bytes: int = 16 * base.MIB) -> bytes:
    """See `base.Sandbox`."""
    self._check()
    try:
      return self.files['/'.join(base.inside_path(path))][:max_bytes]
    except KeyError:
      raise FileNotFoundError(f'no regular file {path!r}') from None

  async def exec(
    self,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = base.WORKSPACE,
    timeout_s: float = 60.0,
    stdin: bytes = b'',
    relay_port: int | None = None,
    log_path: pathlib.Path | None = None,
  ) -> base.ExecResult:
    """See `base.Sandbox`."""
    self._check()
    command = Command(
      tuple(argv),
      {**self.spec.env, **(env or {})},
      cwd,
      stdin,
      relay_port,
      self.files,
      self.spec,
    )
    start = time.monotonic()
    result = self.backend.answer(command)
    if inspect.isawaitable(result):
      try:
        result = await asyncio.wait_for(result, timeout_s)
      except TimeoutError:
        result = base.ExecResult(137, timed_out=True)
    if log_path is not None:
      with open(log_path, 'ab') as log:
        log.write(result.stdout + result.stderr)
    return dataclasses.replace(result, seconds=time.monotonic() - start)

  def _workspace(self) -> dict[str, bytes]:
    prefix = base.WORKSPACE + '/'
    return {
      path.removeprefix(prefix): content
      for path, content in sorted(self.files.items())
      if path.startswith(prefix)
    }

  async def snapshot(self) -> dict[str, base.FileInfo]:
    """See `base.Sandbox`."""
    self._check()
    return {
      path: base.FileInfo(
        'file',
        len(content),
        0o644,
        hashlib.blake2b(content, digest_size=16).hexdigest(),
      )
      for path, content in self._workspace().items()
    }

  async def export(
    self, max_bytes: int = 64 * base.MIB, max_files: int = 10_000
  ) -> dict[str, bytes]:
    """See `base.Sandbox`."""
    self._check()
    result = self._workspace()
    if len(result) > max_files or sum(map(len, result.values())) > max_bytes:
      raise SandboxError('reading a workspace back: more than the caps allow')
    return result

  async def destroy(self) -> None:
    """See `base.Sandbox`."""
    if self.id in self.backend.live:
      await self.backend._step('destroy')
      self.backend.live.pop(self.id, None)

  def _check(self) -> None:
    if self.id not in self.backend.live:
      raise SandboxError(f'{self.id} has been destroyed')
