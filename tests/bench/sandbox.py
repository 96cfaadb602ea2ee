"""How fast sandboxes come and go, against the raw tools in the same run.

  python tests/bench/sandbox.py --json [--repeats 20] [--at-once 64]
      [--lifecycles 1000] [--docker [--docker-host unix:///run/x.sock]]

Prints one JSON object: medians in ms of create + run `true` + destroy with our
backend and of the bare `bwrap` (or `docker run`) with the same flags, their
ratio, the wall time of many at once, and what was left after lifecycles with
random kills (must be zeros).
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import time

from clawjax import sandbox
from clawjax.errors import SandboxError
from clawjax.sandbox import base, watch
from clawjax.sandbox.docker import LABEL

# Of our sandboxes; others may run here too.
uids: set[int] = set()
ids: set[str] = set()


async def ours(backend, steps=None) -> float:
  times = [time.perf_counter()]
  box = await backend.create(base.SandboxSpec())
  times.append(time.perf_counter())
  result = await box.exec(['true'])
  times.append(time.perf_counter())
  await box.destroy()
  times.append(time.perf_counter())
  assert result.returncode == 0
  for i, name in enumerate(steps or ()):
    steps[name].append((times[i + 1] - times[i]) * 1e3)
  return (times[-1] - times[0]) * 1e3


async def raw(argv) -> float:
  """The bare tool, started the same way (asyncio, pipes)."""
  start = time.perf_counter()
  process = await asyncio.create_subprocess_exec(
    *argv,
    stdin=asyncio.subprocess.DEVNULL,
    stdout=asyncio.subprocess.PIPE,
    stderr=asyncio.subprocess.PIPE,
  )
  await process.communicate()
  assert process.returncode == 0
  return (time.perf_counter() - start) * 1e3


async def bare_bwrap(backend):
  """Command line of a bwrap with our own recipe on plain folders."""
  box = await backend.create(base.SandboxSpec())
  argv = [
    *(box._join()[4:] if box.group else box._join()),
    backend.bwrap,
    *box._recipe({}, base.WORKSPACE),
    '--',
    'true',
  ]
  return box, argv


async def one(backend, kill: bool) -> str:
  """A life that may be cut short at any point."""
  box = await backend.create(base.SandboxSpec())
  uids.add(box.uid)
  ids.add(box.id)
  try:
    job = asyncio.ensure_future(
      box.exec(['sh', '-c', '(sleep 9 &); sleep 0.05'], timeout_s=20)
    )
    if kill:
      await asyncio.sleep(random.random() * 0.1)
      box.kill()
    try:
      await job
      return 'ended'
    except SandboxError:
      return 'killed'
  finally:
    await box.destroy()


def left(backend) -> dict[str, int]:
  """What is still there of a backend's sandboxes."""
  run = str(backend._run.path)
  groups = [
    g
    for parent in set(backend.tree.parents.values())
    for g in parent.glob('clawjax-sbx-*')
    if g.name.removeprefix('clawjax-') in ids
  ]
  mounts = pathlib.Path('/proc/self/mounts').read_text()
  return {
    'folders': len(list(backend._run.path.glob('sbx-*'))),
    'mounts': mounts.count(run),
    'cgroups': len(groups),
    # Zombies that PID 1 has not reaped yet are not counted.
    'processes': sum(len(watch.of_uid(u)) for u in uids if u is not None),
  }


async def bwrap(options) -> dict:
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    return {'skipped': probe.text}
  box, argv = await bare_bwrap(backend)
  a, b = [], []
  for _ in range(options.repeats):
    a.append(await ours(backend))
    b.append(await raw(argv))
  await box.destroy()
  start = time.perf_counter()
  await asyncio.gather(*(ours(backend) for _ in range(options.at_once)))
  together = time.perf_counter() - start
  start = time.perf_counter()
  slots = asyncio.Semaphore(16)

  async def life(i):
    async with slots:
      return await one(backend, kill=i % 2 == 0)

  ends = await asyncio.gather(*(life(i) for i in range(options.lifecycles)))
  spent = time.perf_counter() - start
  result = {
    'ours_ms': round(statistics.median(a), 1),
    'raw_ms': round(statistics.median(b), 1),
    'ratio': round(statistics.median(a) / statistics.median(b), 2),
    'at_once': options.at_once,
    'at_once_s': round(together, 2),
    'lifecycles': options.lifecycles,
    'lifecycles_s': round(spent, 1),
    'killed': ends.count('killed'),
    'left': left(backend),
  }
  await backend.close()
  return result


async def docker(options) -> dict:
  backend = sandbox.load('docker', hosts=(options.docker_host,))
  probe = await backend.probe()
  if not probe.ok or not shutil.which('docker'):
    return {'skipped': probe.text}
  argv = ['docker']
  if options.docker_host:
    argv += ['-H', options.docker_host]
  argv += ['run', '--rm', '--network=none', '--read-only']
  argv += ['--cap-drop=ALL', '--security-opt=no-new-privileges']
  argv += ['--tmpfs=/tmp', '--tmpfs=/workspace', '--pids-limit=256']
  argv += ['-v', '/usr:/usr:ro', 'clawjax-local:1', 'true']
  a, b = [], []
  steps: dict[str, list[float]] = {'create': [], 'exec': [], 'destroy': []}
  for _ in range(max(3, options.repeats // 2)):
    a.append(await ours(backend, steps))
    b.append(await raw(argv))
  before = await _left(backend)
  start = time.perf_counter()
  await asyncio.gather(*(ours(backend) for _ in range(options.docker_at_once)))
  together = time.perf_counter() - start
  result = {
    'ours_ms': round(statistics.median(a), 1),
    'raw_ms': round(statistics.median(b), 1),
    'ratio': round(statistics.median(a) / statistics.median(b), 2),
    'steps_ms': {k: round(statistics.median(v), 1) for k, v in steps.items()},
    'at_once': options.docker_at_once,
    'at_once_s': round(together, 2),
    'left': {k: v - before[k] for k, v in (await _left(backend)).items()},
  }
  await backend.close()
  return result


async def _left(backend) -> dict[str, int]:
  """What a daemon holds; of containers only ours, others may use it too."""
  [host] = backend._open()
  client = host.client
  return {
    'containers': len(
      client.containers.list(all=True, filters={'label': LABEL})
    ),
    'networks': len(client.networks.list()),
    'volumes': len(client.volumes.list()),
  }


async def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--repeats', type=int, default=20)
  parser.add_argument('--at-once', type=int, default=64)
  parser.add_argument('--lifecycles', type=int, default=1000)
  parser.add_argument('--docker', action='store_true')
  parser.add_argument('--docker-host', default='')
  parser.add_argument('--docker-at-once', type=int, default=8)
  parser.add_argument('--no-bwrap', action='store_true')
  options = parser.parse_args()
  result = {'load': os.getloadavg()[0]}
  if not options.no_bwrap:
    result['bwrap'] = await bwrap(options)
  version = subprocess.run(['nproc'], capture_output=True, text=True).stdout
  result['cores'] = int(version)
  if options.docker:
    result['docker'] = await docker(options)
  print(json.dumps(result, indent=None if options.json else 2))


if __name__ == '__main__':
  asyncio.run(main())
