"""One command in a bubblewrap sandbox: its command line and its process.

The command line is the whole of the isolation: `join` stands before bwrap and
gives up what root has, `recipe` is bwrap's own arguments, `rlimits` stands
before the command inside. `Handle` is bwrap while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import socket
from collections.abc import Mapping
from typing import Any

from clawjax.errors import SandboxError
from clawjax.sandbox import base

INSIDE_PYTHON = '/opt/python'
_RUN_BYTES, _SHM_BYTES = 4 * base.MIB, 16 * base.MIB


def join(sandbox: Any) -> list[str]:
  """What stands before bwrap: into the control groups, then the uid."""
  result = []
  if sandbox.group is not None:
    into = ' && '.join(
      f'echo $$ > {p}/cgroup.procs' for p in sandbox.group.unique
    )
    result += ['/bin/sh', '-c', f'{into} && exec "$@"', 'sh']
  if sandbox.uid is not None:
    result += [
      'setpriv',
      f'--reuid={sandbox.uid}',
      f'--regid={sandbox.uid}',
      '--clear-groups',
      '--inh-caps=-all',
      '--bounding-set=-all',
    ]
  return result


def recipe(sandbox: Any, env: Mapping[str, str], cwd: str) -> list[str]:
  """bwrap's arguments; the order matters (later mounts lie on top)."""
  spec, backend = sandbox.spec, sandbox.backend
  run = backend._run.path
  args = ['--unshare-user', '--unshare-all', '--disable-userns']
  args += ['--die-with-parent', '--new-session', '--cap-drop', 'ALL']
  args += ['--uid', '1000', '--gid', '1000', '--hostname', 'sandbox']
  args += ['--ro-bind', '/usr', '/usr']
  for name in ('bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'):
    path = pathlib.Path('/', name)
    if path.is_symlink():
      args += ['--symlink', os.readlink(path), str(path)]
    elif path.is_dir():
      args += ['--ro-bind', str(path), str(path)]
  for path in ('/etc/ld.so.cache', '/etc/alternatives', '/etc/ssl'):
    args += ['--ro-bind-try', path, path]
  for name in base.ETC:
    args += ['--ro-bind', str(run / 'etc' / name), f'/etc/{name}']
  args += ['--dev', '/dev', '--size', str(_SHM_BYTES), '--tmpfs', '/dev/shm']
  args += ['--remount-ro', '/dev', '--proc', '/proc']
  args += ['--size', str(spec.tmp_bytes), '--tmpfs', '/tmp']
  args += ['--size', str(_RUN_BYTES), '--tmpfs', '/run']
  args += ['--ro-bind', str(run / 'relay.py'), '/run/clawjax/relay.py']
  if spec.socket_dir is not None:
    args += ['--ro-bind', str(spec.socket_dir), '/run/clawjax/socket']
  if backend.python[1] is not None:
    args += ['--ro-bind', backend.python[1], INSIDE_PYTHON]
    if backend.python[1] != INSIDE_PYTHON:
      args += ['--symlink', INSIDE_PYTHON, backend.python[1]]
  for host, inside in spec.readonly:
    args += ['--ro-bind', backend.reach.path(host), inside]
  for folder in base.FOLDERS:
    args += ['--bind', str(sandbox.host(folder)), folder]
  args += ['--remount-ro', '/', '--chdir', cwd, '--clearenv']
  path = '/usr/local/bin:/usr/bin:/bin'
  if backend.python[1] is not None:
    path = f'{INSIDE_PYTHON}/bin:{path}'
  variables = {
    'PATH': path,
    'HOME': base.HOME,
    'TMPDIR': '/tmp',
    'LANG': 'C.UTF-8',
    'TERM': 'dumb',
    'USER': 'agent',
    **spec.env,
    **env,
  }
  for name, value in variables.items():
    args += ['--setenv', name, value]
  return args


def rlimits(spec: base.Limits) -> list[str]:
  """Limits per process, set inside: process counts are per user namespace."""
  args = [
    'prlimit',
    f'--nproc={spec.processes}',
    f'--nofile={spec.open_files}',
    f'--fsize={spec.file_bytes}',
    '--core=0',
  ]
  if spec.cpu_seconds is not None:
    args.append(f'--cpu={spec.cpu_seconds}')
  return [*args, '--']


class Handle:
  """A running bwrap: its own pid, and the first pid inside."""

  def __init__(self, status: int):
    self.status = status
    self.pid: int | None = None
    self._text = b''
    self._asked = 0

  def _facts(self) -> dict:
    with contextlib.suppress(BlockingIOError):
      while chunk := os.read(self.status, 4096):
        self._text += chunk
    facts: dict = {}
    for line in self._text.split(b'\n')[:-1]:
      with contextlib.suppress(ValueError):
        facts.update(json.loads(line))
    return facts

  def child(self) -> int | None:
    """Host pid of the sandbox's first process, or None."""
    return self._facts().get('child-pid')

  def exit_code(self) -> int | None:
    """What the command ended with, or None if bwrap does not say."""
    return self._facts().get('exit-code')

  def kill(self) -> None:
    """Kills the sandbox; when asked again, bwrap itself too.

    With the first process of its pid namespace everything inside ends at
    once and bwrap follows; killing bwrap first would leave a zombie behind.
    Bwrap is killed with its process group, in which its child still is while
    it waits for its uid: left alone it would wait for ever, holding the pipes.
    """
    self._asked += 1
    child = self.child()
    if child is not None:
      with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    if self.pid is not None and (self._asked > 1 or child is None):
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self.pid, signal.SIGKILL)


async def check_socket(folder: pathlib.Path | None) -> None:
  """Raises unless the proxy answers on its socket."""
  if folder is None:
    raise SandboxError('a relay was asked for, but the spec has no socket_dir')
  path = pathlib.Path(folder) / base.SOCKET_NAME
  for attempt in range(50):
    try:
      with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
      return
    except BlockingIOError:
      pass  # the backlog is full: busy, so alive
    except OSError as e:
      if attempt == 49:
        raise SandboxError(f'no proxy at {path}: {e.strerror}') from e
    await asyncio.sleep(0.1)
