"""Every request ends with a result or a named error, and no page is lost."""

import asyncio
import random
import threading

import numpy as np
import pytest

from clawjax.errors import EngineError
from clawjax.serving.scheduler import Scheduler, SchedulerConfig
from clawjax.types import SamplingParams

from .fake_engine import VOCAB, FakeEngine, expected


def start(engine, decode_text=None, **config):
  return Scheduler(
    engine, SchedulerConfig(**config), decode_text=decode_text
  ).start()


async def agent(client, rng, session, turns, log):
  """A session whose prompts extend each other, sometimes branch or hang up."""
  ids = [1, 2, 3, 4, 5, 6, 7, 8, 9][: rng.randrange(1, 10)]
  for turn in range(turns):
    ids = ids + [rng.randrange(VOCAB) for _ in range(rng.randrange(0, 9))]
    ids = ids or [1]
    count = rng.randrange(1, 12)
    work = asyncio.ensure_future(
      client.sample(
        np.asarray(ids, np.int32),
        SamplingParams(max_tokens=count, seed=turn),
        session_id=session,
      )
    )
    log['sent'] += 1
    if rng.random() < 0.1:
      await asyncio.sleep(rng.random() * 0.01)
      work.cancel()
    try:
      sample = await work
    except asyncio.CancelledError:
      log['cancelled'] += 1
      continue
    except EngineError as error:
      log[error.kind] = log.get(error.kind, 0) + 1
      if error.kind == 'too_long':
        ids = ids[:5]
      continue
    want = expected(ids, len(sample.token_ids), sample.policy_version)
    assert sample.token_ids.tolist() == want
    full = 64 - len(ids)
    assert len(sample.token_ids) == min(count, full)
    assert sample.finish == ('length' if count <= full else 'context_full')
    log['ok'] += 1
    if rng.random() < 0.8:
      ids += sample.token_ids.tolist()
    else:
      ids = ids[: rng.randrange(1, len(ids) + 1)]


async def crowd(engine, *, sessions, turns, seed, **config):
  running = start(engine, **config)
  log = {'sent': 0, 'ok': 0, 'cancelled': 0}
  rng = random.Random(seed)
  await asyncio.gather(
    *[
      agent(running.client(), random.Random(rng.random()), f's{i}', turns, log)
      for i in range(sessions)
    ]
  )
  running.stop()
  running.cache.check(0)
  assert sum(v for k, v in log.items() if k != 'sent') == log['sent']
  return running, log


# A window is 16 pages: 17 leaves room for one sequence at a time to grow.
@pytest.mark.parametrize('pages', [18, 40, 129])
async def test_random_arrivals_and_cancels(pages):
  engine = FakeEngine(pages=pages)
  running, log = await crowd(engine, sessions=12, turns=25, seed=pages)
  assert log['ok'] > 200
  assert running.stats()['pages_evicted'] > 0
  if pages == 18:
    assert running.stats()['preempted'] > 0


@pytest.mark.slow
async def test_no_page_is_lost_in_ten_thousand_requests():
  _, log = await crowd(FakeEngine(pages=60), sessions=50, turns=200, seed=1)
  assert log['sent'] == 10_000


async def test_without_reuse_the_answers_are_the_same():
  running, log = await crowd(
    FakeEngine(), sessions=4, turns=10, seed=5, reuse=False
  )
  assert log['ok'] and running.stats()['reused_tokens'] == 0


@pytest.mark.parametrize('mode', ['recompute', 'continue', 'drain'])
async def test_weights_change_under_load(mode):
  """Each token follows from its own version, in every mode."""
  engine = FakeEngine(pages=60)
  # Under 'continue' old keys are in the cache by design.
  engine.check_versions = mode != 'continue'
  running = start(engine, on_load=mode)
  client, done = running.client(), threading.Event()

  def publish():
    version = 0
    while not done.wait(0.003):
      version += 1
      running.load_params('good', version)

  thread = threading.Thread(target=publish)
  thread.start()
  mixed = 0
  try:
    for round_ in range(20):
      prompts = [[i, round_, *range(i)] for i in range(1, 9)]
      samples = await asyncio.gather(
        *[
          client.sample(np.asarray(p, np.int32), SamplingParams(max_tokens=40))
          for p in prompts
        ]
      )
      for prompt, sample in zip(prompts, samples, strict=True):
        versions = sample.token_versions
        if versions is None:
          versions = [sample.policy_version] * 40
        else:
          mixed += 1
        ids = list(prompt)
        for token, version in zip(sample.token_ids, versions, strict=True):
          assert token == expected(ids, 1, int(version))[0]
          ids.append(int(token))
  finally:
    done.set()
    await asyncio.to_thread(thread.join)
  running.stop()
  running.cache.check(0)
  assert running.stats()['loads'] > 3
  assert (mixed == 0) == (mode == 'drain')


async def test_failed_load_keeps_serving():
  running = start(FakeEngine())
  with pytest.raises(EngineError, match='bad'):
    await asyncio.to_thread(running.load_params, 'bad', 3)
  sample = await running.client().sample(
    np.array([1, 2]), SamplingParams(max_tokens=3)
  )
  assert sample.policy_version == 0
  running.stop()


@pytest.mark.parametrize(
  ('keep', 'there', 'back'),
  [
    (0, [1], 0),  # nothing survives
    (1, [1], 28),  # seven whole pages of four; the last token is never kept
    (1, [1, 2], 0),  # two versions ago is too long
    (2, [1, 2], 28),
  ],
)
async def test_prefixes_are_kept_by_version(keep, there, back):
  """The fake's answers tell whose pages they were made from."""
  running = start(FakeEngine(), keep_versions=keep)
  prompt = list(range(1, 30))
  sampling = SamplingParams(max_tokens=5)

  async def ask(version):
    sample = await running.client().sample(np.array(prompt), sampling)
    assert sample.token_ids.tolist() == expected(prompt, 5, version)
    return sample.reused_tokens

  assert await ask(0) == 0
  for version in there:
    await asyncio.to_thread(running.load_params, 'good', version)
    assert await ask(version) == 0
  await asyncio.to_thread(running.load_params, 'good', 0)
  assert await ask(0) == back
  running.stop()
  running.cache.check(0)


async def test_crash_reaches_every_caller():
  engine = FakeEngine()
  engine.crash_at = 3
  running = start(engine)
  client = running.client()
  results = await asyncio.gather(
    *[
      client.sample(np.array([1, i]), SamplingParams(max_tokens=50))
      for i in range(20)
    ],
    return_exceptions=True,
  )
  assert {r.kind for r in results} == {'crashed'}
  assert all('on fire' in str(r) for r in results)
  with pytest.raises(EngineError, match='on fire'):
    await client.sample(np.array([1]), SamplingParams())
  with pytest.raises(EngineError, match='on fire'):
    running.load_params('good', 1)
  running.cache.check(0)
  running.stop()


async def test_full_queue_says_busy():
  running = start(FakeEngine(slots=1), queue=2)
  client = running.client()
  results = await asyncio.gather(
    *[
      client.sample(np.array([1, i]), SamplingParams(max_tokens=50))
      for i in range(9)
    ],
    return_exceptions=True,
  )
  busy = [r for r in results if isinstance(r, EngineError)]
  assert 6 <= len(busy) <= 7 and {b.kind for b in busy} == {'busy'}
  running.stop()


async def test_stop_ends_what_is_under_way():
  running = start(FakeEngine(window=4096, pages=2000))
  client = running.client()
  task = asyncio.create_task(client.sample(np.array([1]), SamplingParams()))
  while not running.stats()['decoding']:
    await asyncio.sleep(0.001)
  running.stop()
  with pytest.raises(EngineError) as error:
    await task
  assert error.value.kind == 'closed'
  with pytest.raises(EngineError) as error:
    await client.sample(np.array([1]), SamplingParams())
  assert error.value.kind == 'closed'


def test_long_prompt_does_not_stall_short_ones():
  """2,000 tokens are prefilled eight at a time; three others end meanwhile."""
  running = Scheduler(FakeEngine(window=4096, pages=4000))
  rng, order, done = np.random.default_rng(0), [], threading.Event()

  def submit(name, prompt, count):
    def deliver(sample, error):
      assert len(sample.token_ids) == count
      order.append((name, running.counters.prefilled_tokens))
      if name == 'long':
        done.set()

    running.submit(prompt, SamplingParams(max_tokens=count), deliver)

  submit('long', rng.integers(0, VOCAB, 2000), 1)
  for i in range(3):
    submit('short', np.array([1, 2, i]), 8)
  running.start()
  assert done.wait(60)
  running.stop()
  assert [name for name, _ in order] == ['short'] * 3 + ['long']
  assert all(prefilled < 100 for _, prefilled in order[:3])


async def test_sessions_take_turns():
  """One session with many calls does not hold up another with one."""
  running = start(FakeEngine(slots=2, window=256))
  client, order = running.client(), []

  async def call(session, i):
    await client.sample(
      np.array([1, i]), SamplingParams(max_tokens=30), session_id=session
    )
    order.append(session)

  greedy = [asyncio.create_task(call('greedy', i)) for i in range(20)]
  await asyncio.sleep(0)
  await call('modest', 49)
  assert len(order) < 8
  await asyncio.gather(*greedy)
  running.stop()


async def test_higher_priority_goes_first():
  from clawjax.serving.client import LocalClient

  running = start(FakeEngine(slots=1, window=256))
  order = []

  async def call(client, name, i):
    await client.sample(np.array([1, i]), SamplingParams(max_tokens=20))
    order.append(name)

  low, high = running.client(), LocalClient(running, priority=1)
  tasks = [asyncio.create_task(call(low, 'low', i)) for i in range(5)]
  await asyncio.sleep(0)
  tasks.append(asyncio.create_task(call(high, 'high', 9)))
  await asyncio.gather(*tasks)
  assert order.index('high') <= 2
  running.stop()


async def test_many_samples_of_one_prompt_prefill_it_once():
  running = start(FakeEngine())
  prompt = np.arange(1, 31)
  samples = await running.client().sample_many(
    prompt, SamplingParams(max_tokens=5), 4
  )
  assert [s.token_ids.tolist() for s in samples] == [expected(prompt, 5)] * 4
  # 29 tokens to prefill, in pages of 4: the others redo the last part page.
  assert running.stats()['prefilled_tokens'] == 29 + 3 * 1
  running.stop()
