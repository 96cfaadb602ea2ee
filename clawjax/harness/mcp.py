"""MCP tool servers, declared once and told to each harness in its own words.

A `Server` runs inside the sandbox, next to the harness: over stdio the harness
starts it, over HTTP the command line is wrapped so that it runs first and is
healthy before the harness begins. `declare` gives the entries of a harness's
own configuration; `equip` makes a harness with the servers declared, mounted
and, where needed, started. In a config they are the option `mcp` of a harness:

  mcp={'web': {'kind': 'corpus', 'target': '/corpus', 'host': '~/corpus'},
       'own': {'command': ('python3', '/opt/own/server.py'), 'port': 8123,
               'readonly': (('~/own', '/opt/own'),)}}
"""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness import base

_FOLDER = pathlib.Path(__file__).resolve().parent / 'inside'
_INSIDE = '/opt/clawjax-mcp'


@dataclasses.dataclass(frozen=True)
class Server:
  """An MCP tool server.

  Attributes:
    name: as the model sees it in tool names.
    command: inside the sandbox; for HTTP it must listen on `port`.
    port: loopback port of a streamable HTTP server at /mcp, or None for stdio.
    readonly: (host path, inside path) pairs that it needs.
    check: command that ends with 0 when the server is healthy, or ().
  """

  name: str
  command: tuple[str, ...]
  port: int | None = None
  readonly: tuple[tuple[str, str], ...] = ()
  check: tuple[str, ...] = ()

  @property
  def url(self) -> str:
    """Where an HTTP server listens."""
    return f'http://127.0.0.1:{self.port}/mcp'


def shipped(
  kind: str,
  target: str,
  *,
  name: str | None = None,
  port: int | None = None,
  host: str | None = None,
) -> Server:
  """One of the servers that come with us.

  Args:
    kind: 'files', 'corpus' or 'table'; see `inside/mcp_server.py`.
    target: folder or file inside the sandbox.
    name: of the server; the kind by default.
    port: for HTTP.
    host: host path that is mounted at `target`, if it is not in the workspace.
  """
  if kind not in ('files', 'corpus', 'table'):
    raise HarnessError(
      f"mcp: wanted a server of 'files', 'corpus', 'table', got {kind!r}"
    )
  command = ('python3', '-I', f'{_INSIDE}/mcp_server.py', kind, target)
  mounts = ((_host(host), target),) if host else ()
  return Server(
    name or kind,
    command if port is None else (*command, '--http', str(port)),
    port,
    ((str(_FOLDER), _INSIDE), *mounts),
    (*command, '--check'),
  )


def read(entries: Mapping[str, Mapping[str, Any]]) -> list[Server]:
  """Servers of a config: name -> arguments of `shipped`, or of `Server`.

  Raises:
    HarnessError: an entry is neither.
  """
  servers = []
  for name, entry in entries.items():
    given = {k: v for k, v in entry.items() if k != 'name'}
    try:
      if 'kind' in given:
        servers.append(shipped(**given, name=name))
        continue
      for key in ('command', 'check'):
        given[key] = tuple(given.get(key, ()))
      mounts = given.get('readonly', ())
      given['readonly'] = tuple((_host(h), inside) for h, inside in mounts)
      servers.append(Server(name, **given))
    except (TypeError, ValueError) as e:
      raise HarnessError(f'mcp server {name}: {e}') from e
    if not given['command']:
      raise HarnessError(f'mcp server {name}: wanted a kind or a command')
  return servers


def _host(path: str) -> str:
  return str(pathlib.Path(path).expanduser().absolute())


def declare(
  harness: str, servers: Sequence[Server]
) -> dict[str, dict[str, Any]]:
  """Entries for the `mcp_servers` option of a harness."""
  make = _SHAPES.get(harness)
  if make is None:
    raise HarnessError(f'{harness} takes no MCP servers')
  return {s.name: make(s) for s in servers}


def _plain(server: Server, **http: Any) -> dict[str, Any]:
  if server.port is not None:
    return {'url': server.url, **http}
  return {'command': server.command[0], 'args': list(server.command[1:])}


_SHAPES = {
  'pi': lambda s: _plain(s) | {'exposure': 'direct'},
  'claude_code': lambda s: (
    {'type': 'http', 'url': s.url}
    if s.port is not None
    else {'type': 'stdio', **_plain(s)}
  ),
  'codex': lambda s: _plain(s) | {'startup_timeout_sec': 60},
  'openclaw': lambda s: _plain(s, transport='streamable-http'),
  'qwen_code': lambda s: (
    {'httpUrl': s.url} if s.port is not None else _plain(s)
  ),
  'opencode': lambda s: (
    {'type': 'remote', 'url': s.url}
    if s.port is not None
    else {'type': 'local', 'command': list(s.command)}
  ),
}


@dataclasses.dataclass(frozen=True)
class Equipped:
  """A harness with its servers; looks like the harness."""

  harness: Any
  servers: tuple[Server, ...]

  def __getattr__(self, name: str) -> Any:
    if name == 'harness' or name.startswith('__'):  # while it is unpickled
      raise AttributeError(name)
    return getattr(self.harness, name)

  def plan(
    self, turns: Sequence[str], *, base_url: str, model: str = base.MODEL
  ) -> base.Plan:
    """The harness's plan, with mounts, health checks and HTTP servers."""
    plan = self.harness.plan(turns, base_url=base_url, model=model)
    mounts = dict.fromkeys(plan.readonly)
    mounts |= dict.fromkeys(m for s in self.servers for m in s.readonly)
    script = _script(self.servers)
    return dataclasses.replace(
      plan,
      readonly=tuple(mounts),
      argv=tuple(('/bin/sh', '-c', script, 'sh', *a) for a in plan.argv),
    )


def _script(servers: Sequence[Server]) -> str:
  """Checks, starts and awaits the servers, then becomes the harness."""
  lines = []
  for s in servers:
    if s.check:
      lines.append(
        f'{shlex.join(s.check)} >/dev/null || '
        f'{{ echo "mcp server {s.name} is not healthy" >&2; exit 120; }}'
      )
    if s.port is not None:
      lines.append(f'{shlex.join(s.command)} >/tmp/mcp-{s.name}.log 2>&1 &')
      probe = (
        'import socket,sys,time\n'
        'for _ in range(200):\n'
        '  try:\n'
        f'    socket.create_connection(("127.0.0.1",{s.port}),1); sys.exit(0)\n'
        '  except OSError: time.sleep(0.05)\n'
        'sys.exit(1)'
      )
      lines.append(
        f'python3 -I -S -c {shlex.quote(probe)} || '
        f'{{ echo "mcp server {s.name} does not listen" >&2; exit 120; }}'
      )
  return '\n'.join([*lines, 'exec "$@"'])


def equip(name: str, servers: Sequence[Server], **options: Any) -> Equipped:
  """A harness by name with MCP servers; see `harness.load`."""
  from clawjax import harness

  found = harness.load(name, mcp_servers=declare(name, servers), **options)
  return Equipped(found, tuple(servers))
