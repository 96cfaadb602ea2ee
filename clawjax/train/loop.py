"""The training loop: collect, pack, update, sync, log, save; evaluate.

  for each step:
    collect   groups of rollouts through real harnesses; as each completes it is
              filtered, packed and scored (old log-probs) while others still run
    update    advantages, weights, then one optimiser step per minibatch; with a
              critic (PPO) one of its own too, and at first only that
    sync      new weights to the engine under a new policy version
    log, save metrics, rollouts, checkpoint

A step is finished when its checkpoint is on disk; the same command goes on from
there, and takes complete groups of the unfinished step from the run folder.
Policy version s is the weights before step s + 1.

With several processes (`train.pod`) all of them run this file; process 0 alone
runs rollouts and evaluations and writes everything but the checkpoints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clawjax import trie as trie_lib
from clawjax import types
from clawjax.eval import report, run, scores
from clawjax.harness import Harness
from clawjax.losses import diagnostics
from clawjax.rollout.fleet import GroupRequest
from clawjax.train import accounts, checkpoint, harvest, progress, records, sync
from clawjax.train import pod as pod_lib
from clawjax.train import state as state_lib
from clawjax.train.service import RolloutService
from clawjax.train.step import Learner
from clawjax.train.value import Critic
from clawjax.trie import TreeBatch

State = state_lib.TrainState | state_lib.ActorCriticState


@dataclasses.dataclass(frozen=True)
class CollectConfig:
  """Rollouts of one step.

  Attributes:
    tasks: tasks per step; each runs through every harness.
    group: rollouts per (task, harness).
    concurrency: rollouts side by side.
    retries: share of a step's rollouts that may be run again for faults of
      ours.
    groups_per_chunk: groups packed together; more fill rows better, fewer are
      scored earlier.
  """

  tasks: int = 32
  group: int = 8
  concurrency: int = 8
  retries: float = 0.25
  groups_per_chunk: int = 1

  def __post_init__(self):
    if min(self.tasks, self.group, self.concurrency) < 1:
      raise ValueError('tasks, group and concurrency must be at least 1')
    if self.groups_per_chunk < 1 or self.retries < 0:
      raise ValueError('wanted groups_per_chunk >= 1 and retries >= 0')


@dataclasses.dataclass(frozen=True)
class EvalConfig:
  """Evaluation on tasks not seen in training.

  Attributes:
    tasks: number of tasks.
    samples: rollouts per task, sampled as in training.
    greedy: also one rollout per task at temperature 0.
    every: also every so many steps; 0: before and after only.
  """

  tasks: int = 64
  samples: int = 1
  greedy: bool = True
  every: int = 0


@dataclasses.dataclass(frozen=True)
class LoopConfig:
  """The loop itself.

  Attributes:
    steps: training steps.
    epochs: passes over a step's rollouts.
    minibatches: optimiser steps per pass.
    collect, evaluate, credit, filter, pack: see their classes.
    keep_checkpoints: how many to keep.
    seed: of the task order, the minibatch order and all sampling.
  """

  steps: int = 100
  epochs: int = 1
  minibatches: int = 1
  collect: CollectConfig = CollectConfig()
  evaluate: EvalConfig = EvalConfig()
  credit: harvest.CreditConfig = harvest.CreditConfig()
  filter: trie_lib.FilterConfig = trie_lib.FilterConfig()
  pack: trie_lib.PackConfig = trie_lib.PackConfig()
  keep_checkpoints: int = 2
  seed: int = 0


@dataclasses.dataclass
class Parts:
  """What the loop works with, made by `clawjax.experiment`.

  Attributes:
    learner: compiled training functions.
    state: initial training state; with a critic an `ActorCriticState`. Its
      policy is also the reference of a KL.
    serving: takes new weights for the rollouts to come.
    service: runs rollouts; None on the processes that do not lead.
    harnesses: that are evaluated through.
    train_tasks, eval_tasks: disjoint.
    display: for a person.
    run_dir: the run folder.
    facts: written beside each checkpoint.
    setup_s: seconds from the program's start to the loop.
    trained: names of the harnesses that are trained through; (): all.
    critic: the value model, wanted by credit.estimator 'value'.
    pod: the processes of this run.
    checkpoints: folder or address that all of them reach; '': in the run folder.
    mirror: copies the run folder somewhere safe; called after each step.
  """

  learner: Learner
  state: State
  serving: sync.Serving
  service: RolloutService | None
  harnesses: Sequence[Harness]
  train_tasks: Sequence[types.Task]
  eval_tasks: Sequence[types.Task]
  display: progress.Display
  run_dir: pathlib.Path
  facts: dict[str, Any] = dataclasses.field(default_factory=dict)
  setup_s: float = 0.0
  trained: Sequence[str] = ()
  critic: Critic | None = None
  pod: pod_lib.Pod = dataclasses.field(default_factory=pod_lib.Pod)
  checkpoints: str = ''
  mirror: Callable[[], None] = lambda: None


def train(parts: Parts, config: LoopConfig) -> pathlib.Path:
  """Runs or resumes the loop; returns the path of the report page."""
  if (config.credit.estimator == 'value') != (parts.critic is not None):
    raise ValueError(
      "credit.estimator 'value' and a critic go together; got"
      f' {config.credit.estimator!r} and critic {parts.critic}'
    )
  store = checkpoint.Checkpoints(
    parts.checkpoints or parts.run_dir / 'checkpoints',
    keep=config.keep_checkpoints,
  )
  with contextlib.closing(store):
    restored = store.restore(parts.state)
    # A copy: the update takes over the buffers of the state it is given.
    first, state = 1, jax.tree.map(jnp.copy, parts.state)
    if restored is not None:
      done, state, _ = restored
      first = done + 1
      parts.serving.load_params(state.params, done)
      parts.display.say(f'resumed after step {done}')
    resume_step = None if restored is None else first - 1
    with parts.pod.metrics(parts.run_dir, resume_step) as write:
      if restored is None:
        write(0, evaluate(parts, config, 'before', 0))
      state = _steps(parts, config, state, first, store, write)
      after = parts.run_dir / 'eval' / 'after.json'
      if first <= config.steps or not parts.pod.lead(after.exists):
        write(config.steps, evaluate(parts, config, 'after', config.steps))
  parts.state = state

  def finish() -> pathlib.Path:
    page = report.write_report(parts.run_dir)
    parts.mirror()
    return page

  return parts.pod.lead(finish)


def _steps(
  parts: Parts,
  config: LoopConfig,
  state: State,
  first: int,
  store: checkpoint.Checkpoints,
  write: Callable[[int, Mapping[str, float]], object],
) -> State:
  step_s: list[float] = []
  for step in range(first, config.steps + 1):
    clock = accounts.Clock()
    with clock('collect'):
      requests = _requests(parts, config, step)
      chunks, rollouts = collect(parts, config, state, requests, step, clock)
    with clock('update'):
      state, numbers = update(parts, config, state, chunks, step)
    with clock('sync'):
      parts.serving.load_params(state.params, step)
    numbers |= accounts.collected(rollouts, chunks)
    if config.evaluate.every and step % config.evaluate.every == 0:
      numbers |= evaluate(parts, config, f'step_{step:05d}', step)
    numbers |= clock.metrics() | accounts.shares(rollouts, clock)
    write(step, numbers)
    with clock('save'):
      # First what the next start reads beside the checkpoint.
      if parts.pod.leads:
        parts.mirror()
      store.save(step, state, parts.facts | {'policy_version': step})
    step_s.append(clock.total())
    left = float(np.mean(step_s)) * (config.steps - step)
    parts.display.say(_line(step, config.steps, numbers, clock.total(), left))
  return state


# ---- collect ---------------------------------------------------------------


def _requests(
  parts: Parts, config: LoopConfig, step: int
) -> list[GroupRequest]:
  """The groups of a step: tasks in a seeded order, epoch by epoch."""
  count = config.collect.tasks
  total = len(parts.train_tasks)
  chosen = []
  for place in range((step - 1) * count, step * count):
    epoch, index = divmod(place, total)
    order = np.random.default_rng([config.seed, 1, epoch]).permutation(total)
    chosen.append(parts.train_tasks[order[index]])
  return [
    GroupRequest(
      task=task,
      harness=harness,
      size=config.collect.group,
      prefix=f'train/{step}/{task.id}/{harness.name}',
    )
    for task in chosen
    for harness in parts.harnesses
    if not parts.trained or harness.name in parts.trained
  ]


def collect(
  parts: Parts,
  config: LoopConfig,
  state: State,
  requests: Sequence[GroupRequest],
  step: int,
  clock: accounts.Clock,
) -> tuple[list[harvest.Chunk], list[types.Rollout]]:
  """Runs the groups of a step; filters, packs and scores them as they come.

  Returns:
    Scored chunks in order of the requests, each of the groups that stand
    together there (so that the update does not depend on who finished first),
    and every rollout that ended, failed ones too.
  """
  ended: list[types.Rollout] = []
  groups: dict[tuple[str, str], list[types.Rollout]] = {}
  chunks: dict[int, harvest.Chunk] = {}
  place = {(r.task.id, r.harness.name): i for i, r in enumerate(requests)}
  size = config.collect.groups_per_chunk
  here: dict[int, list[int]] = {}  # chunk -> groups that have come

  def flush(number: int) -> None:
    members = [
      m for i in sorted(here.pop(number)) for m in groups[_key(requests[i])]
    ]
    with clock('score'):
      chunk = harvest.gather(
        members, filter_config=config.filter, pack_config=config.pack
      )
      if chunk is not None:
        chunks[number] = _scored(parts, config, state, chunk)

  def come() -> Iterator[list[types.Rollout]]:
    return _groups(parts, config, requests, step, ended)

  for group in parts.pod.each(come):
    key = group[0].group
    groups[key] = group
    number = place[key] // size
    here.setdefault(number, []).append(place[key])
    if len(here[number]) == min(size, len(requests) - number * size):
      flush(number)
  for number in sorted(here):  # of these some groups were given up
    flush(number)
  return [chunks[i] for i in sorted(chunks)], ended


def _scored(
  parts: Parts, config: LoopConfig, state: State, chunk: harvest.Chunk
) -> harvest.Chunk:
  """The chunk with what the weights before the update say of its terms."""
  batch = chunk.batch
  known = {'old_logprob': parts.learner.score(state.params, batch)}
  if parts.learner.loss.kl_coef or config.credit.reward_kl_coef:
    known['ref_logprob'] = parts.learner.score(parts.state.params, batch)
  if parts.critic is not None:
    assert isinstance(state, state_lib.ActorCriticState)
    known['old_value'] = parts.critic.score(state.critic.params, batch)
  return dataclasses.replace(chunk, batch=batch.replace(**known))


def _key(request: GroupRequest) -> tuple[str, str]:
  return (request.task.id, request.harness.name)


def _groups(
  parts: Parts,
  config: LoopConfig,
  requests: Sequence[GroupRequest],
  step: int,
  ended: list[types.Rollout],
) -> Iterator[list[types.Rollout]]:
  """Groups of a step: first those on disk, then new ones as they complete."""
  sizes = {_key(r): r.size for r in requests}
  stored = records.complete_groups(
    records.load(parts.run_dir, 'train', step), sizes
  )
  total = sum(sizes.values())
  label = f'step {step}/{config.steps} rollouts'
  with parts.display.rollouts(label, total) as shown:
    for group in stored.values():
      shown.ahead(len(group))
      ended.extend(group)
      yield group

    def keep(rollout: types.Rollout) -> None:
      records.save(parts.run_dir, 'train', step, rollout)
      ended.append(rollout)
      shown.finished(
        rollout.reward if rollout.valid else None, failed=not rollout.valid
      )

    assert parts.service is not None
    yield from parts.service.groups(
      [r for r in requests if _key(r) not in stored],
      retry_budget=int(config.collect.retries * total),
      on_start=shown.started,
      on_rollout=keep,
    )


# ---- update ----------------------------------------------------------------


def update(
  parts: Parts,
  config: LoopConfig,
  state: State,
  chunks: Sequence[harvest.Chunk],
  step: int,
) -> tuple[State, dict[str, float]]:
  """All optimiser steps of one training step.

  Returns:
    The new state and metrics; with nothing to train the state is unchanged.
  """
  if not chunks:
    return state, {'train/optimizer_steps': 0.0}
  critic, epochs, pretraining = parts.critic, config.epochs, False
  if critic is not None and step <= critic.config.pretrain_steps:
    epochs, pretraining = critic.config.pretrain_epochs, True
  steps: list[dict[str, float]] = []
  filled = None
  for epoch in range(epochs):
    # The rewards of the control are dealt out once, the order every epoch.
    filled = harvest.fill(
      chunks,
      config.credit,
      minibatches=config.minibatches,
      rng=np.random.default_rng([config.seed, 2, step]),
      order=np.random.default_rng([config.seed, 3, step, epoch]),
    )
    for batch in filled.minibatches:
      state, numbers = _optimizer_step(parts, state, batch, pretraining)
      steps.append(numbers)
  assert filled is not None
  out = {f'train/{k}': v for k, v in diagnostics.combine(steps).items()}
  if steps and not pretraining:
    out['train/first_max_ratio'] = steps[0]['max_ratio']
    out['train/kl_k3'] = steps[-1]['moved_k3']
  # While the critic is pre-trained the policy takes none.
  out['train/optimizer_steps'] = float(sum('loss' in n for n in steps))
  out |= {f'train/{k}': v for k, v in filled.statistics.items()}
  out |= {f'pack/{k}': v for k, v in filled.packing.items()}
  if parts.pod.leads:
    save_advantages(parts.run_dir, step, filled.advantage)
  return state, out


def _optimizer_step(
  parts: Parts, state: State, batch: TreeBatch, pretraining: bool
) -> tuple[State, dict[str, float]]:
  """One step of the policy and, where there is one, of the critic."""
  if parts.critic is None:
    assert isinstance(state, state_lib.TrainState)
    return parts.learner.update(state, batch)
  assert isinstance(state, state_lib.ActorCriticState)
  policy, numbers = state.policy, {}
  if not pretraining:
    policy, numbers = parts.learner.update(policy, batch)
  critic, more = parts.critic.fit(state.critic, batch, pretraining=pretraining)
  return state_lib.ActorCriticState(policy, critic), numbers | more


def save_advantages(run_dir: pathlib.Path, step: int, advantage) -> None:
  """Advantages beside the rollouts, for the report."""
  place = records.folder(run_dir, 'train', step)
  place.mkdir(parents=True, exist_ok=True)
  path = place.parent / f'{step:05d}.advantages.json'
  temporary = path.with_suffix('.tmp')
  temporary.write_text(json.dumps(dict(advantage)))
  temporary.replace(path)


# ---- evaluate --------------------------------------------------------------


def evaluate(
  parts: Parts, config: LoopConfig, when: str, step: int
) -> dict[str, float]:
  """Pass@1 on unseen tasks, sampled as in training and greedy beside it."""
  return parts.pod.lead(lambda: _evaluate(parts, config, when, step))


def _evaluate(
  parts: Parts, config: LoopConfig, when: str, step: int
) -> dict[str, float]:
  assert parts.service is not None
  by_id = {task.id: task for task in parts.eval_tasks}
  trials: list[scores.Trial] = []
  numbers: dict[str, float] = {}
  kinds = [(False, config.evaluate.samples)]
  if config.evaluate.greedy:
    kinds.append((True, 1))
  start = time.monotonic()
  for greedy, samples in kinds:
    kind = 'greedy' if greedy else 'sampled'
    requests = [
      GroupRequest(
        task=task,
        harness=harness,
        size=samples,
        prefix=f'eval/{when}/{kind}/{task.id}/{harness.name}',
      )
      for task in parts.eval_tasks
      for harness in parts.harnesses
    ]
    total = sum(r.size for r in requests)
    done: list[scores.Trial] = []
    with parts.display.rollouts(f'evaluate {when}, {kind}', total) as shown:

      def keep(rollout: types.Rollout, shown=shown) -> None:
        records.save(parts.run_dir, 'eval', step, rollout)
        shown.finished(
          rollout.reward if rollout.valid else None, failed=not rollout.valid
        )

      for group in parts.service.groups(
        requests,
        greedy=greedy,
        retry_budget=max(4, total // 10),
        on_start=shown.started,
        on_rollout=keep,
      ):
        for rollout in group:
          task = by_id[rollout.task_id]
          done.append(scores.trial(rollout, task, greedy=greedy))
    done.sort(key=lambda t: (t.task_id, t.sample_index))
    result = run.EvalResult(
      harness='+'.join(h.name for h in parts.harnesses),
      greedy=greedy,
      trials=tuple(done),
    )
    numbers |= result.metrics('eval')
    if len(parts.harnesses) > 1 and not greedy:
      for name, trials_of in scores.split(done, 'harness').items():
        numbers[f'eval/pass1/{name}'] = scores.pass1(trials_of).value
    trials += done
  run.save_trials(parts.run_dir / 'eval' / f'{when}.json', trials)
  numbers[f'time/eval_{when}_s'] = time.monotonic() - start
  line = f'evaluate {when}: Pass@1 {numbers["eval/pass1"]:.3f}'
  if config.evaluate.greedy:
    line += f' (greedy {numbers["eval/pass1_greedy"]:.3f})'
  parts.display.say(line)
  return numbers


def _line(
  step: int, steps: int, numbers: dict[str, float], spent: float, left: float
) -> str:
  def value(name: str) -> str:
    return f'{numbers[name]:.3f}' if name in numbers else '-'

  return (
    f'step {step}/{steps}: reward {value("train/reward_mean")}, entropy'
    f' {value("train/entropy")}, mismatch k3 {value("train/mismatch_k3")},'
    f' delivered {value("train/delivered_fraction")}, {spent:.0f} s, about'
    f' {int(left // 60)}:{int(left % 60):02d} left'
  )
