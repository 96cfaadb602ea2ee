"""The bubblewrap backend: what only it has, and the end."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

from clawjax.errors import SandboxError
from clawjax.sandbox import base, watch

MIB = base.MIB


async def test_peak_memory_is_of_the_command(bwrap):
  box = await bwrap.create(base.SandboxSpec())
  big = await box.exec(['python3', '-c', 'x = bytearray(80 * 2**20)'])
  small = await box.exec(['true'])
  assert big.peak_memory_bytes > 80 * MIB
  assert small.peak_memory_bytes < 40 * MIB
  await box.destroy()


async def test_missing_mount_is_our_fault(bwrap):
  box = await bwrap.create(
    base.SandboxSpec(readonly=(('/no/such/thing', '/opt/x'),))
  )
  with pytest.raises(SandboxError, match='/no/such/thing'):
    await box.exec(['true'])
  await box.destroy()


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
