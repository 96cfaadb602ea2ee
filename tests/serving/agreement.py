"""Sampled by the engine, scored by the trainer: how far apart the numbers are.

Sessions of several turns go through the real scheduler (prefix cache, chunked
prefill, batched bursts); their calls become a packed tree, and the Learner scores
it. Both see the same ids, so every difference is one of arithmetic.
"""

from __future__ import annotations

import asyncio

import numpy as np

from clawjax import trie
from clawjax.serving.engine import Engine
from clawjax.serving.scheduler import Scheduler
from clawjax.train import state, step
from clawjax.types import Call, SamplingParams


def sampled(config, params, *, sessions, turns, answer, new, **options):
  """Calls of sessions whose prompts grow turn by turn."""
  engine = Engine(config, params, **options)
  running = Scheduler(engine).start()
  client = running.client()

  async def session(i):
    rng = np.random.default_rng(i)
    ids = rng.integers(10, config.vocab, new).astype(np.int32)
    calls = []
    for turn in range(turns):
      sample = await client.sample(
        ids,
        SamplingParams(
          max_tokens=answer,
          seed=100 * i + turn,
          return_routes=bool(config.experts),
        ),
        session_id=str(i),
      )
      calls.append(Call(f'c{turn}', f'r{i}', turn, ids, sample))
      more = rng.integers(10, config.vocab, new)
      ids = np.concatenate([ids, sample.token_ids, more]).astype(np.int32)
    return calls

  async def every():
    return await asyncio.gather(*[session(i) for i in range(sessions)])

  try:
    return asyncio.run(every())
  finally:
    running.stop()


def gaps(config, params, sessions, *, replay, row_tokens):
  """Engine log-prob - trainer log-prob of every sampled token, float64 [E].

  Args:
    config: as the engine's; the trainer gets its own layout.
    params: the same weights.
    sessions: see `sampled`.
    replay: the trainer uses the experts that the engine used.
    row_tokens: length of the trainer's rows.
  """
  learner = step.Learner(
    config, state.make_optimizer(state.OptimConfig()),
    forward=step.ForwardConfig(chunk=256),
  )  # fmt: skip
  routes = 'split' if replay else 'ignore'
  batch = trie.pack(
    [trie.build(calls, routes=routes) for calls in sessions],
    row_tokens=row_tokens,
  )
  assert (batch.routes is not None) == replay
  logp = learner.score(params, batch)
  gap = batch.rollout_logprob.astype(np.float64) - logp
  return gap[batch.mask]


def figures(gap):
  """max, mean and p99 of |gap|, and the k3 estimate of KL(engine || trainer).

  k3 = exp(-gap) - 1 + gap, never negative, under the engine's samples.
  """
  size = np.abs(gap)
  return {
    'tokens': len(gap),
    'max': float(size.max()),
    'mean': float(size.mean()),
    'p99': float(np.quantile(size, 0.99)),
    'k3': float((np.expm1(-gap) + gap).mean()),
  }
