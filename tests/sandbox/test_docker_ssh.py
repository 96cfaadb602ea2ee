"""Docker hosts behind ssh, over an sshd on this machine."""

import asyncio
import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

from clawjax import sandbox
from clawjax.errors import SandboxError
from clawjax.sandbox import base, docker_ssh, leases
from tests.sandbox.conftest import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def sshd():
  """(port, options of ssh) of a daemon of our own, for this user."""
  program = shutil.which('sshd', path=f'{os.environ["PATH"]}:/usr/sbin')
  if program is None or not shutil.which('ssh'):
    pytest.skip('no sshd here: as root `apt-get install openssh-server`')
  privileged = pathlib.Path('/run/sshd')
  made = os.geteuid() == 0 and not privileged.exists()
  if made:  # what a service manager does before it starts an sshd
    privileged.mkdir(mode=0o755)
  with tempfile.TemporaryDirectory(prefix='cjk') as name:
    folder, port = pathlib.Path(name), free_port()
    for key in ('host', 'user'):
      subprocess.run(
        ['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', folder / key],
        check=True,
      )
    shutil.copy(folder / 'user.pub', folder / 'authorized')
    public = (folder / 'host.pub').read_text()
    (folder / 'known').write_text(f'[127.0.0.1]:{port} {public}')
    (folder / 'config').write_text(
      f'Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n'
      f'AuthorizedKeysFile {folder}/authorized\nPidFile none\nStrictModes no\n'
      'PasswordAuthentication no\nPermitRootLogin prohibit-password\n'
      'UsePAM no\n'
    )
    with open(folder / 'log', 'w') as log:
      daemon = subprocess.Popen(
        [program, '-D', '-e', '-f', folder / 'config'], stderr=log
      )
    try:
      for _ in range(300):
        with socket.socket() as s:
          if s.connect_ex(('127.0.0.1', port)) == 0:
            break
        assert daemon.poll() is None, (folder / 'log').read_text()
        time.sleep(0.1)
      yield (
        port,
        (
          *('-F', 'none', '-i', str(folder / 'user')),
          *('-o', f'UserKnownHostsFile={folder}/known'),
        ),
      )
    finally:
      daemon.terminate()
      daemon.wait()
      if made:
        privileged.rmdir()


@pytest.fixture
def ssh_host(sshd, dockerd):
  """(URL, options) of the daemon, as on another machine."""
  path = dockerd.removeprefix('unix://')
  if not path.startswith('/'):
    path = docker_ssh.DAEMON
  port, options = sshd
  return f'ssh://{getpass.getuser()}@127.0.0.1:{port}{path}', options


def runs():
  """Run folders of this process."""
  return set(leases.default_root().glob(f'run-{os.getpid()}-*'))


async def test_a_host_behind_ssh(ssh_host, socket_dir, serve):
  """The whole life of sandboxes, more at once than an ssh has sessions."""
  url, options = ssh_host
  before = runs()
  backend = sandbox.load('docker', hosts=(url,), ssh=options)
  probe = await backend.probe()
  assert probe.ok and url in probe.text, probe.text

  async def handle(reader, writer):
    await reader.readline()
    writer.write(b'hello\n')
    await writer.drain()
    writer.close()

  async def life(i):
    box = await backend.create(base.SandboxSpec(socket_dir=socket_dir))
    await box.write('in', str(i).encode())
    # The end of stdin arrives; output is whole; the relay was sent.
    given = b'x' * 300_000
    counted = await box.exec(
      ['sh', '-c', 'wc -c; cat in > out; exit 3'], stdin=given
    )
    assert (counted.returncode, int(counted.stdout)) == (3, len(given))
    script = (
      'import socket; s = socket.create_connection(("127.0.0.1", 8899)); '
      's.sendall(b"x\\n"); print(s.makefile().readline())'
    )
    said = await box.exec(['python3', '-c', script], relay_port=8899)
    assert said.stdout.strip() == b'hello', said
    out = await box.export()
    await box.destroy()
    return out

  async with serve(socket_dir / base.SOCKET_NAME, handle):
    outs = await asyncio.gather(*(life(i) for i in range(12)))
  assert outs == [{'in': b'%d' % i, 'out': b'%d' % i} for i in range(12)]
  # An ssh that ended is started anew.
  [host] = backend._open()
  os.kill(host.tunnel._process.pid, signal.SIGKILL)
  while not host.tunnel.ended:
    await asyncio.sleep(0.05)
  box = await backend.create(base.SandboxSpec())
  assert (await box.exec(['echo', 'on'])).stdout == b'on\n'
  await box.destroy()
  [host] = backend._open()
  await backend.close()
  assert host.tunnel.ended and runs() == before


async def test_who_is_not_let_in_is_named(sshd, tmp_path):
  port, options = sshd
  subprocess.run(
    ['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', tmp_path / 'other'],
    check=True,
  )
  before = runs()
  known = options[-2:]
  stranger = ('-F', 'none', '-i', str(tmp_path / 'other'), *known)
  me = getpass.getuser()
  for url, ssh, why in (
    (f'ssh://{me}@127.0.0.1:{port}', stranger, 'Permission denied'),
    (f'ssh://{me}@127.0.0.1:{free_port()}', options, 'Connection refused'),
    (f'ssh://{me}@127.0.0.1:{port}/no/such', options, 'no daemon at /no/such'),
    ('ssh:///no/host', options, 'wanted ssh://'),
  ):
    backend = sandbox.load('docker', hosts=(url,), ssh=ssh)
    with pytest.raises(SandboxError, match=why):
      await backend.create(base.SandboxSpec())
    await backend.close()
  assert runs() == before


ORPHAN = """
import asyncio, sys
from clawjax import sandbox
from clawjax.sandbox import base

async def main():
  backend = sandbox.load('docker', hosts=(sys.argv[1],), ssh=sys.argv[2:])
  box = await backend.create(base.SandboxSpec())
  job = asyncio.ensure_future(box.exec(['sleep', '1000'], timeout_s=999))
  await asyncio.sleep(0.5)
  [host] = backend._open()
  print(box.id, host.tunnel._process.pid, host.tunnel.url, flush=True)
  await job

asyncio.run(main())
"""


async def test_kill_9_ends_the_tunnel_and_the_container(
  ssh_host, docker_backend
):
  url, options = ssh_host
  owner = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(ORPHAN), url, *options],
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  name, pid, local = owner.stdout.readline().split()
  folder = pathlib.Path(local.removeprefix('unix://')).parent
  [host] = docker_backend._open()

  def alive():
    names = {c.name for c in host.client.containers.list(all=True)}
    return name in names, leases.start_time(int(pid)) is not None

  assert alive() == (True, True) and folder.exists()
  owner.send_signal(signal.SIGKILL)
  owner.wait()
  owner.stdout.close()
  end = time.monotonic() + 120
  while alive() != (False, False):
    assert time.monotonic() < end, alive()
    await asyncio.sleep(0.2)
  await docker_backend.sweep()
  assert not folder.exists()
