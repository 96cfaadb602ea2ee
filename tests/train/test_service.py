"""The rollout side behind blocking calls: its options reach the fleet."""

import asyncio
import threading

import numpy as np
import pytest

from clawjax import config, errors, sandbox, types
from clawjax.chat import tokenizers
from clawjax.proxy.app import Proxy
from clawjax.rollout import fleet as fleet_lib
from clawjax.rollout import straggler
from clawjax.sandbox import base
from clawjax.train import service
from tests.rollout import world


class Policy:
  """Says done."""

  window = 4096
  policy_version = 0

  def __init__(self):
    self.tokenizer = tokenizers.load('tiny')

  async def sample(self, prompt_ids, params, *, session_id, call_index):
    ids = [*self.tokenizer.encode_markup('Done.'), self.tokenizer.im_end]
    return types.Sample(
      np.asarray(ids, np.int32), np.full(len(ids), -0.5, np.float32), 'stop'
    )

  async def close(self):
    pass


TASK = types.Task(
  id='t',
  turns=('Write hi.',),
  verifier=types.Verifier(files={}, command=('check',)),
)


class World:
  """A service on fake sandboxes; `act(command)` may do what a harness does."""

  def __init__(self, tmp_path, act, **options):
    self.running = self.most = 0
    self.act = act
    self.backend = sandbox.load('fake', answer=self.answer)
    policy = Policy()
    self.service = service.RolloutService(
      proxy=Proxy(policy, policy.tokenizer),
      backend=self.backend,
      harnesses=[world.Toy()],
      run_dir=tmp_path,
      **options,
    )

  async def answer(self, command):
    if command.argv[0] != 'toy':
      return world.verdict(command)
    self.running += 1
    self.most = max(self.most, self.running)
    _, key, instruction = command.argv
    path = self.service.socket_dir / base.SOCKET_NAME
    assert await world.ask(path, key, instruction) == 'Done.'
    command.files['/workspace/out.txt'] = b'hi'
    try:
      await self.act(command)
    finally:
      self.running -= 1
    return base.ExecResult(0, peak_memory_bytes=300 * base.MIB)


def groups(a_service, size, **options):
  request = fleet_lib.GroupRequest(TASK, world.Toy(), size, 'train/1/t/toy')
  return list(a_service.groups([request], **options))


async def nothing(command):
  await asyncio.sleep(0.01)


def test_rollouts_come_back_to_the_callers_thread(tmp_path):
  made = World(tmp_path, nothing, concurrency=3)
  threads, started = set(), []
  with made.service as running:
    [group] = groups(
      running,
      6,
      on_start=lambda: started.append(1),
      on_rollout=lambda r: threads.add(threading.current_thread()),
    )
  assert [(r.outcome, r.reward) for r in group] == [('ok', 1.0)] * 6
  assert threads == {threading.current_thread()} and len(started) == 6
  assert made.most == 3
  assert not running.socket_dir.exists() and not made.backend.live


def test_memory_bounds_what_runs_side_by_side(tmp_path):
  """700 MiB hold two of 300 MiB each, once that is known of the harness."""
  made = World(
    tmp_path,
    nothing,
    concurrency=8,
    fleet=service.FleetConfig(memory_mib=700),
  )
  with made.service as running:
    groups(running, 2)
    made.most = 0
    groups(running, 6)
  assert made.most == 2


def test_the_straggler_policy_reaches_the_fleet(tmp_path):
  calls = []

  async def act(command):
    calls.append(1)
    if len(calls) == 5:
      await asyncio.sleep(3600)

  policy = straggler.StragglerConfig('over_provision', extra=0.25)
  made = World(tmp_path, act, fleet=service.FleetConfig(straggler=policy))
  with made.service as running:
    [group] = groups(running, 4)
    assert [r.index for r in group] == [0, 1, 2, 3]
    assert running.counts['surplus'] == 1 and len(calls) == 5
  assert not made.backend.live


def test_fleet_options_are_checked():
  for bad in ({'kind': 'cloud'}, {'memory_mib': 0}):
    with pytest.raises(errors.ConfigError, match='fleet'):
      config.build(service.FleetConfig, bad, path='fleet')


def test_ray_without_a_cluster_is_one_line(tmp_path, monkeypatch):
  pytest.importorskip('ray', reason='no ray here: pip install clawjax[ray]')
  monkeypatch.delenv('RAY_ADDRESS', raising=False)
  monkeypatch.setenv('RAY_TMPDIR', str(tmp_path))
  made = World(tmp_path, nothing, fleet=service.FleetConfig(kind='ray'))
  with pytest.raises(errors.ConfigError, match='ray start --head'):
    with made.service:
      pass
