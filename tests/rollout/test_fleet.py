"""The fleet: order, bounds, retries, lost hosts, stragglers, destroys."""

import asyncio

import pytest

from clawjax.errors import SandboxError
from clawjax.rollout import hosts as hosts_lib
from clawjax.rollout import reaper as reaper_lib
from clawjax.rollout import run, straggler
from clawjax.sandbox import base
from tests.rollout.world import (
  collect,
  make_fleet,
  request,
  session_of,
  verdict,
)


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


async def test_memory_of_the_host_bounds_rollouts(task, stub, socket_dir):
  """Room for 1000 MiB: of 400 MiB peaks two fit, of 90 MiB peaks all eight."""
  proxy = await stub([])
  running, most = 0, 0
  peak = 400 * base.MIB

  async def answer(command):
    nonlocal running, most
    if command.argv[0] != 'toy':
      return verdict(command)
    proxy.add(session_of(proxy, command))
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.01)
    running -= 1
    return base.ExecResult(0, peak_memory_bytes=peak)

  _, fleet = make_fleet(proxy, answer, socket_dir, memory_bytes=1000 * base.MIB)
  fleet.footprints.add('toy', peak)
  await collect(fleet, [request(task, 'a', 6)], concurrency=8)
  assert most == 2
  peak, most = 90 * base.MIB, 0
  for _ in range(20):  # the old peak fades
    fleet.footprints.add('toy', peak)
  await collect(fleet, [request(task, 'b', 8)], concurrency=8)
  assert most == 8


class _Nodes:
  """A runner on two hosts; `lose` takes one away with what runs there."""

  def __init__(self, inner):
    self.inner = inner
    self.hosts = hosts_lib.Hosts([hosts_lib.Host('a'), hosts_lib.Host('b')])
    self.running = {'a': set(), 'b': set()}

  def limit(self, batch, seconds):
    self.inner.limit(batch, seconds)

  async def run(self, job, host, on_stage):
    work = asyncio.ensure_future(self.inner.run(job, host, on_stage))
    self.running[host.name].add(work)
    try:
      return await work
    except asyncio.CancelledError:
      if host in self.hosts.all:
        raise
      raise hosts_lib.HostLost(host, 'unplugged') from None
    finally:
      self.running[host.name].discard(work)

  def lose(self, name):
    [host] = [h for h in self.hosts.all if h.name == name]
    self.hosts.remove(host)
    for work in self.running[name]:
      work.cancel()


async def test_a_lost_host_loses_no_group(task, stub, socket_dir):
  proxy = await stub([])
  hold = asyncio.Event()

  async def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    await hold.wait()
    proxy.add(session_of(proxy, command))
    return base.ExecResult(0)

  backend, fleet = make_fleet(proxy, answer, socket_dir)
  fleet.runner = nodes = _Nodes(fleet.runner)
  seen = []
  requests = [request(task, 'a'), request(task, 'b')]
  job = asyncio.ensure_future(
    collect(fleet, requests, concurrency=8, on_rollout=seen.append)
  )
  while len(nodes.running['a']) + len(nodes.running['b']) < 8:
    await asyncio.sleep(0.01)
  assert len(nodes.running['b']) == 4  # spread evenly
  nodes.lose('b')
  hold.set()
  groups = await job
  assert [len(g) for g in groups] == [4, 4]
  for group in groups:
    assert all(r.valid and r.extra['host'] == 'a' for r in group)
    assert [r.index for r in group] == [0, 1, 2, 3]
  lost = [r for r in seen if not r.valid]
  assert len(lost) == 4 == fleet.counts['lost']
  assert all('unplugged' in r.reason and not r.calls for r in lost)
  # Run again without a retry budget, under ids of their own, each once.
  assert len(seen) == 12 == len({r.rollout_id for r in seen})
  assert not backend.live


# ---- stragglers ----


async def test_over_provision_takes_the_first_that_are_valid(
  task, stub, socket_dir
):
  proxy = await stub([])
  stopped = []

  async def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    id = session_of(proxy, command)
    proxy.add(id)
    if id.endswith('/1'):
      raise SandboxError('gone')
    if id.endswith(('/0', '/3')):  # slow ones
      try:
        await asyncio.sleep(3600)
      except asyncio.CancelledError:
        stopped.append(id[-1])
        raise
    return base.ExecResult(0)

  backend, fleet = make_fleet(
    proxy,
    answer,
    socket_dir,
    straggler=straggler.StragglerConfig('over_provision', extra=0.5),
  )
  seen = []
  # 4 wanted, 6 started: 0 and 3 hang, 1 fails; the retry fills its place.
  [group] = await collect(
    fleet,
    [request(task)],
    concurrency=8,
    retry_budget=1,
    on_rollout=seen.append,
  )
  assert [r.index for r in group] == [0, 1, 2, 3]
  assert all(r.valid for r in group)
  ids = {r.rollout_id.rsplit('/', 1)[1] for r in group}
  assert ids == {'1~1', '2', '4', '5'}
  assert sorted(stopped) == ['0', '3'] and fleet.counts['surplus'] == 2
  # What was stopped is no rollout; what failed is.
  assert sorted(r.outcome for r in seen) == ['infra_error'] + ['ok'] * 4
  assert not backend.live


async def test_over_provision_without_enough_valid_ones(task, stub, socket_dir):
  proxy = await stub([])

  def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    id = session_of(proxy, command)
    proxy.add(id)
    if int(id.rsplit('/', 1)[1]) > 1:
      raise SandboxError('gone')
    return base.ExecResult(0)

  _, fleet = make_fleet(
    proxy,
    answer,
    socket_dir,
    straggler=straggler.StragglerConfig('over_provision', extra=0.5),
  )
  [group] = await collect(fleet, [request(task)], concurrency=8)
  assert [r.valid for r in group] == [True, True, False, False]
  assert [r.index for r in group] == [0, 1, 2, 3]


async def test_quantile_cuts_the_slowest_and_scores_them(
  task, stub, socket_dir
):
  proxy = await stub([])

  async def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    id = session_of(proxy, command)
    proxy.add(id)
    command.files['/workspace/out.txt'] = b'hi'
    await asyncio.sleep(0.05 if int(id.rsplit('/', 1)[1]) < 8 else 60)
    return base.ExecResult(0)

  _, fleet = make_fleet(
    proxy,
    answer,
    socket_dir,
    straggler=straggler.StragglerConfig('quantile', quantile=0.8, patience=2),
  )
  [group] = await collect(fleet, [request(task, size=10)], concurrency=10)
  assert [r.outcome for r in group] == ['ok'] * 8 + ['timeout'] * 2
  assert all(r.reward == 1 and r.valid for r in group)
  assert [bool(r.extra.get('cut')) for r in group] == [False] * 8 + [True] * 2
  assert fleet.counts['cut'] == 2
  # A new step starts without the old line.
  assert not fleet.runner._cutters
  # With patience for all, nothing is cut.
  fleet.straggler = straggler.StragglerConfig('wait')
  [group] = await collect(fleet, [request(task, 'b', 8)], concurrency=8)
  assert fleet.counts['cut'] == 2


def test_quantile_line_by_hand():
  """9 of 10 must have ended; the line is 1.5 times the longest of them."""
  line = straggler.Quantile(straggler.StragglerConfig('quantile'), 10)
  assert [line.add(s) for s in (1, 2, 8, 3, 4, 5, 6, 7)] == [None] * 8
  assert line.add(2.0) == 12.0
  assert line.add(9.0) is None  # drawn once
  off = straggler.Quantile(straggler.StragglerConfig(), 1)
  assert off.add(1.0) is None


@pytest.mark.parametrize(
  'options',
  [
    {'policy': 'hope'},
    {'extra': 0},
    {'quantile': 1.0},
    {'patience': 0.5},
  ],
)
def test_straggler_options_are_checked(options):
  with pytest.raises(ValueError, match='straggler|wanted'):
    straggler.StragglerConfig(**options)


# ---- destroys ----


@pytest.mark.parametrize('way', ['hangs', 'fails'])
async def test_a_bad_destroy_holds_nothing_up(task, stub, socket_dir, way):
  proxy = await stub([])
  tries = []

  def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    proxy.add(session_of(proxy, command))
    return base.ExecResult(0)

  def fail(stage):
    if stage == 'destroy':
      if way == 'fails':
        raise SandboxError('busy')
      return asyncio.sleep(3600)
    if stage == 'reap':
      tries.append(stage)
      if len(tries) <= 2:
        raise SandboxError('still busy')
    return None

  backend, fleet = make_fleet(proxy, answer, socket_dir, fail=fail)
  fleet.runner.backend = reaper = reaper_lib.Reaper(
    backend, patience_s=0.05, pause_s=0.01
  )
  [group] = await collect(fleet, [request(task, size=2)], concurrency=2)
  # Far less than the hour of the hang; the rollouts are as good as any.
  assert [r.outcome for r in group] == ['ok', 'ok']
  for r in group:
    assert 'removed another way' in r.extra['destroy_fault']
  assert await reaper.finish() == 0
  # Two agents' sandboxes and two graders'; two tries failed before.
  assert reaper.reaped == 4 and len(tries) == 6
  assert not backend.live and not reaper.waiting


async def test_the_reaper_gives_up_and_leaves_it_to_the_sweep():
  from clawjax import sandbox

  def fail(stage):
    if stage != 'create':
      raise SandboxError(f'{stage} fails')

  backend = sandbox.load('fake', fail=fail)
  reaper = reaper_lib.Reaper(
    backend, patience_s=0.05, pause_s=0.001, attempts=3
  )
  box = await reaper.create(base.SandboxSpec())
  with pytest.raises(SandboxError, match='destroy fails'):
    await box.destroy()
  assert await reaper.finish() == 1
  assert list(reaper.waiting.values()) == ['reap fails']
  assert list(backend.live) == list(reaper.waiting)


async def test_a_limit_cuts_agents_and_spares_graders():
  from clawjax import sandbox
  from clawjax.rollout import cutter as cutter_lib

  release = asyncio.Event()

  async def answer(command):
    await (asyncio.sleep(3600) if command.argv[0] == 'x' else release.wait())
    return base.ExecResult(0)

  cutter = cutter_lib.Cutter(sandbox.load('fake', answer=answer))
  cutter.agent('r1')
  agent = await cutter.create(base.SandboxSpec(label='r1'))
  grader = await cutter.create(base.SandboxSpec(label='verify t'))
  cut = asyncio.ensure_future(agent.exec(['x'], timeout_s=3600))
  whole = asyncio.ensure_future(grader.exec(['y']))
  await asyncio.sleep(0.01)
  cutter.limit(0.05)
  assert (await cut).timed_out and cut.result().returncode == 137
  assert not whole.done()
  # All of an agent's commands share one clock.
  assert (await agent.exec(['x'], timeout_s=3600)).timed_out
  release.set()
  assert (await whole).returncode == 0 and not whole.result().timed_out
  assert cutter.done('r1') and not cutter.done('r1')


async def test_limits_of_a_fleet_are_read_when_a_step_starts(
  task, stub, socket_dir
):
  """`eval.run.with_sampling` puts other limits on a copy of a fleet."""
  proxy = await stub([])

  async def answer(command):
    if command.argv[0] != 'toy':
      return verdict(command)
    proxy.add(session_of(proxy, command))
    await asyncio.sleep(60)

  _, fleet = make_fleet(proxy, answer, socket_dir)
  fleet.limits = run.RolloutLimits(time_limit_s=0.05)
  [group] = await collect(fleet, [request(task, size=1)], concurrency=1)
  assert group[0].outcome == 'timeout'
