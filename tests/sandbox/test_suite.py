"""What every backend must do: files, commands, limits, the end."""

import asyncio
import threading
import time

import pytest

from clawjax.errors import SandboxError
from clawjax.sandbox import base, watch

MIB = base.MIB


@pytest.fixture
async def box(backend):
  sandbox = await backend.create(
    base.SandboxSpec(
      memory_bytes=192 * MIB,
      processes=40,
      workspace_bytes=16 * MIB,
      tmp_bytes=8 * MIB,
      file_bytes=12 * MIB,
      output_bytes=100_000,
      env={'FROM_SPEC': 'yes'},
    )
  )
  yield sandbox
  await sandbox.destroy()


async def sh(box, script, **options):
  return await box.exec(['sh', '-c', script], **options)


async def test_files_live_as_long_as_the_sandbox(box):
  await box.write('a/b c.txt', b'one')
  result = await sh(box, 'cat "a/b c.txt"; printf two > made.txt; exit 3')
  assert (result.stdout, result.returncode) == (b'one', 3)
  assert await box.read('made.txt') == b'two'
  assert await box.read('/workspace/a/b c.txt', max_bytes=2) == b'on'
  assert (await sh(box, 'cat made.txt')).stdout == b'two'
  assert await box.export() == {'a/b c.txt': b'one', 'made.txt': b'two'}


async def test_environment_home_and_stdin(box):
  result = await sh(
    box,
    'pwd; echo $HOME $FROM_SPEC $MORE; cat; touch $HOME/x && id -u',
    env={'MORE': 'more'},
    stdin=b'given',
  )
  assert result.stdout == (b'/workspace\n/home/agent yes more\ngiven1000\n')


async def test_snapshot_tells_changes(box):
  await box.write('same', b'1')
  await box.write('changed', b'1')
  await box.write('gone', b'1')
  before = await box.snapshot()
  await sh(box, 'echo 2 > changed; rm gone; mkdir d; ln -s /etc/passwd l')
  after = await box.snapshot()
  assert base.changed(before, after) == {
    'changed': 'modified',
    'gone': 'removed',
    'd': 'added',
    'l': 'added',
  }
  assert after['l'].kind == 'link' and after['l'].digest == '/etc/passwd'


async def test_time_limit_kills_what_ignores_sigterm(box, backend):
  script = "trap '' TERM INT HUP; (setsid sleep 1000 &) ; sleep 1000"
  start = time.monotonic()
  result = await sh(box, script, timeout_s=0.6)
  assert result.timed_out and result.returncode == 137
  assert time.monotonic() - start < 100  # not 1000
  if getattr(box, 'uid', None) is not None:
    assert watch.of_uid(box.uid) == []


async def test_nothing_survives_a_command(box):
  await sh(box, '(setsid sleep 1000 >/dev/null 2>&1 &)')
  result = await sh(box, 'ps ax -o comm= 2>/dev/null || ls /proc')
  assert b'sleep' not in result.stdout


async def test_a_daemon_that_keeps_the_pipe_does_not_hold_us(box):
  start = time.monotonic()
  result = await sh(box, '(setsid sleep 1000 &); echo on')
  assert result.stdout == b'on\n' and result.returncode == 0
  assert time.monotonic() - start < 100  # not 1000


async def test_cancel_kills(box):
  job = asyncio.ensure_future(sh(box, 'sleep 1000', timeout_s=500))
  await asyncio.sleep(0.5)
  job.cancel()
  with pytest.raises(asyncio.CancelledError):
    await job
  if getattr(box, 'uid', None) is not None:
    assert watch.of_uid(box.uid) == []
  assert (await sh(box, 'echo on')).stdout == b'on\n'


async def test_output_is_capped_and_logged(box, tmp_path):
  log = tmp_path / 'log'
  result = await sh(
    box, 'head -c 50000000 /dev/zero; echo end >&2', log_path=log
  )
  assert result.truncated and len(result.stdout) == 100_000
  assert result.stderr == b'end\n'
  assert log.stat().st_size == 100_004


async def test_memory_bomb(box):
  result = await box.exec(
    ['python3', '-c', 'x = [bytearray(10**7) for _ in range(60)]'],
    timeout_s=30,
  )
  assert result.returncode != 0 and result.out_of_memory
  assert (await sh(box, 'echo on')).stdout == b'on\n'


async def test_cpu_time_of_a_command(box):
  script = (
    'import time\nend = time.process_time() + 2\n'
    'while time.process_time() < end: pass'
  )
  busy = await box.exec(['python3', '-c', script], timeout_s=900)
  if busy.cpu_seconds is None:
    pytest.skip('no control groups here')
  idle = await sh(box, 'sleep 0.1')
  assert 2 <= busy.cpu_seconds < 20 and idle.cpu_seconds < 2


async def test_fork_bomb(box):
  script = 'import os, time\nwhile True:\n  os.fork()'
  start = time.monotonic()
  result = await box.exec(['python3', '-c', script], timeout_s=10)
  assert result.returncode != 0 and time.monotonic() - start < 100
  assert (await sh(box, 'echo on')).stdout == b'on\n'


async def test_disk_bombs(box, backend):
  for folder, size in (
    ('/tmp', 8),
    ('/run', 4),
    ('/dev/shm', 16),
    *(
      [('/workspace', 16), ('/home/agent', 16)]
      if getattr(backend, 'use_quota', True)
      else []
    ),
  ):
    script = (
      'i=0; while [ $i -lt 40 ] && head -c 1048576 /dev/zero > '
      f'{folder}/f$i; do i=$((i+1)); done; echo $i; rm -f {folder}/f*'
    )
    result = await sh(box, script)
    assert int(result.stdout) <= size, folder
  for folder in ('/', '/etc', '/dev', '/usr', '/opt', '/proc', '/home'):
    result = await sh(box, f'touch {folder}/x 2>/dev/null && echo written')
    assert result.stdout == b'', folder


async def test_file_size(box):
  result = await sh(box, 'head -c 13000000 /dev/zero > big; stat -c %s big')
  assert int(result.stdout) <= 12 * MIB


async def test_missing_program(box):
  result = await box.exec(['no-such-program'])
  assert result.returncode in (126, 127)
  assert b'no-such-program' in result.stderr


async def test_destroyed_means_gone(backend):
  box = await backend.create(base.SandboxSpec())
  job = asyncio.ensure_future(box.exec(['sleep', '1000'], timeout_s=999))
  await asyncio.sleep(0.3)
  await box.destroy()
  await box.destroy()
  await asyncio.gather(job, return_exceptions=True)
  assert not backend.live
  with pytest.raises(SandboxError, match='destroyed'):
    await box.exec(['true'])


async def test_reap_ends_what_destroy_cannot(backend):
  """Another way out, while commands run; safe to repeat."""
  box = await backend.create(base.SandboxSpec())
  job = asyncio.ensure_future(box.exec(['sleep', '1000'], timeout_s=999))
  await asyncio.sleep(0.3)
  await backend.reap(box)
  await asyncio.wait_for(asyncio.gather(job, return_exceptions=True), 30)
  assert not backend.live
  await backend.reap(box)
  await box.destroy()
  with pytest.raises(SandboxError, match='destroyed'):
    await box.exec(['true'])


async def test_a_creation_that_is_cancelled_leaves_nothing(
  backend, monkeypatch
):
  """What makes it is a thread, which goes on when its owner is cancelled."""
  inside, hold, made = threading.Event(), threading.Event(), []
  spare = await backend.create(base.SandboxSpec())
  make = type(spare).make

  def slowly(self):
    inside.set()
    hold.wait(60)
    make(self)
    made.append(self)

  monkeypatch.setattr(type(spare), 'make', slowly)
  job = asyncio.ensure_future(backend.create(base.SandboxSpec()))
  await asyncio.to_thread(inside.wait, 60)
  job.cancel()
  await asyncio.sleep(0.1)
  hold.set()
  with pytest.raises(asyncio.CancelledError):
    await job
  async with asyncio.timeout(60):
    while not made:
      await asyncio.sleep(0.05)
  assert set(backend.live) == {spare.id}
  [box] = made
  with pytest.raises(SandboxError, match='destroyed'):
    await box.exec(['true'])
  assert gone(box) and not gone(spare)
  await spare.destroy()


async def test_a_destruction_goes_on_without_its_owner(backend):
  box = await backend.create(base.SandboxSpec())
  work = asyncio.ensure_future(box.exec(['sleep', '1000'], timeout_s=999))
  await asyncio.sleep(0.2)
  job = asyncio.ensure_future(box.destroy())
  await asyncio.sleep(0)
  job.cancel()
  with pytest.raises(asyncio.CancelledError):
    await job
  async with asyncio.timeout(60):
    while backend.live:
      await asyncio.sleep(0.05)
  assert gone(box)
  await asyncio.gather(work, return_exceptions=True)
  await box.destroy()


def gone(box):
  """Whether nothing is there of a sandbox, where its backend keeps it."""
  if box.backend.name == 'bwrap':
    return not box.folder.exists() and not box.record.exists()
  containers = box.host.client.containers.list(all=True, ignore_removed=True)
  return box.id not in {c.name for c in containers}
