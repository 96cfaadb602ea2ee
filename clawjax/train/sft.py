"""Supervised training on captured trajectories, packed as trees.

  capture   an expert plays tasks through proxy, harness and sandbox
  fit       maximum likelihood of the expert's tokens, and of nothing else

What was captured before, by whatever model, is read by `captured.load`.

A captured trajectory is a `Rollout` like any other, so it takes the same way:
trie, filter, rows. The trajectories of an optimiser step share one tree, so the
prompt that they have in common is computed once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clawjax import errors, types
from clawjax import trie as trie_lib
from clawjax.harness import Harness
from clawjax.losses import weights
from clawjax.rollout.fleet import GroupRequest
from clawjax.tasks import dataset
from clawjax.train import captured, checkpoint, progress, records
from clawjax.train import drill as drill_lib
from clawjax.train import pod as pod_lib
from clawjax.train import state as state_lib
from clawjax.train.service import RolloutService
from clawjax.train.step import Learner


@dataclasses.dataclass(frozen=True)
class SftConfig:
  """Supervised training.

  Attributes:
    steps: optimiser steps.
    batch: trajectories per step.
    data: trajectories to train on, see `captured.load`; '': a scripted expert
      plays tasks first.
    min_reward: trajectories that scored less are left out.
    log_every, save_every: steps between log lines and checkpoints.
    seed: of the order of the trajectories.
    drill: copying drills before the first trajectory; their steps come on top
      of `steps`.
    pack: rows, see `trie.pack`.
    filter: see `trie.filter`.
  """

  steps: int = 1000
  batch: int = 32
  data: str = ''
  min_reward: float = 0.0
  log_every: int = 20
  save_every: int = 200
  seed: int = 0
  drill: drill_lib.DrillConfig = drill_lib.DrillConfig()
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
  """Tries of rollouts, the dead and the auxiliary calls marked."""
  return [
    trie_lib.filter(trie_lib.build(r), config.filter)[0] for r in rollouts
  ]


def good(
  rollouts: Sequence[types.Rollout], config: SftConfig
) -> Sequence[types.Rollout]:
  """Trajectories that scored enough and have something to train.

  A data set was filtered when it was loaded, and is not read through again.

  Raises:
    TaskError: there is none.
  """
  if isinstance(rollouts, dataset.Source):
    return rollouts
  kept = [
    r
    for r in rollouts
    if r.valid and (r.reward or 0.0) >= config.min_reward and r.calls
  ]
  if not kept:
    raise errors.TaskError(
      f'none of {len(rollouts)} trajectories can be trained on (wanted valid'
      f' ones with a score of at least {config.min_reward})'
    )
  return kept


def renamed(rollout: types.Rollout, new_id_V: np.ndarray) -> types.Rollout:
  """The trajectory with other names: each id of its calls is looked up.

  Args:
    rollout: a captured trajectory.
    new_id_V: int32 [V], the id that stands for each id; see `Renaming`.
  """

  def call(c: types.Call) -> types.Call:
    sample = c.sample
    if sample is not None:
      sample = dataclasses.replace(sample, token_ids=new_id_V[sample.token_ids])
    return dataclasses.replace(
      c, prompt_ids=new_id_V[c.prompt_ids], sample=sample
    )

  return dataclasses.replace(
    rollout, calls=tuple(call(c) for c in rollout.calls)
  )


def stem_ids(rollouts: Iterable[types.Rollout]) -> set[int]:
  """Ids in what all trajectories of a harness begin with: its own prompt.

  Words that stand there are not names of a task. Dealt out anew they would make
  each trajectory's prompt another one, so that the tree shares none of it.
  """
  stems: dict[str, np.ndarray] = {}
  for rollout in rollouts:
    if not rollout.calls:
      continue
    prompt = np.asarray(rollout.calls[0].prompt_ids)
    stem = stems.get(rollout.harness, prompt)
    size = min(len(stem), len(prompt))
    differ = np.flatnonzero(stem[:size] != prompt[:size])
    stems[rollout.harness] = stem[: differ[0] if len(differ) else size]
  return {int(i) for stem in stems.values() for i in stem}


# A word at the start of a line or a name, and after a blank.
_FORMS = ('', ' ')


class Renaming:
  """Deals out words anew among themselves, in every form that they have.

  A few thousand trajectories hold too few names to learn copying from: they can
  be remembered instead. With the names dealt out anew each time a trajectory
  is used, only copying helps.

  Args:
    tokenizer: turns words into ids.
    words: names that may be exchanged for one another; those that are not a
      single token in every form stay as they are.
    keep: ids that stay, and with them the other forms of their word; see
      `stem_ids`.
  """

  def __init__(
    self,
    tokenizer: Any,
    words: Sequence[str],
    keep: Collection[int] = frozenset(),
  ):
    forms = [[tokenizer.encode(f + w) for f in _FORMS] for w in words]
    single = [
      [ids[0] for ids in word]
      for word in forms
      if all(len(ids) == 1 and ids[0] not in keep for ids in word)
    ]
    self._table = np.array(single, np.int32).reshape(-1, len(_FORMS))
    self._vocab_size = tokenizer.vocab_size

  def draw(self, rng: np.random.Generator) -> np.ndarray:
    """int32 [V], a new id for each id."""
    new_id = np.arange(self._vocab_size, dtype=np.int32)
    dealt = self._table[rng.permutation(len(self._table))]
    new_id[self._table.reshape(-1)] = dealt.reshape(-1)
    return new_id


def fit(
  learner: Learner,
  state: state_lib.TrainState,
  rollouts: Sequence[types.Rollout],
  config: SftConfig,
  *,
  run_dir: pathlib.Path,
  display: progress.Display,
  rename: Renaming | None = None,
  drills: drill_lib.Drills | None = None,
  pod: pod_lib.Pod | None = None,
  checkpoints: str = '',
) -> state_lib.TrainState:
  """Fits, resuming from the newest checkpoint of the run folder.

  Args:
    learner: compiled functions.
    state: where to start.
    rollouts: captured trajectories.
    config: see `SftConfig`.
    run_dir: checkpoints and metrics go here.
    display: for a person.
    rename: gives the names of a trajectory out anew at each use.
    drills: makes the drills, wanted when `config.drill.steps` is not 0.
    pod: the processes of this run; each gives the same `rollouts`.
    checkpoints: folder or address that all of them reach; '': in the run folder.
  """
  pod = pod or pod_lib.Pod()
  rollouts = good(rollouts, config)
  feed = captured.Feed(rollouts, batch=config.batch, seed=config.seed)
  last = config.drill.steps + config.steps
  store = checkpoint.Checkpoints(checkpoints or run_dir / 'checkpoints')
  with contextlib.closing(store):
    state = jax.tree.map(jnp.copy, state)  # the update takes over its buffers
    restored = store.restore(state)
    first = 1
    if restored is not None:
      done, state, facts = restored
      first = done + 1
      feed.restore(facts)
      display.say(f'resumed after step {done}')
    resume_step = None if restored is None else first - 1
    with pod.metrics(run_dir, resume_step) as write:
      start, tokens = time.monotonic(), 0
      for step in range(first, last + 1):
        if step <= config.drill.steps:
          assert drills is not None, 'drill.steps wants drills'
          name, chosen = 'drill', _drills(drills, config, step)
        else:
          name = 'sft'
          place = step - config.drill.steps
          chosen = _renamed(feed.draw(place), config, place, rename)
        batch = _rows(chosen, config)
        state, numbers = learner.fit(state, batch)
        tokens += int(batch.stats['tokens'])
        if step % config.log_every == 0 or step == last:
          spent = time.monotonic() - start
          numbers['tokens_per_s'] = tokens / spent
          write(step, {f'{name}/{k}': v for k, v in numbers.items()})
          left = spent / (step - first + 1) * (last - step)
          display.say(
            f'{name} {step}/{last}: loss {numbers["loss"]:.4f}, '
            f'{tokens / spent:.0f} tokens/s, about'
            f' {int(left // 60)}:{int(left % 60):02d} left'
          )
        if step % config.save_every == 0 or step == last:
          store.save(step, state, feed.state())
  return state


def _drills(
  drills: drill_lib.Drills, config: SftConfig, step: int
) -> list[types.Rollout]:
  """The drills of a step; no two are the same."""
  batch = config.drill.batch
  return [
    drills.draw(place, np.random.default_rng([config.seed, 2, place]))
    for place in range((step - 1) * batch, step * batch)
  ]


def _renamed(
  chosen: Sequence[types.Rollout],
  config: SftConfig,
  step: int,
  rename: Renaming | None,
) -> list[types.Rollout]:
  """The trajectories of a step with their names dealt out anew."""
  if rename is None:
    return list(chosen)
  first = (step - 1) * config.batch
  return [
    renamed(
      rollout,
      rename.draw(np.random.default_rng([config.seed, 1, first + i])),
    )
    for i, rollout in enumerate(chosen)
  ]


def _rows(
  chosen: Sequence[types.Rollout], config: SftConfig
) -> trie_lib.TreeBatch:
  """One tree over all, cut into rows; each token weighs the same."""
  batch = trie_lib.pack(
    grow(chosen, config), groups=['sft'] * len(chosen), config=config.pack
  )
  return batch.replace(
    weight=weights.term_weights(
      batch.term_rollout,
      groups=batch.groups,
      aggregation='token_mean',
    )
  )
