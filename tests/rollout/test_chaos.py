"""Everything that can go wrong, at once, and then the questions of training.

Two hundred rollouts; at random, each at 10 %: the sandbox is killed, the
harness is killed, the engine fails, the proxy is restarted (real server, real
socket, sessions taken up from its record), the verifier crashes. Is every
rollout accounted for, is no group trained with an invalid member, is nothing
left over, does the next step run clean? On fake sandboxes with all 200; on real
ones with fewer (slow).
"""

import asyncio
import collections
import dataclasses
import json
import random

import numpy as np
import pytest

from clawjax import errors, harness, sandbox, types
from clawjax.chat import tokenizers
from clawjax.proxy import serve
from clawjax.proxy.app import Proxy, ProxyConfig
from clawjax.rollout import fleet as fleet_lib
from clawjax.rollout import reaper as reaper_lib
from clawjax.sandbox import base
from clawjax.train import harvest
from clawjax.trie import FilterConfig, PackConfig
from tests.rollout import world

RATE = 0.1
FAULTS = ('sandbox', 'harness', 'engine', 'proxy', 'verifier')


class Dice:
  """Decides what happens to whom; counts what it did."""

  def __init__(self, seed):
    self.rng = random.Random(seed)
    self.rolled = collections.Counter()
    self.hit = collections.Counter()
    self.on = True

  def __call__(self, name):
    self.rolled[name] += 1
    hit = self.on and self.rng.random() < RATE
    self.hit[name] += hit
    return hit


class Engine:
  """Answers as it is told; breaks down for a session by the dice."""

  window = 4096
  policy_version = 1

  def __init__(self, dice, answer):
    self.tokenizer = tokenizers.load('tiny')
    self.dice, self.answer = dice, answer
    self.broken = set()

  async def sample(self, prompt_ids, params, *, session_id, call_index):
    await asyncio.sleep(0.001)
    # Once per rollout, and for good: the first call decides.
    if call_index == 0 and self.dice('engine'):
      self.broken.add(session_id)
    if session_id in self.broken:
      raise errors.EngineError('out of pages', kind='crashed')
    text = self.answer(session_id, call_index)
    ids = [*self.tokenizer.encode_markup(text), self.tokenizer.im_end]
    return types.Sample(
      np.asarray(ids, np.int32),
      np.full(len(ids), -0.5, np.float32),
      'stop',
      policy_version=1,
    )

  async def close(self):
    pass


class Front:
  """The proxy as the fleet sees it; `restart` puts another in its place.

  What is in flight is cut off, the server is stopped, and a new `Proxy` takes
  the sessions up from the record, as a restarted process would.
  """

  def __init__(self, client, folder, socket_dir):
    self.client, self.folder = client, folder
    self.path = socket_dir / base.SOCKET_NAME
    self.proxy = self._make()
    self.lock = asyncio.Lock()
    self.restarts = 0
    self.opened, self.closed = [], []

  def _make(self):
    return Proxy(
      self.client,
      self.client.tokenizer,
      config=ProxyConfig(thinking='off'),
      record_dir=self.folder,
    )

  async def start(self):
    self._server = serve.serve(self.proxy.app, uds=self.path)
    await self._server.__aenter__()

  async def stop(self):
    await self._server.__aexit__(None, None, None)

  async def restart(self):
    async with self.lock:
      for tasks in self.proxy.tasks.values():
        for job in list(tasks):
          job.cancel()
      await self.stop()
      self.proxy = self._make()
      self.proxy.resume()
      await self.start()
      self.restarts += 1

  def open(self, rollout_id, **options):
    self.opened.append(rollout_id)
    return self.proxy.open(rollout_id, **options)

  def close(self, id):
    self.closed.append(id)
    self.proxy.close(id)

  def calls(self, id):
    return self.proxy.calls(id)

  def stats(self, id):
    return self.proxy.stats(id)

  async def settle(self, id, **options):
    # A restart swaps the proxy below a settle that is under way.
    while True:
      proxy = self.proxy
      if await proxy.settle(id, **options) or proxy is self.proxy:
        return True


def questions(requests, groups, seen, front, backend):
  """What holds after a step, whatever happened in it."""
  # Every group came, with every place in it taken once.
  assert sorted(g[0].group for g in groups) == sorted(
    (r.task.id, r.harness.name) for r in requests
  )
  for group in groups:
    assert [r.index for r in group] == list(range(len(group)))
  final = [r for g in groups for r in g]
  assert len(final) == sum(r.size for r in requests)
  assert len({r.rollout_id for r in seen}) == len(seen)
  assert {r.rollout_id for r in final} <= {r.rollout_id for r in seen}
  for r in seen:
    # One outcome each, with a reason for all but 'ok'.
    assert (r.reason == '') == (r.outcome == 'ok'), r
    # Unknown is not zero: a reward is there exactly when it was scored.
    assert (r.reward is not None) == (r.outcome in types.SCORED_OUTCOMES), r
    assert r.valid == (r.reward is not None)
    # What was sampled for it was recorded for it, and for nobody else.
    assert all(c.rollout_id == r.rollout_id for c in r.calls)
  assert sorted(front.opened) == sorted(front.closed)
  assert front.proxy.ids() == []
  # Only valid members are trained, each once, each sampled token once.
  for group in groups:
    valid = [r for r in group if r.valid]
    chunk = harvest.gather(
      group,
      filter_config=FilterConfig(),
      pack_config=PackConfig(row_tokens=2048),
    )
    trained = () if chunk is None else chunk.rollouts
    assert [r.rollout_id for r in trained] == [r.rollout_id for r in valid]
    if chunk is not None:
      ids = [i for i in chunk.batch.rollout_ids if i]
      assert len(ids) == len(set(ids)) == len(valid)
      answers = [c for r in valid for c in r.calls if c.status == 'ok']
      # An answer that was lost on its way and asked for again is dead.
      dead = {(c.rollout_id, c.retry_of) for c in answers if c.retry_of}
      assert chunk.batch.stats['terms'] == sum(
        len(c.sample.token_ids)
        for c in answers
        if (c.rollout_id, c.call_id) not in dead
      )
  assert not backend.live


@pytest.mark.parametrize('seed', [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_two_hundred_on_fake_sandboxes(task, socket_dir, tmp_path, seed):
  dice = Dice(seed)
  rng = random.Random(seed + 100)

  def reply(session_id, call_index):
    return rng.choice(['good', 'bad'])

  front = Front(Engine(dice, reply), tmp_path / 'proxy', socket_dir)
  await front.start()

  async def answer(command):
    if command.argv[0] != 'toy':
      if dice('verifier'):
        return base.ExecResult(1, b'', b'Traceback')
      return world.verdict(command)
    _, key, instruction = command.argv
    said = await world.ask(front.path, key, instruction)
    if said == 'good':
      command.files['/workspace/out.txt'] = b'hi'
    if dice('sandbox'):
      raise errors.SandboxError('bwrap ended by itself with -9')
    if dice('harness'):
      return base.ExecResult(137)
    if dice('proxy'):
      await front.restart()
    if said is None:
      return base.ExecResult(1, b'', b'model error')
    await world.ask(front.path, key, instruction, said, 'Sure?')
    return base.ExecResult(0)

  backend, fleet = world.make_fleet(front, answer, socket_dir)
  requests = [
    world.request(task, f't{i}', 8, harness=name)
    for i in range(13)
    for name in ('toy', 'toy_two')
  ][:25]
  seen = []
  groups = await world.collect(
    fleet, requests, concurrency=16, retry_budget=60, on_rollout=seen.append
  )
  assert len([r for g in groups for r in g]) == 200
  assert len(seen) == 200 + fleet.counts['retried'] <= 260
  # It was chaos: each fault was dealt at its rate (within 4 sigma) ...
  for name in FAULTS:
    n, hit = dice.rolled[name], dice.hit[name]
    assert n > 100, name
    assert abs(hit - RATE * n) < 4 * (RATE * (1 - RATE) * n) ** 0.5, name
  assert front.restarts == dice.hit['proxy'] > 0
  # ... and each is found again in the record under its own name.
  by = collections.Counter(r.outcome for r in seen)
  reasons = collections.Counter(r.reason for r in seen)
  # (An engine that broke down goes before what the verifier made of it.)
  assert 0 < by['verifier_error'] <= dice.hit['verifier']
  assert reasons['bwrap ended by itself with -9'] == dice.hit['sandbox']
  assert 0 < by['harness_error'] <= dice.hit['harness']
  broken = sum('out of pages' in r.reason for r in seen)
  assert 0 < broken <= dice.hit['engine']
  await fleet.runner.backend.finish()
  questions(requests, groups, seen, front, backend)

  # The next step starts clean.
  dice.on = False
  [clean] = await world.collect(
    fleet, [world.request(task, 'next', 8)], concurrency=4
  )
  assert [r.outcome for r in clean] == ['ok'] * 8
  assert [len(r.calls) for r in clean] == [2] * 8
  await front.stop()


@pytest.mark.slow
async def test_forty_on_real_sandboxes(task, socket_dir, tmp_path):
  """The white-box agent loop in bubblewrap; processes are really killed."""
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(probe.text)
  dice = Dice(7)
  rng = random.Random(8)

  def reply(session_id, call_index):
    if call_index:
      return 'Done.'
    command = 'printf hi > out.txt' if rng.random() < 0.5 else 'true'
    # What an agent can do to itself: kill the harness, from inside.
    if dice('harness'):
      command += '; kill -9 $PPID'
    body = {'name': 'bash', 'arguments': {'command': command}}
    return f'<tool_call>\n{json.dumps(body)}\n</tool_call>'

  front = Front(Engine(dice, reply), tmp_path / 'proxy', socket_dir)
  await front.start()
  crash = dataclasses.replace(
    task.verifier,
    files={'check.py': b'raise SystemExit(3)'},
  )
  loop = harness.load('agent_loop', tools=('bash',))
  requests = [
    fleet_lib.GroupRequest(
      dataclasses.replace(
        task, id=f't{i}', verifier=crash if dice('verifier') else task.verifier
      ),
      loop,
      4,
      f'train/0/t{i}/agent_loop',
    )
    for i in range(10)
  ]
  fleet = fleet_lib.LocalFleet(
    backend=reaper_lib.Reaper(backend), proxy=front, socket_dir=socket_dir
  )
  seen = []

  async def strike():
    """Kills sandboxes and restarts the proxy while the step runs."""
    while True:
      await asyncio.sleep(0.4)
      if dice('proxy'):
        await front.restart()
      running = [b for b in backend.live.values() if b._running]
      if running and dice('sandbox'):
        rng.choice(running).kill()

  storm = asyncio.ensure_future(strike())
  groups = await world.collect(
    fleet, requests, concurrency=4, retry_budget=20, on_rollout=seen.append
  )
  storm.cancel()
  await asyncio.gather(storm, return_exceptions=True)
  await fleet.runner.backend.finish()
  questions(requests, groups, seen, front, backend)
  assert len({r.outcome for r in seen}) >= 2

  dice.on = False
  clean_request = dataclasses.replace(
    requests[0],
    task=dataclasses.replace(task, id='next'),
    prefix='train/1/next/agent_loop',
  )
  [clean] = await world.collect(fleet, [clean_request], concurrency=4)
  assert [r.outcome for r in clean] == ['ok'] * 4
  await front.stop()
  run = backend._run.path
  await backend.close()
  assert not run.exists()
