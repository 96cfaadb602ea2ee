"""What a sandbox is: the records and the two protocols.

A backend makes sandboxes, a sandbox runs commands. Every rollout and every
verifier gets its own. Inside, whatever the backend:

  /workspace  the task's files, the start folder of every command
  /home/agent HOME, fresh
  /verifier, /logs   empty, for the verifier
  /tmp, /run, /dev/shm   small, writable, gone after each command
  /run/clawjax       the relay and the folder with the proxy's socket
  everything else    read-only; there is no network but loopback

The writable folders outlive a command and end with the sandbox; processes do
not outlive the command that started them. Sizes are bytes, times are seconds.

What an agent did to its files is never trusted: reading back follows no
symlink, leaves out all that is not a regular file, and is capped.
"""

from __future__ import annotations

import dataclasses
import pathlib
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

MIB = 1 << 20

WORKSPACE = '/workspace'
HOME = '/home/agent'
FOLDERS = (WORKSPACE, HOME, '/verifier', '/logs')
SOCKET_NAME = 'proxy.sock'
ETC = {
  'passwd': 'root:x:0:0:root:/:/bin/false\n'
  'agent:x:1000:1000:agent:/home/agent:/bin/sh\n',
  'group': 'root:x:0:\nagent:x:1000:\n',
  'hosts': '127.0.0.1 localhost\n::1 localhost\n',
  'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files\n',
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """What one sandbox may use, all its processes together.

  Attributes:
    memory_bytes: memory of all processes (and of the writable folders where
      these are in memory); beyond it the kernel kills.
    processes: most processes and threads at once.
    cpus: share of the machine in cores, or None for no limit.
    cpu_seconds: CPU time of any one process, or None.
    workspace_bytes: all writable folders together.
    files: most files and folders in them.
    file_bytes: any one file.
    open_files: file descriptors of a process.
    tmp_bytes: /tmp; /run and /dev/shm get 4 and 16 MiB.
    output_bytes: stdout and stderr kept of a command, each; the rest is read
      and dropped.
  """

  memory_bytes: int = 2048 * MIB
  processes: int = 256
  cpus: float | None = None
  cpu_seconds: int | None = None
  workspace_bytes: int = 256 * MIB
  files: int = 50_000
  file_bytes: int = 128 * MIB
  open_files: int = 1024
  tmp_bytes: int = 128 * MIB
  output_bytes: int = 4 * MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class SandboxSpec(Limits):
  """One sandbox to be made.

  Attributes:
    readonly: (host path, inside path) pairs, visible but not writable.
    socket_dir: host folder with the proxy's socket, or None for no way out.
    env: variables of every command; nothing is inherited from the host.
    image: what the root is made of, where the backend has images: a name, or
      'build:FOLDER' for one with a Dockerfile.
    label: who it is for (a rollout id); for people and sweeps.
  """

  readonly: tuple[tuple[str, str], ...] = ()
  socket_dir: pathlib.Path | None = None
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  image: str = ''
  label: str = ''

  @classmethod
  def of(cls, limits: Limits | None = None, **fields) -> SandboxSpec:
    """A spec with `limits` and the other fields as named."""
    own = {
      f.name: getattr(limits, f.name)
      for f in dataclasses.fields(Limits)
      if limits is not None
    }
    return cls(**(own | fields))


@dataclasses.dataclass(frozen=True)
class ExecResult:
  """How a command ended.

  Attributes:
    returncode: exit code; 128 + n when signal n ended it.
    stdout, stderr: what it printed, up to the limit.
    timed_out: the wall clock ended it.
    truncated: it printed more than was kept.
    seconds: wall time.
    peak_memory_bytes: of all its processes together, or None when unknown.
    cpu_seconds: CPU time of all its processes, or None when unknown.
    out_of_memory: the memory limit killed something.
    killed_for: the limit that made us end it, '' if none.
  """

  returncode: int
  stdout: bytes = b''
  stderr: bytes = b''
  timed_out: bool = False
  truncated: bool = False
  seconds: float = 0.0
  peak_memory_bytes: int | None = None
  cpu_seconds: float | None = None
  out_of_memory: bool = False
  killed_for: str = ''


@dataclasses.dataclass(frozen=True)
class FileInfo:
  """One entry of a workspace; two are equal when nothing changed.

  Attributes:
    kind: 'file', 'folder', 'link' or 'other' (pipe, socket, device).
    size: bytes of a file, else 0.
    mode: permission bits.
    digest: blake2b of a file's content, target of a link, else ''. Files
      larger than the export limit have digest ''.
  """

  kind: Literal['file', 'folder', 'link', 'other']
  size: int = 0
  mode: int = 0
  digest: str = ''


@dataclasses.dataclass(frozen=True)
class Probe:
  """What a backend can do here.

  Attributes:
    ok: sandboxes can be made.
    text: what was found, or what is missing and the way out; lines.
    weaker: protections that are missing here, each with its reason.
  """

  ok: bool
  text: str
  weaker: tuple[str, ...] = ()


class Sandbox(Protocol):
  """A throw-away world. Methods raise `SandboxError` for faults of ours."""

  id: str

  async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
    """Writes a file; a relative `path` is below /workspace."""

  async def read(self, path: str, max_bytes: int = 16 * MIB) -> bytes:
    """Reads a regular file, at most `max_bytes`; follows no links.

    Raises:
      FileNotFoundError: there is no such regular file.
    """

  async def exec(
    self,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = WORKSPACE,
    timeout_s: float = 60.0,
    stdin: bytes = b'',
    relay_port: int | None = None,
    log_path: pathlib.Path | None = None,
  ) -> ExecResult:
    """Runs a command to its end; nothing that it started stays.

    Args:
      argv: program and arguments, no shell.
      env: added to the spec's.
      cwd: folder inside.
      timeout_s: wall clock; then the whole tree is killed.
      stdin: given to the command, then closed.
      relay_port: forward 127.0.0.1:PORT inside to the proxy's socket.
      log_path: host file that everything printed is appended to (capped).
    """

  async def snapshot(self) -> dict[str, FileInfo]:
    """All entries below /workspace, by relative path."""

  async def export(
    self, max_bytes: int = 64 * MIB, max_files: int = 10_000
  ) -> dict[str, bytes]:
    """Regular files below /workspace, by relative path; capped.

    Raises:
      SandboxError: there is more than the caps allow.
    """

  async def destroy(self) -> None:
    """Ends it and removes all it left; a second call does nothing."""


class Backend(Protocol):
  """Makes sandboxes."""

  name: str

  async def probe(self) -> Probe:
    """Tries what is needed; never raises."""

  async def create(self, spec: SandboxSpec) -> Sandbox:
    """Makes one. Raises `SandboxError`."""

  async def sweep(self) -> int:
    """Removes what dead owners left; returns how many sandboxes."""

  async def reap(self, sandbox: Any) -> None:
    """Removes a sandbox of ours whose own destroy failed or hangs.

    Goes another way than `destroy` does (a process or a connection of its own)
    and waits for nothing that destroy holds; safe to repeat.

    Raises:
      SandboxError: it is not gone.
    """


def changed(
  before: Mapping[str, FileInfo], after: Mapping[str, FileInfo]
) -> dict[str, Literal['added', 'removed', 'modified']]:
  """What differs between two snapshots, by path."""
  result: dict[str, Literal['added', 'removed', 'modified']] = {}
  for path in sorted(before.keys() | after.keys()):
    if path not in before:
      result[path] = 'added'
    elif path not in after:
      result[path] = 'removed'
    elif before[path] != after[path]:
      result[path] = 'modified'
  return result


def kind_of(mode: int) -> Literal['file', 'folder', 'link', 'other']:
  """Kind of an entry from its `st_mode`."""
  if stat.S_ISREG(mode):
    return 'file'
  if stat.S_ISDIR(mode):
    return 'folder'
  if stat.S_ISLNK(mode):
    return 'link'
  return 'other'


def inside_path(path: str) -> tuple[str, str]:
  """Splits a path inside into (writable folder, path relative to it).

  Raises:
    ValueError: not below a writable folder, or with '..' or empty parts.
  """
  full = path if path.startswith('/') else f'{WORKSPACE}/{path}'
  for folder in FOLDERS:
    if full.startswith(folder + '/'):
      rest = full[len(folder) + 1 :]
      parts = rest.split('/')
      if '..' in parts or '' in parts or '.' in parts or '\0' in rest:
        raise ValueError(f'wanted a plain path, got {path!r}')
      return folder, rest
  raise ValueError(f'wanted a path below {", ".join(FOLDERS)}, got {path!r}')
