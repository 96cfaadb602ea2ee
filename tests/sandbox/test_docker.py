"""The docker backend: what only it has: pools, TLS, sweeps, images.

A real daemon, started here when none answers. The shared suite and the escape
tests run on it too (`backend` in conftest.py).
"""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from clawjax import sandbox
from clawjax.errors import SandboxError
from clawjax.sandbox import base, docker_images
from clawjax.sandbox import docker as docker_lib

pytestmark = pytest.mark.slow


async def test_a_pool_shares_the_work_and_goes_on_without_a_host(dockerd):
  dead = 'unix:///no/such/docker.sock'
  backend = sandbox.load('docker', hosts=(dockerd, dockerd, dead))
  probe = await backend.probe()
  assert probe.ok and f'not used: {dead}' in probe.text
  boxes = [await backend.create(base.SandboxSpec()) for _ in range(4)]
  assert [h.live for h in backend._open()] == [2, 2]
  for box in boxes:
    assert (await box.exec(['echo', 'on'])).stdout == b'on\n'
    await box.destroy()
  assert [h.live for h in backend._open()] == [0, 0]
  await backend.close()


async def test_more_at_once_than_the_sdk_has_pools(docker_backend):
  async def life(i):
    box = await docker_backend.create(base.SandboxSpec())
    result = await box.exec(['echo', str(i)])
    await box.destroy()
    return int(result.stdout)

  ends = await asyncio.gather(*(life(i) for i in range(40)))
  assert ends == list(range(40))


async def test_no_host_at_all():
  backend = sandbox.load('docker', hosts=('unix:///no/such/docker.sock',))
  probe = await backend.probe()
  assert not probe.ok and 'dockerd' in probe.text
  with pytest.raises(SandboxError, match='no Docker host answers'):
    await backend.create(base.SandboxSpec())


async def test_tcp_with_tls(docker_tls, socket_dir, serve):
  """As on another machine: the relay is sent, not bound."""
  url, tls = docker_tls
  backend = sandbox.load('docker', hosts=(url,), tls=tls)
  probe = await backend.probe()
  assert probe.ok, probe.text

  async def handle(reader, writer):
    await reader.readline()
    writer.write(b'hello\n')
    await writer.drain()
    writer.close()

  box = await backend.create(base.SandboxSpec(socket_dir=socket_dir))
  async with serve(socket_dir / base.SOCKET_NAME, handle):
    script = (
      'import socket; s = socket.create_connection(("127.0.0.1", 8899)); '
      's.sendall(b"x\\n"); print(s.makefile().readline())'
    )
    result = await box.exec(['python3', '-c', script], relay_port=8899)
  assert result.stdout.strip() == b'hello', result
  # Stdin comes to an end, though TLS has no half-closed connections.
  for given in (b'x' * 300_000, b'1'):
    result = await box.exec(['sh', '-c', 'wc -c; exit 3'], stdin=given)
    assert (result.returncode, int(result.stdout)) == (3, len(given))
  await box.destroy()
  await backend.close()
  # Who has no certificate of ours is not let in.
  stranger = sandbox.load('docker', hosts=(url,))
  assert not (await stranger.probe()).ok


ORPHAN = """
import asyncio, sys
from clawjax import sandbox
from clawjax.sandbox import base

async def main():
  backend = sandbox.load('docker', hosts=(sys.argv[1],))
  box = await backend.create(base.SandboxSpec())
  job = asyncio.ensure_future(box.exec(['sleep', '1000'], timeout_s=999))
  await asyncio.sleep(0.5)
  print(box.id, flush=True)
  await job

asyncio.run(main())
"""


def state(client):
  """All that a daemon keeps, but for images."""
  return (
    {c.name for c in client.containers.list(all=True)},
    {n.name for n in client.networks.list()},
    {v.name for v in client.volumes.list()},
  )


async def test_nothing_is_left_after_kill_9(docker_backend, dockerd):
  """A container ends with its owner, and needs no sweep for it."""
  [host] = docker_backend._open()
  before = state(host.client)
  owner = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(ORPHAN), dockerd],
    stdout=subprocess.PIPE,
    text=True,
    env=os.environ | {'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  name = owner.stdout.readline().strip()
  assert await docker_backend.sweep() == 0  # its owner is alive
  assert name in state(host.client)[0]
  owner.send_signal(signal.SIGKILL)
  owner.wait()
  owner.stdout.close()
  end = time.monotonic() + 120
  while state(host.client) != before:
    assert time.monotonic() < end, state(host.client)
    await asyncio.sleep(0.2)


async def test_a_thousand_lives_leave_nothing(docker_backend, bench, lives):
  """Two of three are cut at a random moment; see the benchmark."""
  before = bench.held(docker_backend)
  ends = await bench.lives(docker_backend, lives, 8)
  assert len(ends) == lives and set(ends) == {'ended', 'killed', 'cancelled'}
  assert not docker_backend.live
  assert [h.live for h in docker_backend._open()] == [0]
  end = time.monotonic() + 60  # the daemon tidies up after it has answered
  while (after := bench.held(docker_backend)) != before:
    assert time.monotonic() < end, {k: v - before[k] for k, v in after.items()}
    await asyncio.sleep(0.5)


async def test_sweep(docker_backend):
  """A container whose owner died before it was started."""
  [host] = docker_backend._open()
  before = state(host.client)
  us = docker_lib.owner()
  label = us.rpartition(':')[0]  # our pid, of an earlier process
  for name, owner in (('other', 'elsewhere:1:2'), ('dead', f'{label}:7')):
    host.client.containers.create(
      'clawjax-local:1',
      ['/bin/true'],
      name=f'clawjax-test-{name}',
      labels={docker_lib.LABEL: owner},
    )
  assert await docker_backend.sweep() == 1
  left = host.client.containers.get('clawjax-test-other')
  assert {left.name} == state(host.client)[0] - before[0]
  left.remove()
  assert state(host.client) == before


async def test_an_image_of_a_dockerfile(docker_backend, tmp_path):
  """Made once for what is in its folder."""
  (tmp_path / 'Dockerfile').write_text(
    'FROM clawjax-local:1\nCOPY words /opt/words\n'
  )
  [host] = docker_backend._open()
  made = []
  for words in ('one', 'two', 'two'):
    (tmp_path / 'words').write_text(words)
    spec = base.SandboxSpec(
      image=f'build:{tmp_path}', readonly=(('/usr', '/usr'),)
    )
    boxes = await asyncio.gather(
      docker_backend.create(spec), docker_backend.create(spec)
    )
    for box in boxes:
      result = await box.exec(['cat', '/opt/words'])
      assert result.stdout.decode() == words, result
      made.append(box.container.attrs['Image'])
      await box.destroy()
  assert len(set(made[:2])) == len(set(made[2:])) == 1 and len(set(made)) == 2
  for image in set(made):
    host.client.images.remove(image, force=True)
  (tmp_path / 'Dockerfile').write_text('FROM clawjax-local:1\nCOPY no /x\n')
  with pytest.raises(SandboxError, match='COPY'):
    await docker_backend.create(spec)


async def test_a_hung_destroy_is_done_over_another_connection(
  docker_backend, monkeypatch
):
  box = await docker_backend.create(base.SandboxSpec())
  hold = threading.Event()
  monkeypatch.setattr(box.container, 'remove', lambda **_: hold.wait(120))
  first = asyncio.ensure_future(box.destroy())
  await asyncio.sleep(0.1)
  await docker_backend.reap(box)
  [host] = docker_backend._open()
  assert box.id not in state(host.client)[0]
  assert host.live == 0 and not docker_backend.live
  hold.set()
  await first
  assert host.live == 0


async def test_an_image_stands_in_for_the_mounts_it_names(
  docker_backend, tmp_path
):
  """What its label names is not bound; another version of it is refused."""
  [host] = docker_backend._open()
  held = json.dumps({'/opt/h': 'pi-2', '/opt/harness-cache': ''})
  host.client.api.import_image_from_data(
    docker_images.local_tar(),
    repository='clawjax-test-bundle',
    changes=[f"LABEL clawjax.bundle='{held}'", 'CMD true'],
  )
  tmp_path.chmod(0o755)
  (tmp_path / 'f').write_text('bound')
  system = tuple((p, p) for p in ('/usr', '/etc/alternatives'))
  made = docker_lib.DockerBackend(
    hosts=docker_backend.urls, image='clawjax-test-bundle:latest'
  )
  box = await made.create(
    base.SandboxSpec(
      readonly=(
        *system,
        ('/no/such/pi-2', '/opt/h'),
        ('/no/such/cache', '/opt/harness-cache'),
        (str(tmp_path), '/opt/toy'),
      )
    )
  )
  assert (await box.exec(['cat', '/opt/toy/f'])).stdout == b'bound'
  assert (await box.exec(['ls', '/opt/h'])).returncode != 0
  await box.destroy()
  with pytest.raises(SandboxError, match='holds pi-2 at /opt/h, wanted pi-3'):
    await made.create(
      base.SandboxSpec(readonly=(*system, ('/no/such/pi-3', '/opt/h')))
    )
  await made.close()
  host.client.images.remove('clawjax-test-bundle:latest')


def test_the_bundle_of_a_sandbox_image(tmp_path, capsys):
  """Laid out by the very mounts that plans ask for."""
  from clawjax import harness
  from clawjax.harness import bundle, install

  if not harness.load('pi').installed():
    pytest.skip('pi is not installed here')
  held = bundle.bundle(tmp_path / 'opt', ['pi'])
  assert held['/opt/harness/pi'] == install.package('pi').host.name
  assert held[harness.base.CACHE] == ''
  plan = harness.load('pi').plan(('x',), base_url='http://h/r/k')
  wanted = {inside for _, inside in plan.readonly}
  assert wanted | {'/opt/agent_loop', '/opt/clawjax-mcp'} <= set(held)
  inside = [a for a in plan.argv[0] if a.startswith('/opt/')]
  assert inside
  for path in inside:
    assert (tmp_path / pathlib.PurePosixPath(path).relative_to('/')).exists()
  assert bundle.main([]) == 2 and bundle.main([str(tmp_path), 'no']) == 2
  assert 'unknown harness' in capsys.readouterr().err
