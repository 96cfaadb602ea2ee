"""Minutes of everything at once on a small engine; nothing may be lost.

  python tests/bench/soak.py --json [--seconds 240] [--requests 10000]

Sessions come and go: prompts that extend each other, branches, prompts beyond
the window, empty ones, callers that hang up, greedy and sampled, stop ids, `n`
at once; the pool has pages for a third of the windows that are open, so sequences
are pre-empted; weights change every second, some of them do not fit; and some
times the engine's thread crashes in the middle of a burst and a new scheduler
takes over. At the end, printed as one JSON object:

  fates      how every request ended: a sample or a named error (no 'lost')
  leaked     pages that are neither free, cached nor held, after every scheduler
  rss_MiB    resident memory per tenth of the run
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import pathlib
import random
import sys
import time

import numpy as np

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))


def resident() -> float:
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * os.sysconf('SC_PAGE_SIZE') / 2**20


class Soak:
  """One engine, one scheduler at a time, many sessions."""

  def __init__(self, seconds, requests, seed):
    import jax

    from clawjax.models import qwen3
    from clawjax.serving.engine import Engine

    self.config = qwen3.Config.tiny(
      vocab=97, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
      experts=4, experts_per_token=2, expert_width=16,
    )  # fmt: skip
    self.params = qwen3.init(self.config, jax.random.key(0))
    self.engine = Engine(
      self.config, self.params, slots=8, window=128, page_size=8, pages=60,
      burst=8, max_chunk=64,
    )  # fmt: skip
    self.seconds, self.least, self.seed = seconds, requests, seed
    self.fates = collections.Counter()
    self.sent = self.loads = self.refused_loads = self.crashes = 0
    self.leaked, self.totals = 0, collections.Counter()
    self.rss = []
    self.began = time.monotonic()
    self.running = self._start()

  def _start(self):
    from clawjax.serving.scheduler import Scheduler, SchedulerConfig

    mode = ('recompute', 'continue', 'drain')[self.crashes % 3]
    return Scheduler(
      self.engine, SchedulerConfig(queue=200, on_load=mode)
    ).start()

  def _end(self, scheduler):
    """Counts what a scheduler did; asserts that it holds nothing."""
    scheduler.stop()
    scheduler.cache.check(0)
    stats = scheduler.stats()
    self.leaked += stats['pages'] - stats['pages_free'] - stats['pages_cached']
    for name in ('preempted', 'pages_evicted', 'drawn_tokens', 'reused_tokens'):
      self.totals[name] += stats[name]

  @property
  def over(self):
    return (
      time.monotonic() - self.began > self.seconds and self.sent >= self.least
    )

  async def session(self, rng):
    from clawjax.errors import EngineError
    from clawjax.types import SamplingParams

    ids = [rng.randrange(97) for _ in range(rng.randrange(1, 40))]
    while not self.over:
      kind = rng.random()
      prompt = ids
      if kind < 0.02:
        prompt = [1] * rng.randrange(128, 400)
      elif kind < 0.03:
        prompt = []
      params = SamplingParams(
        temperature=rng.choice([0.0, 1.0, 0.7]),
        top_p=rng.choice([1.0, 1.0, 0.9]),
        max_tokens=rng.randrange(1, 40),
        stop_ids=rng.choice([(), (5, 9)]),
        seed=rng.randrange(2**40),
        return_routes=rng.random() < 0.2,
      )
      client = self.running.client()
      count = 3 if rng.random() < 0.05 else 1
      self.sent += count
      work = asyncio.ensure_future(
        client.sample_many(np.asarray(prompt, np.int32), params, count)
      )
      if rng.random() < 0.1:
        await asyncio.sleep(rng.random() * 0.05)
        work.cancel()
      try:
        samples = await asyncio.wait_for(work, 300)
      except asyncio.CancelledError:
        self.fates['cancelled'] += count
        continue
      except TimeoutError:
        self.fates['lost'] += count
        continue
      except EngineError as error:
        self.fates[error.kind] += count
        await asyncio.sleep(0.01)
        if error.kind == 'too_long':
          ids = ids[: rng.randrange(1, 20)]
        continue
      self.fates['ok'] += count
      assert all(np.isfinite(s.logprobs).all() for s in samples)
      ids = [*ids, *samples[0].token_ids.tolist()]
      if rng.random() < 0.3:
        ids = ids[: rng.randrange(1, len(ids) + 1)]  # a branch
      ids += [rng.randrange(97) for _ in range(rng.randrange(0, 12))]

  async def weights(self, rng):
    from clawjax.errors import EngineError

    version = 0
    while not self.over:
      await asyncio.sleep(1.0)
      version += 1
      params = self.params
      if rng.random() < 0.2:
        params = {**params, 'final_norm': np.ones(3, np.float32)}
      try:
        await asyncio.to_thread(self.running.load_params, params, version)
        self.loads += 1
      except EngineError as error:
        assert error.kind in ('bad_params', 'crashed', 'closed'), error
        self.refused_loads += 1

  async def crash(self, rng):
    """Every now and then a burst raises; a new scheduler goes on."""
    every = max(5.0, self.seconds / 8)
    while not self.over:
      await asyncio.sleep(every)
      original = self.engine.decode

      def fails(*args, original=original, **kwargs):
        self.engine.decode = original
        raise RuntimeError('a burst that went wrong')

      self.engine.decode = fails
      old = self.running
      while old.crash is None and not self.over:
        await asyncio.sleep(0.01)
      self.engine.decode = original
      if old.crash is not None:
        self.crashes += 1
        self.running = self._start()
        await asyncio.to_thread(self._end, old)

  async def watch(self):
    while not self.over:
      self.rss.append((time.monotonic() - self.began, resident()))
      await asyncio.sleep(min(1.0, self.seconds / 100))

  async def run(self):
    rng = random.Random(self.seed)
    await asyncio.gather(
      self.watch(),
      self.weights(rng),
      self.crash(rng),
      *[self.session(random.Random(rng.random())) for _ in range(24)],
    )
    self._end(self.running)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true', help='(always)')
  parser.add_argument('--seconds', type=float, default=240)
  parser.add_argument('--requests', type=int, default=10_000)
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()
  soak = Soak(args.seconds, args.requests, args.seed)
  asyncio.run(soak.run())
  took = soak.rss[-1][0]
  tenths = [
    round(float(np.mean([m for t, m in soak.rss if i <= 10 * t / took < i + 1])), 1)
    for i in range(10)
  ]  # fmt: skip
  print(
    json.dumps(
      {
        'seconds': round(took, 1),
        'requests': soak.sent,
        'fates': dict(soak.fates),
        'unaccounted': soak.sent - sum(soak.fates.values()),
        'leaked': soak.leaked,
        'loads': soak.loads,
        'refused_loads': soak.refused_loads,
        'crashes': soak.crashes,
        **soak.totals,
        'rss_MiB': tenths,
      },
      indent=2,
    )
  )
  fine = not soak.leaked and soak.sent == sum(soak.fates.values())
  return 0 if fine and not soak.fates['lost'] else 1


if __name__ == '__main__':
  sys.exit(main())
