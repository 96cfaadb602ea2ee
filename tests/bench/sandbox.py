"""How fast sandboxes come and go, against the raw tools in the same run.

  python tests/bench/sandbox.py --json [--repeats 20] [--at-once 64]
      [--lifecycles 1000] [--docker [--docker-host unix:///run/x.sock]]

Prints one JSON object: medians in ms of create + run `true` + destroy with our
backend and of the bare `bwrap` (or `docker run`) with the same flags, taken in
turn so that a busy machine slows both; the ratio of the medians, and quartiles
of the ratios of neighbours; the wall time of many at once; and what was left
after lifecycles of which two of three were cut short at a random moment (must
be zeros).
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
from clawjax.sandbox import base, bwrap_exec, watch
from clawjax.sandbox.docker import LABEL, owner

# Of our sandboxes; others may run here too.
uids: set[int] = set()
ids: set[str] = set()
boxes: list = []
WAYS = ('let', 'kill', 'cancel')


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
    *bwrap_exec.join(box)[4 if box.group else 0 :],
    backend.bwrap,
    *bwrap_exec.recipe(box, {}, base.WORKSPACE),
    '--',
    'true',
  ]
  return box, argv


async def in_turn(ours, raw, repeats: int) -> dict:
  """Both timed in turn, the order swapped each time."""
  pairs = []
  for i in range(repeats):
    if i % 2:
      other = await raw()
      pairs.append((await ours(), other))
    else:
      mine = await ours()
      pairs.append((mine, await raw()))
  mine, other = (statistics.median(t) for t in zip(*pairs, strict=True))
  near = statistics.quantiles([a / b for a, b in pairs], n=4)
  return {
    'repeats': repeats,
    'ours_ms': round(mine, 1),
    'raw_ms': round(other, 1),
    'ratio': round(mine / other, 2),
    'ratio_quartiles': [round(q, 2) for q in near],
  }


def seen(backend) -> None:
  """Notes what a backend has now, for `left` and `held`."""
  ids.update(backend.live)
  boxes.extend(b for b in backend.live.values() if b not in boxes)
  uids.update(getattr(b, 'uid', None) for b in backend.live.values())


async def one(backend, way: str, span_s: float) -> str:
  """A life: to its end, or cut at a random moment of `span_s`.

  Cut by a kill from outside while the command runs, or by the cancellation of
  its owner, whatever it is at, creation and destruction included.
  """

  async def life() -> str:
    box = await backend.create(base.SandboxSpec())
    seen(backend)
    try:
      job = asyncio.ensure_future(
        box.exec(['sh', '-c', '(sleep 9 &); sleep 0.05'], timeout_s=60)
      )
      if way == 'kill':
        await asyncio.sleep(random.random() * span_s)
        if hasattr(box, 'kill'):
          box.kill()
        else:
          await asyncio.to_thread(_kill, box.container)
      try:
        await job
        return 'ended'
      except SandboxError:
        return 'killed'
    finally:
      await box.destroy()

  job = asyncio.ensure_future(life())
  if way == 'cancel':
    await asyncio.sleep(random.random() * span_s)
    seen(backend)
    job.cancel()
  try:
    return await job
  except asyncio.CancelledError:
    return 'cancelled'


def _kill(container) -> None:
  import docker

  try:
    container.kill()
  except docker.errors.APIError as e:
    # It has ended, or it is being removed.
    if e.status_code not in (404, 409):
      raise


async def lives(backend, count: int, slots: int) -> list[str]:
  """`count` lives, so many at once; how each of them ended."""
  gate, span_s = asyncio.Semaphore(slots), 0.1

  async def life(i: int) -> str:
    nonlocal span_s
    async with gate:
      start = time.perf_counter()
      way = WAYS[i % len(WAYS)]
      end = await one(backend, way, span_s)
      if way == 'let':  # as long as lives last at present
        span_s = time.perf_counter() - start
      return end

  ends = await asyncio.gather(*(life(i) for i in range(count)))
  for _ in range(1200):  # destructions go on without their owners
    if not backend.live:
      break
    await asyncio.sleep(0.1)
  return ends


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
    'records': len(list(backend._run.path.glob('*.sandbox'))),
    'leases': sum(map(_ours, backend.uids.folder.glob('*'))),
    'mounts': mounts.count(run),
    'cgroups': len(groups),
    # Zombies that PID 1 has not reaped yet are not counted.
    'processes': sum(len(watch.of_uid(u)) for u in uids if u is not None),
  }


def _ours(lease: pathlib.Path) -> bool:
  """Whether it is this process's; other processes' come and go."""
  try:
    return lease.read_text().startswith(f'{os.getpid()} ')
  except FileNotFoundError:
    return False


async def bwrap(options) -> dict:
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    return {'skipped': probe.text}
  box, argv = await bare_bwrap(backend)
  result = await in_turn(
    lambda: ours(backend), lambda: raw(argv), options.repeats
  )
  await box.destroy()
  start = time.perf_counter()
  await asyncio.gather(*(ours(backend) for _ in range(options.at_once)))
  result |= {
    'at_once': options.at_once,
    'at_once_s': round(time.perf_counter() - start, 2),
  }
  start = time.perf_counter()
  ends = await lives(backend, options.lifecycles, 16)
  result |= {
    'lifecycles': {e: ends.count(e) for e in sorted(set(ends))},
    'lifecycles_s': round(time.perf_counter() - start, 1),
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
  steps: dict[str, list[float]] = {'create': [], 'exec': [], 'destroy': []}
  before = await asyncio.to_thread(held, backend)
  result = await in_turn(
    lambda: ours(backend, steps), lambda: raw(argv), options.docker_repeats
  )
  start = time.perf_counter()
  await asyncio.gather(*(ours(backend) for _ in range(options.docker_at_once)))
  result |= {
    'steps_ms': {k: round(statistics.median(v), 1) for k, v in steps.items()},
    'at_once': options.docker_at_once,
    'at_once_s': round(time.perf_counter() - start, 2),
  }
  start = time.perf_counter()
  ends = await lives(backend, options.docker_lifecycles, 8)
  after = await asyncio.to_thread(held, backend)
  result |= {
    'lifecycles': {e: ends.count(e) for e in sorted(set(ends))},
    'lifecycles_s': round(time.perf_counter() - start, 1),
    'left': {k: len(v - before[k]) for k, v in after.items()},
  }
  await backend.close()
  return result


def held(backend) -> dict[str, set[str]]:
  """What a daemon holds, by name; of containers only those of this process.

  Folders, mounts and control groups are seen where the daemon is on this
  machine; folders and mounts are of all that it runs.
  """
  [host] = backend._open()
  client = host.client
  root = pathlib.Path(client.info()['DockerRootDir'])
  mounts = pathlib.Path('/proc/self/mounts').read_text().splitlines()
  made = {b.container.id for b in boxes if getattr(b, 'container', None)}
  return {
    'containers': {
      c.name
      for c in client.containers.list(
        all=True,
        filters={'label': f'{LABEL}={owner()}'},
        ignore_removed=True,
      )
    },
    'networks': {n.name for n in client.networks.list()},
    'volumes': {v.name for v in client.volumes.list()},
    'folders': {
      str(p) for d in ('containers', 'volumes') for p in (root / d).glob('*/')
    },
    'mounts': {m for m in mounts if str(root) in m},
    'cgroups': {
      str(p)
      for p in pathlib.Path('/sys/fs/cgroup').glob('*/docker/*')
      if p.name in made
    },
  }


async def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--repeats', type=int, default=20)
  parser.add_argument('--at-once', type=int, default=64)
  parser.add_argument('--lifecycles', type=int, default=1000)
  parser.add_argument('--docker', action='store_true')
  parser.add_argument('--docker-host', default='')
  parser.add_argument('--docker-repeats', type=int, default=16)
  parser.add_argument('--docker-at-once', type=int, default=8)
  parser.add_argument('--docker-lifecycles', type=int, default=30)
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
