"""A training run with recorded rollouts, for tests that kill it.

  python toy_run.py RUN_DIR STEPS [KILL_AT_STEP]

Everything is real (learner, loop, records, checkpoints, metrics) except that the
rollouts are made from their ids instead of being run, so any two runs get the
same ones. With KILL_AT_STEP the process kills itself with SIGKILL while it
collects that step, after two groups.
"""

import os
import pathlib
import signal
import sys
import zlib

import jax
import numpy as np

from clawjax import metrics, types
from clawjax.losses import grpo
from clawjax.models import qwen3
from clawjax.tasks import synth
from clawjax.train import loop, progress, state, step
from clawjax.trie import PackConfig

VOCAB = 40


class ToyHarness:
  """Only its name is used."""

  name = 'toy'


class ToyScheduler:
  """Remembers the policy versions that it was given."""

  def __init__(self):
    self.versions = []

  def load_params(self, params, version):
    self.versions.append(version)


def rollout(task, rollout_id, index, version):
  """Two calls and a reward, all from the id."""
  rng = np.random.default_rng([zlib.crc32(rollout_id.encode()), version])
  head = list(range(1, 1 + len(task.id) % 7 + 3))
  calls, history = [], head
  for number in range(2):
    ids = rng.integers(1, VOCAB, rng.integers(2, 6))
    calls.append(
      types.Call(
        f'c{number}',
        rollout_id,
        number,
        np.array(history, np.int32),
        types.Sample(
          ids.astype(np.int32),
          -rng.random(len(ids)).astype(np.float32) - 3.0,
          'stop',
          policy_version=version,
        ),
      )
    )
    history = history + ids.tolist() + [int(rng.integers(1, VOCAB))]
  return types.Rollout(
    rollout_id,
    task.id,
    'toy',
    index=index,
    calls=tuple(calls),
    reward=float(rng.integers(0, 3)) / 2,
    timings={'total': 1.0, 'model': 0.25, 'harness': 0.5, 'create': 0.25},
  )


class ToyService:
  """Gives the same rollouts whenever it is asked."""

  def __init__(self, scheduler, kill_at=0):
    self.scheduler, self.kill_at = scheduler, kill_at
    self.asked = []

  def groups(self, requests, *, on_start, on_rollout, **_):
    for number, request in enumerate(requests):
      doomed = request.prefix.startswith(f'train/{self.kill_at}/')
      if doomed and number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
      self.asked.append(request.prefix)
      group = []
      for index in range(request.size):
        on_start()
        version = ([0] + self.scheduler.versions)[-1]
        name = f'{request.prefix}/{index}'
        group.append(rollout(request.task, name, index, version))
        on_rollout(group[-1])
      yield group


def parts(run_dir, *, kill_at=0):
  """The parts of a run, all but the rollouts real."""
  model = qwen3.Config.tiny(
    vocab=VOCAB, width=16, layers=2, heads=2, kv_heads=1, head_size=8,
    experts=4, experts_per_token=2, expert_width=16,
  )  # fmt: skip
  optimizer = state.make_optimizer(
    state.OptimConfig(learning_rate=1e-2, warmup_steps=2)
  )
  learner = step.Learner(
    model,
    optimizer,
    forward=step.ForwardConfig(chunk=64),
    loss=grpo.PolicyLossConfig(),
  )
  scheduler = ToyScheduler()
  return loop.Parts(
    learner=learner,
    state=state.init(qwen3.init(model, jax.random.key(0)), optimizer),
    serving=scheduler,
    service=ToyService(scheduler, kill_at),
    harnesses=[ToyHarness()],
    train_tasks=synth.tasks('train', count=8),
    eval_tasks=synth.tasks('eval', count=3),
    display=progress.Display(),
    run_dir=pathlib.Path(run_dir),
  )


def rows(folder):
  """Metrics of a run without what a clock says."""
  return [
    {
      k: v
      for k, v in row.items()
      if not k.startswith('time/') and k != 'wall_time'
    }
    for row in metrics.read(folder)
  ]


def config(steps, **changes):
  """Four groups of three, two optimiser steps per pass, two passes."""
  return loop.LoopConfig(
    steps=steps,
    epochs=2,
    minibatches=2,
    collect=loop.CollectConfig(tasks=4, group=3),
    evaluate=loop.EvalConfig(tasks=3, samples=2),
    pack=PackConfig(row_tokens=64, row_buckets=(64,), term_multiple=64),
    **changes,
  )


if __name__ == '__main__':
  folder = pathlib.Path(sys.argv[1])
  folder.mkdir(parents=True, exist_ok=True)
  doom = int(sys.argv[3]) if len(sys.argv) > 3 else 0
  loop.train(parts(folder, kill_at=doom), config(int(sys.argv[2])))
