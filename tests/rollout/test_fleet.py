"""The fleet: order, bounds, retries; and chaos on a fake sandbox.

The chaos test plays every fault at 10 % each and then asks the questions that
training asks: is every rollout accounted for, is no member of a group both
invalid and scored, is nothing left over, does the next step run clean.
"""

import asyncio
import collections
import dataclasses
import random

import pytest

from clawjax import sandbox, types
from clawjax.errors import EngineError, SandboxError
from clawjax.harness import base as harness_base
from clawjax.rollout import fleet as fleet_lib
from clawjax.sandbox import base


@dataclasses.dataclass(frozen=True)
class Toy:
  name: str = 'toy'
  version = '1'
  dialect = 'chat'
  rules = ()
  multi_turn = False

  def plan(self, turns, *, base_url, model='policy'):
    return harness_base.Plan(
      files={}, argv=(('toy', base_url.rsplit('/', 1)[1]),), env={}
    )


def request(task, name='a', size=4, family='f'):
  task = dataclasses.replace(task, id=name, metadata={'family': family})
  return fleet_lib.GroupRequest(task, Toy(), size, f'train/0/{name}/toy')


def make_fleet(proxy, answer, socket_dir, **options):
  backend = sandbox.load('fake', answer=answer, **options)
  return backend, fleet_lib.LocalFleet(
    backend=backend, proxy=proxy, socket_dir=socket_dir
  )


def session_of(proxy, command):
  key = command.argv[1]
  return next(i for i in proxy.sessions if i.replace('/', '-') == key)


def verdict(command):
  good = command.files.get('/workspace/out.txt') == b'hi'
  return base.ExecResult(0, f'{{"reward": {good:d}}}'.encode())


async def collect(fleet, requests, **options):
  return [g async for g in fleet.run_groups(requests, **options)]


async def test_groups_come_when_complete_within_the_bound(
  task, stub, socket_dir
):
  proxy = await stub([])
  running, most, hold = 0, 0, asyncio.Event()

  async def answer(command):
    nonlocal running, most
    if command.argv[0] != 'toy':
      return verdict(command)
    id = session_of(proxy, command)
    proxy.add(id)
    running += 1
    most = max(most, running)
    if '/slow/' in id:
      await hold.wait()
    else:
      await asyncio.sleep(0.01)
    running -= 1
    command.files['/workspace/out.txt'] = b'hi'
    return base.ExecResult(0)

  _, fleet = make_fleet(proxy, answer, socket_dir)
  requests = [request(task, 'slow', 1), request(task, 'b'), request(task, 'c')]
  names = []
  async for group in fleet.run_groups(requests, concurrency=3):
    names.append(group[0].task_id)
    assert [r.index for r in group] == list(range(len(group)))
    if len(names) == 2:
      assert not hold.is_set()  # the slow one did not hold the others up
      hold.set()
  assert set(names[:2]) == {'b', 'c'} and names[2] == 'slow'
  assert most == 3


async def test_longest_expected_first(task, stub, socket_dir):
  proxy = await stub([])
  started = []

  def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    id = session_of(proxy, command)
    proxy.add(id)
    started.append(id.split('/')[2])
    return base.ExecResult(0)

  _, fleet = make_fleet(proxy, answer, socket_dir)
  short, long = (
    request(task, n, 2, family) for n, family in (('s', 'x'), ('l', 'y'))
  )
  fleet.durations.add(short.task, 'toy', 1.0)
  fleet.durations.add(long.task, 'toy', 9.0)
  await collect(fleet, [short, long], concurrency=1)
  assert started == ['l', 'l', 's', 's']


async def test_faults_are_run_again_within_the_budget(task, stub, socket_dir):
  proxy = await stub([])

  def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    id = session_of(proxy, command)
    proxy.add(id)
    if '/2' in id:
      raise SandboxError('gone')
    return base.ExecResult(0)

  _, fleet = make_fleet(proxy, answer, socket_dir)
  seen = []
  [group] = await collect(
    fleet,
    [request(task)],
    concurrency=4,
    retry_budget=2,
    on_rollout=seen.append,
  )
  assert [r.outcome for r in group] == ['ok', 'ok', 'infra_error', 'ok']
  ids = sorted(r.rollout_id for r in seen)
  prefix = 'train/0/a/toy'
  assert ids == [f'{prefix}/{i}' for i in ('0', '1', '2', '2~1', '2~2', '3')]
  assert group[2].rollout_id == f'{prefix}/2~2'


async def test_stopping_early_leaves_nothing(task, stub, socket_dir):
  proxy = await stub([])

  async def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    id = session_of(proxy, command)
    proxy.add(id)
    await asyncio.sleep(0 if '/a/' in id else 60)
    return base.ExecResult(0)

  backend, fleet = make_fleet(proxy, answer, socket_dir)
  groups = fleet.run_groups(
    [request(task, 'a'), request(task, 'b')], concurrency=8
  )
  async for _ in groups:
    break
  await groups.aclose()
  assert not backend.live
  assert sorted(proxy.closed) == sorted(proxy.sessions)


@pytest.mark.parametrize('seed', [0, 1])
async def test_chaos(task, stub, socket_dir, seed):
  rng = random.Random(seed)
  proxy = await stub([])
  faults = collections.Counter()

  def strike(name):
    hit = rng.random() < 0.1
    faults[name] += hit
    return hit

  def fail(stage):
    if strike(f'{stage} fails'):
      raise SandboxError(f'{stage} failed')

  def answer(command):
    if command.argv[0] != 'toy':
      if strike('verifier crashes'):
        return base.ExecResult(1, b'', b'Traceback')
      return verdict(command)
    id = session_of(proxy, command)
    if strike('proxy is away'):
      raise SandboxError('no proxy at the socket')
    if strike('engine error'):
      proxy.add(id, 'error', str(EngineError('crashed')))
      return base.ExecResult(1)
    proxy.add(id)
    if rng.random() < 0.5:
      command.files['/workspace/out.txt'] = b'hi'
    if strike('sandbox killed'):
      raise SandboxError('bwrap ended by itself')
    if strike('harness killed'):
      return base.ExecResult(137)
    return base.ExecResult(0)

  backend, fleet = make_fleet(proxy, answer, socket_dir, fail=fail)
  requests = [request(task, f't{i}', 8) for i in range(25)]
  seen = []
  groups = await collect(
    fleet,
    requests,
    concurrency=16,
    retry_budget=60,
    on_rollout=seen.append,
  )
  assert min(faults.values()) > 0 and len(faults) == 7
  # Every rollout of every group, each with one outcome and a reason for it.
  assert sorted(g[0].task_id for g in groups) == sorted(
    r.task.id for r in requests
  )
  final = [r for g in groups for r in g]
  assert len(final) == 200 == len({(r.task_id, r.index) for r in final})
  assert len(seen) <= 260
  assert len({r.rollout_id for r in seen}) == len(seen)
  for r in seen:
    assert (r.reason == '') == (r.outcome == 'ok')
    # Unknown is not zero: a reward is there exactly when it was scored.
    assert (r.reward is not None) == (r.outcome in types.SCORED_OUTCOMES)
    assert r.valid == (r.reward is not None)
  assert any(r.outcome == 'harness_error' and r.valid for r in seen)
  assert sorted(proxy.closed) == sorted(proxy.sessions)
  # Destroys that failed leave their sandbox to the sweep, and are recorded.
  faulty = sum('destroy_fault' in r.extra for r in seen)
  assert len(backend.live) >= faulty > 0
  # The next step starts clean.
  backend.live.clear()
  backend.fail = lambda stage: None
  rng.random = lambda: 1.0
  [clean] = await collect(fleet, [request(task, 'next')], concurrency=4)
  assert [r.outcome for r in clean] == ['ok'] * 4
