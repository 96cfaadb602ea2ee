"""Sandboxes as Docker containers, on one or several Docker hosts.

A sandbox is one container: no network, read-only root, no capability, sized
tmpfs for all that is writable; each command is an exec in it as uid 1000, and
after each command everything of that uid is killed. The proxy's socket comes in
as a read-only bind. A container's first process reads from a connection that the
owner holds: when the owner dies, however it dies, the container ends and the
daemon removes it. What slips through (one that was never started) carries the
owner's label, and a sweep finds it. No networks or volumes are made.

Without an image a host's own `/usr` is bound read-only into an empty image that
is made on the spot, which is the bubblewrap backend's root and needs no
registry. A remote host needs an image that holds the harnesses (such as that of
`launch/docker`), and the proxy's socket at the same path (for example by
`ssh -R`). A host behind ssh needs no more than a login that may use Docker
(`docker_ssh.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.errors import SandboxError
from clawjax.sandbox import base, docker_ssh, leases, process
from clawjax.sandbox.docker_sandbox import LABEL, DockerSandbox, owner, remove

__all__ = ['LABEL', 'DockerBackend', 'owner']


@dataclasses.dataclass(eq=False)
class _Host:
  """One Docker daemon of the pool."""

  url: str
  client: Any = None
  asked: str = ''
  secure: bool = False
  live: int = 0
  fault: str = ''
  tunnel: docker_ssh.Tunnel | None = None

  def close(self) -> None:
    """Lets go of the daemon."""
    if self.client is not None:
      self.client.close()
    if self.tunnel is not None:
      self.tunnel.close()


def _dead(label: str) -> bool:
  """Whether a label names a process of this machine that has ended."""
  host, _, rest = label.partition(':')
  pid, _, start = rest.partition(':')
  if host != socket.gethostname() or not pid.isdigit():
    return False
  return str(leases.start_time(int(pid))) != start


class DockerBackend:
  """Makes containers.

  Args:
    hosts: URLs of Docker daemons (`unix://`, `ssh://`, `tcp://`); '' is the
      one that the environment names.
    image: image of the sandboxes, with sh, tar and python3: a name, or
      'build:FOLDER' for one with a Dockerfile; '' binds the host's /usr.
    tls: keyword arguments of `docker.tls.TLSConfig` for `tcp://` hosts.
    ssh: arguments of the `ssh` program for `ssh://` hosts.
    timeout_s: of one request to a daemon.
  """

  name = 'docker'

  def __init__(
    self,
    *,
    hosts: Sequence[str] = ('',),
    image: str = '',
    tls: Mapping[str, Any] | None = None,
    ssh: Sequence[str] = (),
    timeout_s: float = 120.0,
  ):
    self.urls, self.image = tuple(hosts), image
    self.tls, self.ssh, self.timeout_s = tls, tuple(ssh), timeout_s
    self.live: dict[str, DockerSandbox] = {}
    self._hosts: list[_Host] | None = None
    self._lock = threading.Lock()

  def _open(self) -> list[_Host]:
    """Connects to the hosts, once, and again where an ssh has ended.

    Raises:
      SandboxError: none of them answers.
    """
    with self._lock:
      if self._hosts is None:
        self._hosts = [self._connect(url) for url in self.urls]
      for i, host in enumerate(self._hosts):
        if host.tunnel is not None and host.tunnel.ended:
          host.close()
          self._hosts[i] = self._connect(host.asked)
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
    tunnel = None
    try:
      if shown.startswith('ssh:'):
        tunnel = docker_ssh.Tunnel(shown, options=self.ssh)
      if tunnel or url:
        base_url = tunnel.url if tunnel else url
        if base_url.startswith('unix://'):
          _knock(base_url.removeprefix('unix://'))
        secure = self.tls and base_url.startswith('tcp:')
        client = docker.DockerClient(
          base_url=base_url,
          timeout=self.timeout_s,
          tls=_tls(self.tls) if secure else False,
        )
      else:
        client = docker.from_env(timeout=self.timeout_s)
      _one_pool(client)
      client.ping()
    except Exception as e:  # docker, requests, ssh: each has its own
      fault = str(e).split('\n')[0]
      if tunnel is not None:
        why = tunnel.said() or fault
        fault = f'no daemon at {tunnel.daemon} over there: {why}'
        tunnel.close()
      return _Host(shown, None, url, fault=fault)
    secure = client.api.base_url.startswith('https:')
    return _Host(shown, client, url, secure, tunnel=tunnel)

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
        await process.whole(process.apart(sandbox.make))
        return sandbox
      except BaseException as e:
        with contextlib.suppress(SandboxError):
          await sandbox.destroy()
        if not isinstance(e, Exception):
          raise
        faults.append(f'{host.url}: {(str(e) or repr(e)).splitlines()[0]}')
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
        remove(host.client.containers.get(sandbox.id))
    finally:
      host.close()

  def _sweep(self) -> int:
    count = 0
    for host in self._open():
      found = host.client.containers.list(
        all=True, filters={'label': LABEL}, ignore_removed=True
      )
      for container in found:
        if _dead(container.labels[LABEL]):
          remove(container)
          count += 1
    leases.remove_empty(leases.default_root())
    return count

  async def close(self) -> None:
    """Destroys what is alive, sweeps and lets go of the hosts."""
    for sandbox in list(self.live.values()):
      await sandbox.destroy()
    if any(not h.fault for h in self._hosts or ()):
      with contextlib.suppress(Exception):  # the next start sweeps, too
        await self.sweep()
    for host in self._hosts or ():
      await asyncio.to_thread(host.close)
    self._hosts = None


def _one_pool(client: Any) -> None:
  """Sends all requests of a client through one pool of connections.

  For Unix sockets and SSH the SDK has a pool for each URL, 25 at most, and
  closes the oldest even while a request is under way in it: creations failed
  with 64 at once.
  """
  adapter = getattr(client.api, '_custom_adapter', None)
  if hasattr(adapter, 'pools'):
    pool = adapter.get_connection(client.api.base_url)
    adapter.get_connection = lambda *_, **__: pool


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
