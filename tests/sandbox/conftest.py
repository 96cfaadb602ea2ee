"""Backends that work here; the shared suite runs on each of them."""

import asyncio
import contextlib
import importlib.util
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


def certificates(folder):
  """A CA, a server's and a client's certificate for 127.0.0.1, by openssl."""

  def openssl(*arguments):
    subprocess.run(['openssl', *arguments], check=True, capture_output=True)

  key = ('-newkey', 'rsa:2048', '-nodes', '-days', '2')
  ca, ca_key = str(folder / 'ca.pem'), str(folder / 'ca-key.pem')
  openssl('req', '-x509', *key, '-subj', '/CN=test-ca', '-keyout', ca_key,
          '-addext', 'keyUsage=critical,keyCertSign,cRLSign',
          '-out', ca)  # fmt: skip
  (folder / 'ext').write_text(
    'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n'
    'keyUsage=digitalSignature\nsubjectKeyIdentifier=hash\n'
    'authorityKeyIdentifier=keyid\n'
  )
  for name in ('server', 'client'):
    openssl('req', *key[:3], '-subj', f'/CN={name}',
            '-keyout', str(folder / f'{name}-key.pem'),
            '-out', str(folder / f'{name}.csr'))  # fmt: skip
    openssl('x509', '-req', '-days', '2', '-in', str(folder / f'{name}.csr'),
            '-CA', ca, '-CAkey', ca_key, '-CAcreateserial',
            '-extfile', str(folder / 'ext'),
            '-out', str(folder / f'{name}.pem'))  # fmt: skip


def free_port():
  with socket.create_server(('127.0.0.1', 0)) as s:
    return s.getsockname()[1]


@pytest.fixture
def docker_tls(dockerd, daemon_facts):
  """URL and TLS arguments of the daemon's TCP port, if we started it."""
  if 'port' not in daemon_facts:
    pytest.skip('the daemon is not ours, or there is no openssl here')
  folder = daemon_facts['folder']
  return f'tcp://127.0.0.1:{daemon_facts["port"]}', {
    'client_cert': (f'{folder}/client.pem', f'{folder}/client-key.pem'),
    'ca_cert': f'{folder}/ca.pem',
    'verify': True,
  }


@pytest.fixture(scope='session')
def daemon_facts():
  """What is known of the daemon that `dockerd` started."""
  return {}


@pytest.fixture(scope='session')
def dockerd(tmp_path_factory, daemon_facts):
  """URL of a Docker daemon: one that answers, else one that we start."""
  pytest.importorskip('docker')
  if os.environ.get('DOCKER_HOST') or answers('/var/run/docker.sock'):
    yield ''
    return
  if os.geteuid() != 0 or not shutil.which('dockerd'):
    pytest.skip('no Docker daemon answers, and none can be started here')
  folder = pathlib.Path(tempfile.mkdtemp(prefix='cjd'))
  url = f'unix://{folder}/s'
  tls = []
  if shutil.which('openssl'):
    certificates(folder)
    port = free_port()
    daemon_facts.update(folder=folder, port=port)
    tls = ['-H', f'tcp://127.0.0.1:{port}', '--tlsverify']
    tls += ['--tlscacert', f'{folder}/ca.pem', '--tlscert']
    tls += [f'{folder}/server.pem', '--tlskey', f'{folder}/server-key.pem']
  with open(folder / 'log', 'w') as log:
    daemon = subprocess.Popen(
      [
        *('dockerd', '-H', url, '--data-root', f'{folder}/data'),
        *('--exec-root', f'{folder}/exec', '--pidfile', f'{folder}/pid'),
        *('--bridge=none', '--iptables=false'),
        *tls,
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


@pytest.fixture(scope='session')
def bench():
  """The benchmark's module: its lives, and what is left of them."""
  path = pathlib.Path(__file__).parents[1] / 'bench' / 'sandbox.py'
  spec = importlib.util.spec_from_file_location('bench_sandbox', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture
def lives():
  """How many lives the slow tests try (CLAWJAX_TEST_LIVES)."""
  return int(os.environ.get('CLAWJAX_TEST_LIVES', '1000'))
