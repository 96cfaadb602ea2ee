"""One bubblewrap sandbox: made, written to, run in, read back, removed.

See `bwrap.py` for what a sandbox is. All that lasts of it is a folder, a uid,
control groups and the record that names them; each command is a bwrap of its
own (`bwrap_exec.py`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.errors import SandboxError
from clawjax.sandbox import (
  base,
  bwrap_exec,
  cgroups,
  files,
  leases,
  process,
  watch,
)

# The first process inside keeps bwrap's own environment: nothing of ours.
_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'


class BwrapSandbox:
  """See `base.Sandbox`."""

  def __init__(self, backend: Any, spec: base.SandboxSpec):
    self.backend, self.spec = backend, spec
    self.id = f'sbx-{secrets.token_hex(6)}'
    run = backend._run.path
    self.folder = run / self.id
    self.record = run / f'{self.id}.sandbox'
    self.volume = self.folder / 'vol'
    self.group: cgroups.Group | None = None
    self.uid: int | None = None
    self.facts: dict | None = None
    self._running: set[bwrap_exec.Handle] = set()
    self._end: asyncio.Task | None = None
    self._gone = False

  def make(self) -> None:
    """Blocking part of the creation."""
    backend = self.backend
    holder = f'{os.getpid()} {self.id}'
    if backend.as_root:
      self.uid = backend.uids.lease(holder)
    tree = backend.tree
    self.facts = {
      'folder': str(self.folder),
      'uid': self.uid,
      'holder': holder,
      'mounted': backend.use_quota,
      'version': tree.version,
      'groups': {
        c: str(p / f'clawjax-{self.id}') for c, p in tree.parents.items()
      },
      'label': self.spec.label,
    }
    leases.write_json(self.record, self.facts)
    self.folder.mkdir(mode=0o711)
    self.volume.mkdir(mode=0o711)
    if backend.use_quota:
      self._mount()
    for name in base.FOLDERS:
      path = self.host(name)
      path.mkdir(mode=0o700)
      if self.uid is not None:
        os.chown(path, self.uid, self.uid)
    if tree.parents:
      self.group = cgroups.make(
        tree,
        f'clawjax-{self.id}',
        memory_bytes=self.spec.memory_bytes,
        processes=self.spec.processes,
        cpus=self.spec.cpus,
      )

  def _mount(self) -> None:
    spec = self.spec
    try:
      self.backend._mounts.tmpfs(
        self.volume,
        f'size={spec.workspace_bytes},nr_inodes={spec.files},mode=711',
      )
    except OSError as e:
      if e.errno != errno.EPERM:
        raise
      # Root without CAP_SYS_ADMIN: the probe names it as weaker.
      self.backend.use_quota = False
      self.facts['mounted'] = False
      leases.write_json(self.record, self.facts)

  def host(self, folder: str) -> pathlib.Path:
    return self.volume / folder.strip('/').replace('/', '-')

  # ---- files ----

  async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
    """See `base.Sandbox`."""
    folder, rest = base.inside_path(path)
    self._check()
    try:
      await asyncio.to_thread(
        files.write,
        self.host(folder),
        rest,
        content,
        mode=mode,
        owner=self.uid,
      )
    except OSError as e:
      raise SandboxError(f'writing {path}: {e.strerror}') from e

  async def read(self, path: str, max_bytes: int = 16 * base.MIB) -> bytes:
    """See `base.Sandbox`."""
    folder, rest = base.inside_path(path)
    self._check()
    return await asyncio.to_thread(
      files.read, self.host(folder), rest, max_bytes
    )

  async def snapshot(self) -> dict[str, base.FileInfo]:
    """See `base.Sandbox`."""
    self._check()
    try:
      return await asyncio.to_thread(
        files.snapshot,
        self.host(base.WORKSPACE),
        max_bytes=64 * base.MIB,
        max_entries=self.spec.files,
      )
    except OSError as e:
      raise SandboxError(f'reading the workspace: {e}') from e

  async def export(
    self, max_bytes: int = 64 * base.MIB, max_files: int = 10_000
  ) -> dict[str, bytes]:
    """See `base.Sandbox`."""
    self._check()
    try:
      return await asyncio.to_thread(
        files.export,
        self.host(base.WORKSPACE),
        max_bytes=max_bytes,
        max_files=max_files,
      )
    except OSError as e:
      raise SandboxError(f'reading the workspace: {e}') from e

  # ---- commands ----

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
    spec, backend = self.spec, self.backend
    inner = list(argv)
    if relay_port is not None:
      await bwrap_exec.check_socket(spec.socket_dir)
      inner = [
        backend.python[0],
        '-I',
        '-S',
        '/run/clawjax/relay.py',
        str(relay_port),
        f'/run/clawjax/socket/{base.SOCKET_NAME}',
        *inner,
      ]
    arguments = os.memfd_create('bwrap-args')
    status, status_in = os.pipe()
    os.set_blocking(status, False)
    handle = bwrap_exec.Handle(status)
    if self.group is not None:
      cgroups.reset_peak(self.group)
    killed_before = cgroups.oom_kills(self.group) if self.group else 0
    cpu_before = cgroups.cpu_seconds(self.group) if self.group else None
    watcher = watch.Watcher(
      handle.child,
      memory_bytes=None
      if 'memory' in backend.tree.parents
      else spec.memory_bytes,
      folder=None if backend.use_quota else self.volume,
      folder_bytes=spec.workspace_bytes,
      folder_entries=spec.files,
      kill=handle.kill,
    )
    try:
      text = b'\0'.join(
        os.fsencode(a) for a in bwrap_exec.recipe(self, env or {}, cwd)
      )
      os.write(arguments, text + b'\0')
      os.lseek(arguments, 0, os.SEEK_SET)
      command = [
        *bwrap_exec.join(self),
        backend.bwrap,
        '--args',
        str(arguments),
        '--json-status-fd',
        str(status_in),
        '--',
        *bwrap_exec.rlimits(spec),
        *inner,
      ]
      self._running.add(handle)

      def started(pid: int) -> None:
        handle.pid = pid
        os.close(status_in)
        watcher.start()

      outcome = await process.run(
        command,
        env={'PATH': _PATH},
        stdin=stdin,
        timeout_s=timeout_s,
        output_bytes=spec.output_bytes,
        pass_fds=(arguments, status_in),
        started=started,
        kill=handle.kill,
        log_path=log_path,
      )
      finished = handle.exit_code() is not None
    except OSError as e:
      raise SandboxError(f'starting {argv[0]}: {e}') from e
    finally:
      await watcher.stop()
      self._running.discard(handle)
      if handle.pid is None:
        os.close(status_in)
      os.close(arguments)
      os.close(status)
    if not finished and not outcome.timed_out and not watcher.killed_for:
      text = outcome.stderr.decode(errors='replace').strip()
      raise SandboxError(
        f'bwrap ended by itself with {outcome.returncode}: {text[-500:]}'
      )
    code = outcome.returncode
    return base.ExecResult(
      returncode=code if code >= 0 else 128 - code,
      stdout=outcome.stdout,
      stderr=outcome.stderr,
      timed_out=outcome.timed_out,
      truncated=outcome.truncated,
      seconds=outcome.seconds,
      peak_memory_bytes=cgroups.peak_memory(self.group)
      if self.group and 'memory' in self.group.folders
      else watcher.peak_bytes,
      cpu_seconds=None
      if cpu_before is None
      else cgroups.cpu_seconds(self.group) - cpu_before,
      out_of_memory=watcher.killed_for == 'memory'
      or (self.group is not None)
      and cgroups.oom_kills(self.group) > killed_before,
      killed_for=watcher.killed_for,
    )

  # ---- the end ----

  def kill(self) -> None:
    """Ends all that runs in it; for tests and for a straggler policy."""
    for handle in list(self._running):
      handle.kill()

  async def destroy(self) -> None:
    """See `base.Sandbox`; goes on when its caller is cancelled."""
    if self._gone:
      return
    if self._end is None or self._end.done():
      self._end = process.alone(self._destroy())
    await asyncio.shield(self._end)

  async def _destroy(self) -> None:
    self.kill()
    for _ in range(500):
      if not self._running:
        break
      await asyncio.sleep(0.01)
    if self.facts is not None:
      try:
        await process.apart(self.backend.undo, self.record, self.facts)
      except OSError as e:
        raise SandboxError(f'destroying {self.id}: {e}') from e
    elif self.uid is not None:
      self.backend.uids.release(self.uid)
    self._gone = True
    self.backend.live.pop(self.id, None)

  def _check(self) -> None:
    if self._gone:
      raise SandboxError(f'{self.id} has been destroyed')
