"""Sandboxes as Docker containers, on one or several Docker hosts.

A sandbox is one container: no network, read-only root, no capability, sized
tmpfs for all that is writable; each command is an exec in it as uid 1000, and
after each command everything of that uid is killed. The proxy's socket comes in
as a read-only bind. Every container carries the labels of its owner, so a sweep
finds what a killed trainer left; no networks or volumes are made.

Without an image a host's own `/usr` is bound read-only into an empty image that
is made on the spot, which is the bubblewrap backend's root and needs no
registry. A remote host needs an image that holds the harnesses (such as that of
`launch/docker`), and the proxy's socket at the same path (for example by
`ssh -R`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import posixpath
import secrets
import shlex
import socket
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clawjax.errors import SandboxError
from clawjax.sandbox import base, leases, process

LABEL = 'clawjax.owner'
# Of an image: JSON {path inside: name of the folder that it stands in for}.
BUNDLE = 'clawjax.bundle'
_LOCAL_IMAGE = 'clawjax-local:1'
_RELAY = '/run/clawjax/relay.py'
_SPARE_PROCESSES = 16  # for the execs that look after the sandbox
_PATH = '/usr/local/bin:/usr/bin:/bin'


@dataclasses.dataclass(eq=False)
class _Host:
  """One Docker daemon of the pool."""

  url: str
  client: Any = None
  asked: str = ''
  secure: bool = False
  live: int = 0
  fault: str = ''


def owner() -> str:
  """This process, as a label."""
  pid = os.getpid()
  return f'{socket.gethostname()}:{pid}:{leases.start_time(pid)}'


def _dead(label: str) -> bool:
  """Whether a label names a process of this machine that has ended."""
  host, _, rest = label.partition(':')
  pid, _, start = rest.partition(':')
  if host != socket.gethostname() or not pid.isdigit():
    return False
  return str(leases.start_time(int(pid))) != start


def local_image_tar() -> bytes:
  """An almost empty root for a bound `/usr`, as a tar archive."""
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode='w') as tar:

    def folder(name: str, mode: int = 0o755) -> None:
      info = tarfile.TarInfo(name)
      info.type, info.mode = tarfile.DIRTYPE, mode
      tar.addfile(info)

    for name in ('usr', 'etc', 'dev', 'proc', 'sys', 'run', 'opt', 'home'):
      folder(name)
    folder('tmp', 0o1777)
    for name in base.FOLDERS:
      folder(name.strip('/'))
    for name in ('bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'):
      path = pathlib.Path('/', name)
      if path.is_symlink():
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(info)
    for name, text in base.ETC.items():
      info = tarfile.TarInfo(f'etc/{name}')
      info.size = len(text)
      tar.addfile(info, io.BytesIO(text.encode()))
    cache = pathlib.Path('/etc/ld.so.cache')
    if cache.exists():
      info = tarfile.TarInfo('etc/ld.so.cache')
      info.size = cache.stat().st_size
      tar.addfile(info, io.BytesIO(cache.read_bytes()))
  return out.getvalue()


class DockerBackend:
  """Makes containers.

  Args:
    hosts: URLs of Docker daemons (`unix://`, `ssh://`, `tcp://`); '' is the
      one that the environment names.
    image: image of the sandboxes; '' binds the host's /usr.
    tls: keyword arguments of `docker.tls.TLSConfig` for `tcp://` hosts.
    timeout_s: of one request to a daemon.
  """

  name = 'docker'

  def __init__(
    self,
    *,
    hosts: Sequence[str] = ('',),
    image: str = '',
    tls: Mapping[str, Any] | None = None,
    timeout_s: float = 120.0,
  ):
    self.urls, self.image = tuple(hosts), image
    self.tls, self.timeout_s = tls, timeout_s
    self.live: dict[str, DockerSandbox] = {}
    self._hosts: list[_Host] | None = None
    self._lock = threading.Lock()

  def _open(self) -> list[_Host]:
    """Connects to the hosts, once. Raises `SandboxError`."""
    with self._lock:
      if self._hosts is None:
        self._hosts = [self._connect(url) for url in self.urls]
    good = [h for h in self._hosts if not h.fault]
    if not good:
      faults = '; '.join(f'{h.url}: {h.fault}' for h in self._hosts)
      raise SandboxError(
        f'no Docker host answers ({faults}): start one (`dockerd`), or name '
        'one in the option `hosts`'
      )
    return good

  def _connect(self, url: str) -> _Host:
    try:
      import docker
    except ImportError as e:
      raise SandboxError(
        'the docker backend needs the Docker SDK: `pip install docker`'
      ) from e
    shown = url or os.environ.get('DOCKER_HOST', 'the default socket')
    try:
      if url:
        if url.startswith('unix://'):
          _knock(url.removeprefix('unix://'))
        secure = self.tls and url.startswith('tcp:')
        client = docker.DockerClient(
          base_url=url,
          timeout=self.timeout_s,
          tls=_tls(self.tls) if secure else False,
        )
      else:
        client = docker.from_env(timeout=self.timeout_s)
      client.ping()
    except Exception as e:  # docker, requests, paramiko: each has its own
      return _Host(shown, None, url, fault=str(e).split('\n')[0])
    return _Host(shown, client, url, client.api.base_url.startswith('https:'))

  def _image(self, host: _Host, name: str) -> tuple[str, dict[str, str]]:
    """The image to use, made when it is ours and missing; what it bundles."""
    import docker

    name = name or self.image or _LOCAL_IMAGE
    try:
      found = host.client.images.get(name)
    except docker.errors.ImageNotFound:
      if name != _LOCAL_IMAGE:
        found = host.client.images.pull(name)
      else:
        repository, tag = _LOCAL_IMAGE.split(':')
        host.client.api.import_image_from_data(
          local_image_tar(), repository=repository, tag=tag
        )
        return name, {}
    return name, json.loads(found.labels.get(BUNDLE, '{}'))

  async def probe(self) -> base.Probe:
    """See `base.Backend`."""
    try:
      hosts = await asyncio.to_thread(self._open)
      sandbox = await self.create(base.SandboxSpec(label='probe'))
      try:
        result = await sandbox.exec(['python3', '-c', 'print(6 * 7)'])
      finally:
        await sandbox.destroy()
    except (SandboxError, OSError) as e:
      return base.Probe(False, str(e))
    if result.stdout.strip() != b'42':
      text = result.stderr.decode(errors='replace').strip()
      return base.Probe(False, f'python3 does not run in the image: {text}')
    lines = []
    for host in hosts:
      version = await asyncio.to_thread(host.client.version)
      lines.append(f'Docker {version["Version"]} at {host.url}')
    lines += [f'not used: {h.url}: {h.fault}' for h in self._hosts if h.fault]
    weaker = ('all sandboxes of a host run as one uid',)
    return base.Probe(True, '\n'.join([*lines, f'weaker: {weaker[0]}']), weaker)

  async def create(self, spec: base.SandboxSpec) -> DockerSandbox:
    """Starts a container on the least busy host; tries the others on a fault."""
    faults = []
    hosts = await asyncio.to_thread(self._open)
    for host in sorted(hosts, key=lambda h: h.live):
      sandbox = DockerSandbox(self, host, spec)
      host.live += 1
      self.live[sandbox.id] = sandbox
      try:
        await asyncio.to_thread(sandbox.make)
        return sandbox
      except BaseException as e:
        with contextlib.suppress(SandboxError):
          await sandbox.destroy()
        if not isinstance(e, Exception):
          raise
        faults.append(f'{host.url}: {str(e).splitlines()[0]}')
    raise SandboxError(f'creating a container: {"; ".join(faults)}')

  async def sweep(self) -> int:
    """Removes containers whose owner on this machine has ended."""
    return await asyncio.to_thread(self._sweep)

  async def reap(self, sandbox: DockerSandbox) -> None:
    """See `base.Backend`: over a new connection, by name."""
    sandbox._gone = True
    try:
      await process.apart(self._reap, sandbox)
    except Exception as e:
      raise SandboxError(f'removing {sandbox.id}: {e}') from e
    sandbox._forget()

  def _reap(self, sandbox: DockerSandbox) -> None:
    import docker

    host = self._connect(sandbox.host.asked)
    if host.client is None:
      raise SandboxError(f'{host.url}: {host.fault}')
    try:
      with contextlib.suppress(docker.errors.NotFound):
        _remove(host.client.containers.get(sandbox.id))
    finally:
      host.client.close()

  def _sweep(self) -> int:
    count = 0
    for host in self._open():
      found = host.client.containers.list(
        all=True, filters={'label': LABEL}, ignore_removed=True
      )
      for container in found:
        if _dead(container.labels[LABEL]):
          _remove(container)
          count += 1
    return count

  async def close(self) -> None:
    """Destroys what is alive and lets go of the hosts."""
    for sandbox in list(self.live.values()):
      await sandbox.destroy()
    for host in self._hosts or ():
      if host.client is not None:
        await asyncio.to_thread(host.client.close)
    self._hosts = None


def _knock(path: str) -> None:
  """Raises OSError when nobody listens there: the SDK would leak a socket."""
  with socket.socket(socket.AF_UNIX) as s:
    s.connect(path)


def _tls(options: Mapping[str, Any]) -> Any:
  """TLS of one daemon, by its own certificates.

  `requests` would let REQUESTS_CA_BUNDLE, where it is set, replace the CA that
  was asked for.
  """
  import docker

  class Config(docker.tls.TLSConfig):
    def configure_client(self, client):
      super().configure_client(client)
      client.trust_env = False

  return Config(**options)


def _stands_in(
  image: str, bundled: Mapping[str, str], host: str, inside: str
) -> bool:
  """Whether an image holds what would be mounted; the same version of it.

  Raises:
    SandboxError: another version.
  """
  if (held := bundled.get(inside)) is None:
    return False
  wanted = pathlib.Path(host).name
  if held not in ('', wanted):
    raise SandboxError(
      f'the image {image} holds {held} at {inside}, wanted {wanted}: build it'
      ' anew (launch/docker/build.sh sandbox)'
    )
  return True


def _remove(container: Any) -> None:
  """Removes a container, however far it has come."""
  import docker

  for attempt in range(3):
    try:
      container.remove(force=True, v=True)
      return
    except docker.errors.NotFound:
      return
    except docker.errors.APIError as e:
      if e.status_code != 409 and attempt == 2:  # 409: being removed already
        raise SandboxError(f'removing {container.name}: {e}') from e
      time.sleep(0.2)


class DockerSandbox:
  """See `base.Sandbox`."""

  def __init__(self, backend: DockerBackend, host: _Host, spec):
    self.backend, self.host, self.spec = backend, host, spec
    self.id = f'clawjax-{secrets.token_hex(6)}'
    self.container: Any = None
    self.relay = _RELAY
    self._pending: dict[str, tuple[bytes, int]] = {}
    self._kills = 0
    self._gone = False

  def make(self) -> None:
    """Blocking part of the creation."""
    import docker

    spec, backend = self.spec, self.backend
    image, bundled = backend._image(self.host, spec.image)
    binds = [
      (str(h), i)
      for h, i in spec.readonly
      if not _stands_in(image, bundled, str(h), i)
    ]
    if image == _LOCAL_IMAGE:
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
      # A first process that reaps what commands leave behind. (Docker's own
      # `init` is mounted below /sbin, which is the host's and read-only.)
      ['/bin/sh', '-c', 'tail -f /dev/null & wait'],
      name=self.id,
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
    """Kills what the command left; memory facts of the container so far."""
    script = (
      'kill -9 -1 2>/dev/null; cd /sys/fs/cgroup; '
      'cat memory/memory.max_usage_in_bytes memory.peak 2>/dev/null | head -n1;'
      'cat memory/memory.oom_control memory.events 2>/dev/null'
    )
    result = await self._plain(['sh', '-c', script], timeout_s=20)
    lines = result.stdout.decode().splitlines()
    peak = next((int(x) for x in lines if x.isdigit()), None)
    kills = [int(x.split()[1]) for x in lines if x.startswith('oom_kill ')]
    before, self._kills = self._kills, sum(kills)
    return {
      'peak_memory_bytes': peak,
      'out_of_memory': self._kills > before,
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
    run = _Exec(self, argv, variables, cwd, stdin, output_bytes, log_path)
    job = asyncio.ensure_future(asyncio.to_thread(run.go))
    start = time.monotonic()
    timed_out = False
    try:
      done, _ = await asyncio.wait([job], timeout=timeout_s)
      if not done:
        timed_out = True
        await asyncio.to_thread(self._kill)
      code = await job
    except BaseException:
      if not job.done():
        await asyncio.shield(asyncio.to_thread(self._kill))
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
    """See `base.Sandbox`."""
    if self._gone:
      return
    self._gone = True
    try:
      if self.container is not None:
        await process.apart(_remove, self.container)
      else:
        await process.apart(self._remove_by_name)
    except Exception as e:
      self._gone = False
      raise SandboxError(f'destroying {self.id}: {e}') from e
    self._forget()

  def _forget(self) -> None:
    if self.backend.live.pop(self.id, None) is not None:
      self.host.live -= 1

  def _remove_by_name(self) -> None:
    """For a creation that was cut short: it may have come to be."""
    import docker

    with contextlib.suppress(docker.errors.NotFound):
      _remove(self.host.client.containers.get(self.id))

  def _check(self) -> None:
    if self._gone:
      raise SandboxError(f'{self.id} has been destroyed')


class _Exec:
  """One exec over the daemon's hijacked connection; blocking."""

  def __init__(self, sandbox, argv, env, cwd, stdin, output_bytes, log_path):
    self.sandbox, self.argv, self.env = sandbox, list(argv), env
    self.cwd, self.stdin = cwd, stdin
    # A TLS connection cannot be closed one way: the end of stdin is counted.
    self.counted = bool(stdin) and sandbox.host.secure
    if self.counted:
      count = 'n=$1; shift; head -c "$n" | "$@"'
      self.argv = ['sh', '-c', count, 'sh', str(len(stdin)), *self.argv]
    self.output_bytes, self.log_path = output_bytes, log_path
    self.kept = {1: bytearray(), 2: bytearray()}
    self.truncated = False

  def go(self) -> int:
    """Runs it to its end; the exit code."""
    from docker.errors import APIError, NotFound

    api = self.sandbox.host.client.api
    try:
      made = api.exec_create(
        self.sandbox.container.id,
        self.argv,
        stdin=bool(self.stdin),
        environment=dict(self.env),
        workdir=self.cwd,
        user='1000:1000',
      )
      stream = api.exec_start(made['Id'], socket=True)
      raw = getattr(stream, '_sock', stream)
      raw.settimeout(None)
      feeder = None
      if self.stdin:
        feeder = threading.Thread(target=self._feed, args=(raw,), daemon=True)
        feeder.start()
      try:
        with contextlib.ExitStack() as stack:
          log = None
          if self.log_path is not None:
            log = stack.enter_context(open(self.log_path, 'ab'))
          for kind, data in _frames(raw):
            self._keep(kind, data, log)
      finally:
        if feeder is not None:
          feeder.join(5)
        # The response first: it would flush into a closed socket later.
        if response := getattr(stream, '_response', None):
          response.close()
        stream.close()
        raw.close()
      facts = api.exec_inspect(made['Id'])
    except (APIError, NotFound, OSError) as e:
      raise SandboxError(f'running {self.argv[0]}: {e}') from e
    code = facts.get('ExitCode')
    if code is None:
      raise SandboxError(f'running {self.argv[0]}: the container is gone')
    if code in (126, 127) and self.kept[1].startswith(b'OCI runtime'):
      # The runtime reports a missing program on stdout.
      self.kept[2][:0], self.kept[1][:] = bytes(self.kept[1]), b''
    return code

  def _feed(self, raw) -> None:
    with contextlib.suppress(OSError):
      raw.sendall(self.stdin)
      if not self.counted:
        raw.shutdown(socket.SHUT_WR)

  def _keep(self, kind: int, data: bytes, log) -> None:
    room = self.output_bytes - len(self.kept[kind])
    if len(data) > room:
      self.truncated = True
      data = data[:room]
    if data:
      self.kept[kind] += data
      if log is not None:
        log.write(data)
        log.flush()


def _frames(raw: Any) -> Iterator[tuple[int, bytes]]:
  """(1 for stdout or 2 for stderr, bytes) until the other side closes.

  A frame is a kind, three zeros, the length in four bytes, then the content.
  (The SDK's own reader goes below TLS to the encrypted bytes.)
  """
  while head := _exactly(raw, 8):
    left = int.from_bytes(head[4:], 'big')
    while left:
      data = raw.recv(min(left, 1 << 16))
      if not data:
        return
      left -= len(data)
      yield head[0], data


def _exactly(raw: Any, count: int) -> bytes:
  """So many bytes, or none when the stream ends before."""
  data = b''
  while len(data) < count:
    part = raw.recv(count - len(data))
    if not part:
      return b''
    data += part
  return data


def _plain_path(name: str) -> str | None:
  """A member's path below the workspace, or None for one that leads out."""
  path = posixpath.normpath(name)
  if path in ('', '.') or path.startswith(('/', '..')):
    return None
  return path.encode('utf-8', 'surrogateescape').decode('utf-8', 'replace')
