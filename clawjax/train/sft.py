"""Supervised training on captured trajectories, packed as trees.

  capture   an expert plays tasks through proxy, harness and sandbox
  fit       maximum likelihood of the expert's tokens, and of nothing else

A captured trajectory is a `Rollout` like any other, so it takes the same way:
trie, filter, rows. The trajectories of an optimiser step share one tree, so the
prompt that they have in common is computed once.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clawjax import metrics as metrics_lib
from clawjax import trie as trie_lib
from clawjax import types
from clawjax.harness import Harness
from clawjax.losses import weights
from clawjax.rollout.fleet import GroupRequest
from clawjax.train import checkpoint, progress, records
from clawjax.train import state as state_lib
from clawjax.train.service import RolloutService
from clawjax.train.step import Learner


@dataclasses.dataclass(frozen=True)
class SftConfig:
  """Supervised training.

  Attributes:
    steps: optimiser steps.
    batch: trajectories per step.
    min_reward: trajectories that scored less are left out.
    log_every, save_every: steps between log lines and checkpoints.
    seed: of the order of the trajectories.
    pack: rows, see `trie.pack`.
    filter: see `trie.filter`.
  """

  steps: int = 1000
  batch: int = 32
  min_reward: float = 0.0
  log_every: int = 20
  save_every: int = 200
  seed: int = 0
  pack: trie_lib.PackConfig = trie_lib.PackConfig()
  filter: trie_lib.FilterConfig = trie_lib.FilterConfig()

  def __post_init__(self):
    if min(self.steps, self.batch, self.log_every, self.save_every) < 1:
      raise ValueError('steps, batch, log_every, save_every must be positive')


def capture(
  service: RolloutService,
  tasks: Sequence[types.Task],
  harness: Harness,
  *,
  prefix: str,
  run_dir: pathlib.Path,
  display: progress.Display,
) -> list[types.Rollout]:
  """Runs each task once; trajectories already on disk are not run again.

  Returns:
    The valid rollouts, in order of the tasks.
  """
  requests = [
    GroupRequest(
      task=task, harness=harness, size=1, prefix=f'{prefix}/{task.id}'
    )
    for task in tasks
  ]
  found = {r.task_id: r for r in records.load(run_dir, prefix, 0) if r.valid}
  with display.rollouts(f'capture {prefix}', len(requests)) as shown:
    shown.ahead(sum(t.id in found for t in tasks))

    def keep(rollout: types.Rollout) -> None:
      records.save(run_dir, prefix, 0, rollout)
      if rollout.valid:
        found[rollout.task_id] = rollout
      shown.finished(
        rollout.reward if rollout.valid else None, failed=not rollout.valid
      )

    for _ in service.groups(
      [r for r in requests if r.task.id not in found],
      retry_budget=max(8, len(requests) // 10),
      on_start=shown.started,
      on_rollout=keep,
    ):
      pass
  return [found[t.id] for t in tasks if t.id in found]


def grow(
  rollouts: Sequence[types.Rollout], config: SftConfig
) -> list[trie_lib.Trie]:
  """Tries of the trajectories that are good enough and have tokens."""
  tries = []
  for rollout in rollouts:
    if not rollout.valid or (rollout.reward or 0.0) < config.min_reward:
      continue
    tree, _ = trie_lib.filter(trie_lib.build(rollout), config.filter)
    if tree.trained:
      tries.append(tree)
  return tries


def fit(
  learner: Learner,
  state: state_lib.TrainState,
  tries: Sequence[trie_lib.Trie],
  config: SftConfig,
  *,
  run_dir: pathlib.Path,
  display: progress.Display,
  on_save: Callable[[int, state_lib.TrainState], Any] = lambda step, s: None,
) -> state_lib.TrainState:
  """Fits, resuming from the newest checkpoint of the run folder."""
  store = checkpoint.Checkpoints(run_dir / 'checkpoints')
  restored = store.restore(state)
  first = 1
  if restored is not None:
    done, state, _ = restored
    first = done + 1
    display.say(f'resumed after step {done}')
  writer = metrics_lib.Writer(
    run_dir, resume_step=None if restored is None else first - 1
  )
  start, tokens = time.monotonic(), 0
  for step in range(first, config.steps + 1):
    batch = _batch(tries, config, step)
    state, numbers = learner.fit(state, batch)
    tokens += int(batch.stats['tokens'])
    if step % config.log_every == 0 or step == config.steps:
      spent = time.monotonic() - start
      numbers['tokens_per_s'] = tokens / spent
      writer.write(step, {f'sft/{k}': v for k, v in numbers.items()})
      left = spent / (step - first + 1) * (config.steps - step)
      display.say(
        f'sft {step}/{config.steps}: loss {numbers["loss"]:.4f}, '
        f'{tokens / spent:.0f} tokens/s, about'
        f' {int(left // 60)}:{int(left % 60):02d} left'
      )
    if step % config.save_every == 0 or step == config.steps:
      store.save(step, state, {})
      on_save(step, state)
  writer.close()
  store.close()
  return state


def _batch(
  tries: Sequence[trie_lib.Trie], config: SftConfig, step: int
) -> trie_lib.TreeBatch:
  """The trajectories of a step, in an order seeded epoch by epoch."""
  total = len(tries)
  chosen = []
  for place in range((step - 1) * config.batch, step * config.batch):
    epoch, index = divmod(place, total)
    order = np.random.default_rng([config.seed, epoch]).permutation(total)
    chosen.append(tries[order[index]])
  batch = trie_lib.pack(
    chosen, groups=['sft'] * len(chosen), config=config.pack
  )
  return batch.replace(
    weight=weights.term_weights(
      batch.term_rollout,
      groups=batch.groups,
      aggregation='token_mean',
    )
  )
