"""Backends that work here; the shared suite runs on each of them."""

import asyncio
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

import pytest

from clawjax import sandbox
from clawjax.sandbox.docker import LABEL, owner


@pytest.fixture
def socket_dir():
  """A short path that any uid can pass through."""
  with tempfile.TemporaryDirectory(prefix='cj') as folder:
    os.chmod(folder, 0o711)
    yield pathlib.Path(folder)


@pytest.fixture
async def bwrap(tmp_path):
  """A bubblewrap backend; at its end nothing may be left."""
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(f'bwrap: {probe.text}')
  yield backend
  run = backend._run.path
  await backend.close()
  assert not run.exists()
  assert str(run) not in pathlib.Path('/proc/self/mounts').read_text()


@contextlib.asynccontextmanager
async def serving(path, handle):
  """A Unix server for the length of a `with`."""
  server = await asyncio.start_unix_server(handle, path)
  os.chmod(path, 0o666)
  try:
    yield server
  finally:
    server.close()
    await server.wait_closed()


def answers(path):
  """Whether something listens on a Unix socket."""
  with socket.socket(socket.AF_UNIX) as s:
    try:
      s.connect(path)
      return True
    except OSError:
      return False


@pytest.fixture(scope='session')
def dockerd(tmp_path_factory):
  """URL of a Docker daemon: one that answers, else one that we start."""
  pytest.importorskip('docker')
  if os.environ.get('DOCKER_HOST') or answers('/var/run/docker.sock'):
    yield ''
    return
  if os.geteuid() != 0 or not shutil.which('dockerd'):
    pytest.skip('no Docker daemon answers, and none can be started here')
  folder = pathlib.Path(tempfile.mkdtemp(prefix='cjd'))
  url = f'unix://{folder}/s'
  with open(folder / 'log', 'w') as log:
    daemon = subprocess.Popen(
      [
        *('dockerd', '-H', url, '--data-root', f'{folder}/data'),
        *('--exec-root', f'{folder}/exec', '--pidfile', f'{folder}/pid'),
        *('--bridge=none', '--iptables=false'),
      ],
      stdout=log,
      stderr=log,
      start_new_session=True,
    )
  try:
    for _ in range(600):
      if answers(f'{folder}/s'):
        break
      if daemon.poll() is not None:
        text = (folder / 'log').read_text()[-500:]
        pytest.skip(f'dockerd does not start: {text}')
      time.sleep(0.1)
    yield url
  finally:
    daemon.terminate()
    daemon.wait(60)
    subprocess.run(
      ['umount', '-R', '-l', f'{folder}/data', f'{folder}/exec'],
      check=False,
      capture_output=True,
    )
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def docker_backend(dockerd):
  """The docker backend; at its end no container may be left."""
  backend = sandbox.load('docker', hosts=(dockerd,))
  probe = await backend.probe()
  assert probe.ok, probe.text
  yield backend
  for host in backend._open():
    left = host.client.containers.list(all=True, filters={'label': LABEL})
    mine = [c for c in left if c.labels[LABEL] == owner()]
    assert {c.name for c in mine} == set(backend.live)
  await backend.close()


@pytest.fixture(
  params=['bwrap', pytest.param('docker', marks=pytest.mark.slow)]
)
def backend(request):
  """Each real backend; docker in the slow run."""
  name = {'bwrap': 'bwrap', 'docker': 'docker_backend'}[request.param]
  return request.getfixturevalue(name)


@pytest.fixture
def serve():
  """`serving` as a fixture."""
  return serving
