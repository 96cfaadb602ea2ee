"""One container: made, written to, run in, read back, removed.

See `docker.py` for what a container is; this is `base.Sandbox` over the Docker
SDK, whose calls block and so run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import os
import pathlib
import posixpath
import secrets
import shlex
import socket
import tarfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.errors import SandboxError
from clawjax.sandbox import base, docker_exec, docker_images, leases, process

LABEL = 'clawjax.owner'
_RELAY = '/run/clawjax/relay.py'
_SPARE_PROCESSES = 16  # for the execs that look after the sandbox
_PATH = '/usr/local/bin:/usr/bin:/bin'
# Reaps what commands leave behind, and ends with its input. (Docker's own `init`
# is mounted below /sbin, which is the host's and read-only.)
_FIRST = 'exec 3<&0; cat <&3 >/dev/null & exec 3<&-; wait'


def owner() -> str:
  """This process, as a label."""
  pid = os.getpid()
  return f'{socket.gethostname()}:{pid}:{leases.start_time(pid)}'


def remove(container: Any) -> None:
  """Removes a container, however far it has come; then it is gone.

  Raises:
    SandboxError: it is not.
  """
  import docker

  end, faults = time.monotonic() + 60, 0
  while True:
    try:
      container.remove(force=True, v=True)
      return
    except docker.errors.NotFound:
      return
    except docker.errors.APIError as e:
      # 409: the daemon is removing it already, since it has ended.
      faults += e.status_code != 409
      if faults == 3 or time.monotonic() > end:
        raise SandboxError(f'removing {container.name}: {e}') from e
    time.sleep(0.2)


class DockerSandbox:
  """See `base.Sandbox`."""

  def __init__(self, backend: Any, host: Any, spec: base.SandboxSpec):
    self.backend, self.host, self.spec = backend, host, spec
    self.id = f'clawjax-{secrets.token_hex(6)}'
    self.container: Any = None
    self._life: Any = None  # the connection that it lives by
    self.relay = _RELAY
    self._pending: dict[str, tuple[bytes, int]] = {}
    self._kills = 0
    self._cpu_s = 0.0
    self._gone = False
    self._end: asyncio.Task | None = None

  def make(self) -> None:
    """Blocking part of the creation."""
    import docker

    spec, backend = self.spec, self.backend
    image, bundled = docker_images.find(
      self.host.client, spec.image or backend.image
    )
    binds = [
      (str(h), i)
      for h, i in spec.readonly
      if not docker_images.stands_in(image, bundled, str(h), i)
    ]
    if image == docker_images.LOCAL:
      binds += [
        (p, p)
        for p in ('/usr', '/etc/ssl', '/etc/alternatives')
        if os.path.isdir(p)
      ]
    if spec.socket_dir is not None:
      binds.append((str(spec.socket_dir), '/run/clawjax/socket'))
    relay = pathlib.Path(__file__).with_name('relay.py')
    if self.host.url.startswith(('ssh:', 'tcp:')):
      self.relay = '/tmp/.relay.py'
      self._pending[self.relay] = (relay.read_bytes(), 0o644)
    else:
      binds.append((str(relay), _RELAY))
    own = 'uid=1000,gid=1000,mode=700'
    files = f'nr_inodes={spec.files}'
    tmpfs = dict.fromkeys(
      base.FOLDERS,
      f'rw,exec,nosuid,nodev,size={spec.workspace_bytes},{own},{files}',
    )
    tmpfs['/tmp'] = (
      f'rw,exec,nosuid,nodev,size={spec.tmp_bytes},mode=1777,{files}'
    )
    tmpfs['/run'] = f'rw,nosuid,nodev,size={4 * base.MIB},mode=755'
    ulimits = [
      docker.types.Ulimit(name=n, soft=v, hard=v)
      for n, v in (
        ('fsize', spec.file_bytes),
        ('nofile', spec.open_files),
        ('core', 0),
        ('cpu', spec.cpu_seconds),
      )
      if v is not None
    ]
    self.container = self.host.client.containers.create(
      image,
      ['/bin/sh', '-c', _FIRST],
      name=self.id,
      stdin_open=True,
      auto_remove=True,
      # Root without a capability: what runs as 1000 cannot end it.
      user='0:0',
      network_mode='none',
      read_only=True,
      cap_drop=['ALL'],
      security_opt=['no-new-privileges'],
      mem_limit=spec.memory_bytes,
      memswap_limit=spec.memory_bytes,
      pids_limit=spec.processes + _SPARE_PROCESSES,
      nano_cpus=int(spec.cpus * 1e9) if spec.cpus else None,
      shm_size=16 * base.MIB,
      tmpfs=tmpfs,
      ulimits=ulimits,
      mounts=[
        docker.types.Mount(i, h, type='bind', read_only=True) for h, i in binds
      ],
      hostname='sandbox',
      labels={LABEL: owner(), 'clawjax.label': spec.label[:200]},
    )
    self._life = self.host.client.api.attach_socket(
      self.container.id, params={'stdin': 1, 'stream': 1}
    )
    raw = getattr(self._life, '_sock', self._life)
    with contextlib.suppress(OSError, AttributeError):  # a socket without it
      raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    self.container.start()

  # ---- files ----

  async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
    """See `base.Sandbox`; many writes travel as one archive, when needed."""
    self._check()
    self._pending['/'.join(base.inside_path(path))] = (content, mode)

  async def _flush(self) -> None:
    if not self._pending:
      return
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w') as tar:
      for path, (content, mode) in self._pending.items():
        info = tarfile.TarInfo(path.strip('/'))
        info.size, info.mode = len(content), mode
        info.uid = info.gid = 1000
        tar.addfile(info, io.BytesIO(content))
    self._pending.clear()
    result = await self._plain(
      ['tar', '-x', '-C', '/', '--no-same-owner', '-p', '-f', '-'],
      stdin=out.getvalue(),
    )
    if result.returncode:
      text = result.stderr.decode(errors='replace').strip()
      raise SandboxError(f'writing files: {text[-300:]}')

  async def read(self, path: str, max_bytes: int = 16 * base.MIB) -> bytes:
    """See `base.Sandbox`."""
    where = '/'.join(base.inside_path(path))
    await self._flush()
    quoted = shlex.quote(where)
    # A folder on the way that is a link makes the real path another one.
    script = (
      f'test "$(realpath -- {quoted})" = {quoted} && test -f {quoted} '
      f'&& head -c {max_bytes} -- {quoted}'
    )
    result = await self._plain(['sh', '-c', script], output_bytes=max_bytes)
    if result.returncode:
      raise FileNotFoundError(f'no regular file {path!r}')
    return result.stdout

  async def _archive(self, max_bytes: int) -> tarfile.TarFile:
    await self._flush()
    argv = ['tar', '-c', '-C', base.WORKSPACE, '--format=pax', '-f', '-', '.']
    # Headers take room of their own: 1.5 KiB an entry, at most.
    cap = 2 * max_bytes + 1536 * self.spec.files
    result = await self._plain(argv, output_bytes=cap)
    if result.returncode:
      await self._plain(['chmod', '-R', 'u+rX', base.WORKSPACE])
      result = await self._plain(argv, output_bytes=cap)
    if result.truncated:
      raise SandboxError(
        f'reading a workspace back: more than {max_bytes} bytes'
      )
    if result.returncode:
      text = result.stderr.decode(errors='replace').strip()
      raise SandboxError(f'reading the workspace: {text[-300:]}')
    return tarfile.open(fileobj=io.BytesIO(result.stdout), mode='r:')

  async def snapshot(self) -> dict[str, base.FileInfo]:
    """See `base.Sandbox`."""
    result = {}
    with await self._archive(64 * base.MIB) as tar:
      for member in tar:
        if (path := _plain_path(member.name)) is None:
          continue
        kind = base.kind_of(
          {
            tarfile.REGTYPE: 0o100000,
            tarfile.LNKTYPE: 0o100000,
            tarfile.DIRTYPE: 0o040000,
            tarfile.SYMTYPE: 0o120000,
          }.get(member.type, 0)
        )
        digest = member.linkname if kind == 'link' else ''
        if kind == 'file':
          content = tar.extractfile(member).read()
          digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        result[path] = base.FileInfo(
          kind,
          len(content) if kind == 'file' else 0,
          member.mode & 0o7777,
          digest,
        )
    return result

  async def export(
    self, max_bytes: int = 64 * base.MIB, max_files: int = 10_000
  ) -> dict[str, bytes]:
    """See `base.Sandbox`."""
    result: dict[str, bytes] = {}
    total = 0
    with await self._archive(max_bytes) as tar:
      for member in tar:
        path = _plain_path(member.name)
        if path is None:
          continue
        if path.count('/') >= 64:
          raise SandboxError(
            'reading a workspace back: folders are deeper than 64'
          )
        if not (member.isreg() or member.islnk()):
          continue
        content = tar.extractfile(member).read()
        total += len(content)
        if total > max_bytes:
          raise SandboxError(
            f'reading a workspace back: more than {max_bytes} bytes'
          )
        if len(result) >= max_files:
          raise SandboxError(
            f'reading a workspace back: more than {max_files} files'
          )
        result[path] = content
    return result

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
    await self._flush()
    inner = list(argv)
    if relay_port is not None:
      if self.spec.socket_dir is None:
        raise SandboxError('a relay needs a socket_dir in the spec')
      inner = [
        *('python3', '-I', '-S', self.relay, str(relay_port)),
        f'/run/clawjax/socket/{base.SOCKET_NAME}',
        *inner,
      ]
    result = await self._plain(
      inner,
      env={**self.spec.env, **(env or {})},
      cwd=cwd,
      timeout_s=timeout_s,
      stdin=stdin,
      output_bytes=self.spec.output_bytes,
      log_path=log_path,
    )
    facts = await self._tidy()
    return dataclasses.replace(result, **facts)

  async def _tidy(self) -> dict[str, Any]:
    """Kills what the command left; what the container has used."""
    # Control groups of version 1, then 2.
    script = (
      'kill -9 -1 2>/dev/null; cd /sys/fs/cgroup; exec 2>/dev/null; '
      'echo peak $(cat memory/memory.max_usage_in_bytes memory.peak); '
      'echo nanoseconds $(cat cpuacct/cpuacct.usage); cat cpu.stat; '
      'cat memory/memory.oom_control memory.events'
    )
    result = await self._plain(['sh', '-c', script], timeout_s=20)
    pairs = [x.split() for x in result.stdout.decode().splitlines()]
    found = {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}
    kills, self._kills = self._kills, found.get('oom_kill', 0)
    seconds = None
    if 'nanoseconds' in found:
      seconds = found['nanoseconds'] / 1e9
    elif 'usage_usec' in found:
      seconds = found['usage_usec'] / 1e6
    before, self._cpu_s = self._cpu_s, seconds or 0.0
    return {
      'peak_memory_bytes': found.get('peak'),
      'cpu_seconds': None if seconds is None else seconds - before,
      'out_of_memory': self._kills > kills,
    }

  async def _plain(
    self,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = '/',
    timeout_s: float = 60.0,
    stdin: bytes = b'',
    output_bytes: int = 4 * base.MIB,
    log_path: pathlib.Path | None = None,
  ) -> base.ExecResult:
    """One exec as uid 1000, with its own stdin and a time limit."""
    self._check()
    variables = {
      'PATH': _PATH,
      'HOME': base.HOME,
      'TMPDIR': '/tmp',
      'LANG': 'C.UTF-8',
      'TERM': 'dumb',
      'USER': 'agent',
      **(env or {}),
    }
    run = docker_exec.Exec(
      self, argv, variables, cwd, stdin, output_bytes, log_path
    )
    # Not in the shared pool: it would run no more at once than it has threads.
    job = asyncio.ensure_future(process.apart(run.go))
    start = time.monotonic()
    timed_out = False
    try:
      done, _ = await asyncio.wait([job], timeout=timeout_s)
      if not done:
        timed_out = True
        await process.apart(self._kill)
      code = await job
    except BaseException:
      if not job.done():
        await asyncio.shield(process.apart(self._kill))
        await asyncio.wait([job], timeout=10)
      raise
    return base.ExecResult(
      returncode=137 if timed_out else code,
      stdout=bytes(run.kept[1]),
      stderr=bytes(run.kept[2]),
      timed_out=timed_out,
      truncated=run.truncated,
      seconds=time.monotonic() - start,
    )

  def _kill(self) -> None:
    """Kills everything that runs as 1000 in the container."""
    api = self.host.client.api
    with contextlib.suppress(Exception):
      # A fork bomb has used up all processes: make room for the killer.
      api._post_json(
        api._url('/containers/{0}/update', self.container.id),
        data={'PidsLimit': self.spec.processes + 8 * _SPARE_PROCESSES},
      )
    for _ in range(5):
      code, _ = self.container.exec_run(
        ['/bin/sh', '-c', 'kill -9 -1'], user='1000:1000'
      )
      if code == 0:
        return
      time.sleep(0.2)

  async def destroy(self) -> None:
    """See `base.Sandbox`; goes on when its caller is cancelled."""
    if self._end is None or (self._end.done() and not self._gone):
      self._end = process.alone(self._destroy())
    await asyncio.shield(self._end)

  async def _destroy(self) -> None:
    if self._gone:
      return
    self._gone = True
    try:
      if self.container is not None:
        await process.apart(remove, self.container)
      else:
        await process.apart(self._remove_by_name)
    except Exception as e:
      self._gone = False
      raise SandboxError(f'destroying {self.id}: {e}') from e
    self._forget()

  def _forget(self) -> None:
    if self.backend.live.pop(self.id, None) is not None:
      self.host.live -= 1
    life, self._life = self._life, None
    if life is not None:
      with contextlib.suppress(OSError):
        docker_exec.close(life)

  def _remove_by_name(self) -> None:
    """For a creation that was cut short: it may have come to be."""
    import docker

    with contextlib.suppress(docker.errors.NotFound):
      remove(self.host.client.containers.get(self.id))

  def _check(self) -> None:
    if self._gone:
      raise SandboxError(f'{self.id} has been destroyed')


def _plain_path(name: str) -> str | None:
  """A member's path below the workspace, or None for one that leads out."""
  path = posixpath.normpath(name)
  if path in ('', '.') or path.startswith(('/', '..')):
    return None
  return path.encode('utf-8', 'surrogateescape').decode('utf-8', 'replace')
