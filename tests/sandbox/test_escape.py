"""What an agent must not be able to do, tried from inside."""

import asyncio
import os
import socket

import psutil
import pytest

from clawjax.errors import SandboxError
from clawjax.sandbox import base


@pytest.fixture
async def box(backend, socket_dir):
  sandbox = await backend.create(base.SandboxSpec(socket_dir=socket_dir))
  yield sandbox
  await sandbox.destroy()


async def sh(box, script, **options):
  return await box.exec(['sh', '-c', script], **options)


async def test_host_files_are_not_there(box, backend, tmp_path):
  secret = tmp_path / 'secret'
  secret.write_text('secret')
  secret.chmod(0o644)
  here = os.path.dirname(os.path.abspath(__file__))
  paths = ['/etc/shadow', '/root', '/var', str(secret), here]
  if backend.name == 'bwrap':
    paths.append('/sys')  # Docker mounts its own, read-only
  for path in paths:
    result = await sh(box, f'ls -d {path}')
    assert result.returncode != 0, path


async def test_another_workspace_is_not_there(backend, box):
  other = await backend.create(base.SandboxSpec())
  await other.write('secret', b'secret')
  await other.exec(['true'])
  if root := getattr(backend, 'root', None):
    result = await sh(box, f'ls {root} /proc/1/root{root}')
    assert result.stdout == b''
  result = await sh(box, 'grep -rs secret /workspace /home /tmp /run; true')
  assert result.stdout == b''
  await other.destroy()


async def test_trainers_environment_is_not_there(backend, monkeypatch):
  monkeypatch.setenv('TRAINER_TOKEN', 'hunter2')
  box = await backend.create(base.SandboxSpec())
  result = await sh(box, 'env; cat /proc/*/environ /proc/*/cmdline')
  assert b'hunter2' not in result.stdout
  assert b'PATH=' in result.stdout
  await box.destroy()


async def test_no_capability_no_new_privileges(box):
  result = await sh(box, 'cat /proc/self/status; id -u')
  lines = dict(
    line.split(':\t') for line in result.stdout.decode().splitlines()[:-1]
  )
  for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'):
    assert int(lines[name], 16) == 0, name
  assert lines['NoNewPrivs'] == '1'
  if getattr(box, 'uid', None) is not None:
    assert box.uid != 0


@pytest.mark.parametrize(
  'script',
  [
    'unshare --user --map-root-user true',
    'mount -t tmpfs none /tmp',
    'mount -o remount,rw,bind /',
    'umount /workspace',
    'mknod /tmp/d c 1 3',
    'chroot /tmp /bin/true',
    'kill -9 $(($$ + 100000))',
    'echo 1 > /proc/sys/kernel/core_pattern',
    'echo 0 > /proc/1/oom_score_adj && false',
  ],
)
async def test_refused(box, script):
  assert (await sh(box, script)).returncode != 0


async def test_no_network_but_loopback(box):
  listener = socket.create_server(('127.0.0.1', 0))
  port = listener.getsockname()[1]
  script = f"""
import socket
print(sorted(name for _, name in socket.if_nameindex()))
for host, port in (('127.0.0.1', {port}), ('172.17.0.1', 22), ('1.1.1.1', 53),
                   ('169.254.169.254', 80)):
  try:
    socket.create_connection((host, port), 1)
    print('reached', host)
  except OSError:
    pass
try:
  socket.getaddrinfo('example.org', 80)
  print('resolved')
except OSError:
  pass
"""
  result = await box.exec(['python3', '-c', script])
  listener.close()
  assert result.stdout == b"['lo']\n", result


async def test_abstract_sockets_of_the_host_are_not_there(box):
  listener = socket.socket(socket.AF_UNIX)
  listener.bind('\0clawjax-test')
  listener.listen()
  script = (
    "import socket; socket.socket(socket.AF_UNIX).connect('\\0clawjax-test')"
  )
  result = await box.exec(['python3', '-c', script])
  listener.close()
  assert result.returncode == 1


async def test_the_proxys_socket_cannot_be_replaced(box, socket_dir, serve):
  async def handle(reader, writer):
    writer.close()

  async with serve(socket_dir / 'proxy.sock', handle):
    result = await sh(box, 'rm -f /run/clawjax/socket/proxy.sock')
    assert result.returncode != 0
    result = await sh(box, 'touch /run/clawjax/socket/x')
    assert result.returncode != 0


# ---- reading back what an agent has prepared ----


async def test_links_are_not_followed(box, tmp_path):
  secret = tmp_path / 'secret'
  secret.write_text('secret')
  await sh(
    box,
    f'ln -s {secret} link; ln -s {tmp_path} dir; ln -s / root;'
    'ln -s ../../../../../etc/passwd up; mkfifo pipe; echo 1 > real;'
    'mkdir deep; ln -s /etc deep/etc',
  )
  assert await box.export() == {'real': b'1\n'}
  kinds = {k: v.kind for k, v in (await box.snapshot()).items()}
  assert kinds == {
    'link': 'link',
    'dir': 'link',
    'root': 'link',
    'up': 'link',
    'pipe': 'other',
    'real': 'file',
    'deep': 'folder',
    'deep/etc': 'link',
  }
  for path in ('link', 'up', 'pipe', 'dir/secret', 'deep/etc/passwd', 'deep'):
    with pytest.raises(FileNotFoundError):
      await box.read(path)


async def test_writes_do_not_follow_links(box, tmp_path):
  target = tmp_path / 'target'
  target.write_text('untouched')
  folder = tmp_path / 'folder'
  folder.mkdir()
  await sh(box, f'ln -s {target} a; ln -s {folder} b')
  await box.write('a', b'new')
  try:
    await box.write('b/c', b'new')
    await box.read('a')
  except SandboxError:
    pass  # refused; a container may instead keep it inside itself
  assert target.read_text() == 'untouched' and not list(folder.iterdir())
  assert await box.read('a') == b'new'


@pytest.mark.parametrize(
  'path', ['../x', 'a/../../x', '/etc/x', '/workspace/../x', '', 'a//b', '/']
)
async def test_paths_must_be_plain(box, path):
  with pytest.raises(ValueError, match='wanted a'):
    await box.write(path, b'')
  with pytest.raises(ValueError, match='wanted a'):
    await box.read(path)


async def test_caps_on_reading_back(box):
  await sh(box, 'head -c 3000000 /dev/zero > big; truncate -s 40M sparse')
  with pytest.raises(SandboxError, match='bytes'):
    await box.export(max_bytes=2_000_000)
  await sh(box, 'rm *; for i in $(seq 30); do echo > $i; done')
  with pytest.raises(SandboxError, match='files'):
    await box.export(max_files=20)
  script = 'import os\nfor _ in range(300): os.mkdir("d"); os.chdir("d")'
  await box.exec(['python3', '-c', script])
  with pytest.raises(SandboxError, match='deeper'):
    await box.export()


async def test_modes_taken_away(box):
  await sh(box, 'mkdir d; echo 1 > d/f; echo 2 > g; chmod 0 d/f d g')
  assert await box.export() == {'d/f': b'1\n', 'g': b'2\n'}


async def test_names_that_are_not_text(box):
  script = 'open(b"\\xff\\n", "w").write("1")'
  await box.exec(['python3', '-c', script])
  assert await box.export() == {'\ufffd\n': b'1'}


async def test_folders_swapped_for_links_while_we_read(box, tmp_path):
  """An agent that races the reader never gets it out of the workspace."""
  (tmp_path / 'f').write_text('secret')
  (tmp_path / 'f').chmod(0o644)
  script = f"""
import os
os.makedirs('real', exist_ok=True)
open('real/f', 'w').write('mine')
os.rename('real', 'd')
while True:
  os.rename('d', 'aside')
  os.symlink({str(tmp_path)!r}, 'd')
  os.unlink('d')
  os.rename('aside', 'd')
"""
  job = asyncio.ensure_future(
    box.exec(['python3', '-c', script], timeout_s=1.5)
  )
  reads = 0
  while not job.done():
    for read in (box.export, lambda: box.read('d/f')):
      try:
        found = await read()
      except (OSError, SandboxError):
        continue  # gone at this moment
      reads += 1
      assert b'secret' not in (
        b''.join(found.values()) if isinstance(found, dict) else found
      )
  await job
  assert reads


async def test_mounts_of_others_cannot_be_changed(backend, socket_dir):
  """A rollout that could write to a harness would own all later ones."""
  program = socket_dir / 'program'  # a folder that any uid can pass through
  program.write_text('good')
  program.chmod(0o666)
  socket_dir.chmod(0o777)
  box = await backend.create(
    base.SandboxSpec(readonly=((str(socket_dir), '/opt/x'),))
  )
  for script in (
    'echo bad > /opt/x/program',
    'rm -f /opt/x/program',
    'touch /opt/x/new',
    'chmod 777 /opt/x/program',
    'mv /opt/x /opt/y',
    'echo bad > /run/clawjax/relay.py',
    'rm -f /run/clawjax/relay.py',
  ):
    assert (await sh(box, script)).returncode != 0, script
  assert (await sh(box, 'cat /opt/x/program')).stdout == b'good'
  assert [p.name for p in socket_dir.iterdir()] == ['program']
  await box.destroy()


async def test_a_graders_sandbox_is_out_of_reach(backend, box):
  """Another sandbox that holds hidden files, at the same time."""
  grader = await backend.create(base.SandboxSpec(label='verify t'))
  await grader.write('/verifier/check.py', b'HIDDEN-TEST')
  job = asyncio.ensure_future(
    grader.exec(['sh', '-c', 'cat /verifier/check.py; sleep 0.7'])
  )
  result = await sh(
    box,
    'ls -A /verifier /logs; cat /verifier/* /proc/[0-9]*/root/verifier/*;'
    'grep -rs HIDDEN-TEST /verifier /logs /tmp /run /home; true',
  )
  assert b'HIDDEN-TEST' not in result.stdout
  assert result.stdout.split() == [b'/logs:', b'/verifier:']
  assert (await job).stdout == b'HIDDEN-TEST'
  await grader.destroy()


async def test_too_many_files(backend):
  if not getattr(backend, 'use_quota', True):
    pytest.skip('no quota here: the number of files is sampled')
  box = await backend.create(base.SandboxSpec(files=300))
  script = 'i=0; while [ $i -lt 400 ] && : > f$i; do i=$((i+1)); done; echo $i'
  result = await sh(box, f'({script}) 2>/dev/null')
  assert int(result.stdout or b'0') < 300
  await box.destroy()


async def test_output_of_a_gibibyte(box, tmp_path):
  """It is read to its end and dropped; we do not grow with it."""
  log = tmp_path / 'log'
  me = psutil.Process()
  before = peak = me.memory_info().rss

  async def watch():
    nonlocal peak
    while True:
      peak = max(peak, me.memory_info().rss)
      await asyncio.sleep(0.02)

  job = asyncio.ensure_future(watch())
  result = await sh(
    box,
    'head -c 1073741824 /dev/zero; echo end >&2',
    timeout_s=2000,
    log_path=log,
  )
  job.cancel()
  cap = box.spec.output_bytes
  assert (result.returncode, result.truncated) == (0, True)
  assert len(result.stdout) == cap and result.stderr == b'end\n'
  assert log.stat().st_size == cap + 4
  assert peak - before < 64 * base.MIB
