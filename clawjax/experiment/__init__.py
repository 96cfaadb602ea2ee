"""One experiment: a config file becomes parts, the parts become a run.

`configs/*.py` return a `ConfigDict` (`sections`); `main` checks all of it before
anything is started, prints and saves what it resolved to, makes the parts
(`parts`: tokenizer, model, engine, proxy, sandbox, harness, tasks) and hands them
to `train.loop` (kind 'rl') or `train.sft` (kind 'sft'). What a person can put
right is a `ClawjaxError` of one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.console

from clawjax import config as config_lib
from clawjax import types
from clawjax.chat import tokenizers
from clawjax.experiment import folder, parts
from clawjax.experiment.parts import load_model as load_model
from clawjax.experiment.parts import save_model as save_model
from clawjax.experiment.sections import Experiment as Experiment
from clawjax.experiment.sections import ModelSection as ModelSection
from clawjax.tasks import synth, words
from clawjax.train import (
  captured,
  drill,
  expert,
  loop,
  progress,
  sft,
  step,
)
from clawjax.train import state as state_lib


def default_config(name: str) -> Any:
  """Every key at its default; what `configs/*.py` start from."""
  return config_lib.template(Experiment, name=name)


def main(config: Any, *, run_dir: pathlib.Path | str | None = None) -> int:
  """Runs the experiment of a `ConfigDict`; returns the exit status.

  Args:
    config: what `get_config()` gave, with overrides.
    run_dir: the run folder, or a `gs://` address that it is mirrored to; None:
      runs/NAME[-seedS].

  Raises:
    ClawjaxError: something that a person can put right.
  """
  start = time.monotonic()
  experiment = config_lib.build(Experiment, config)
  pod = experiment.pod.start()
  display = progress.Display()
  if not pod.leads:
    display = progress.Display(rich.console.Console(quiet=True))
  url = str(run_dir) if run_dir and '://' in str(run_dir) else ''
  if run_dir is None or url:
    tail = f'-seed{experiment.seed}' if experiment.seed else ''
    name = url.rstrip('/').rpartition('/')[2] or f'{experiment.name}{tail}'
    run_dir = pathlib.Path('runs') / name
  run = parts.Run(
    experiment,
    pathlib.Path(run_dir),
    display,
    pod,
    experiment.mesh.build(),
    tokenizers.load(experiment.tokenizer),
    start,
  )
  if url:
    run.mirror = folder.Mirror(run.run_dir, url)
  with contextlib.ExitStack() as stack:
    pod.lead(lambda: _take_folder(run, stack))
    if experiment.kind == 'rl':
      display.say(f'report: {_reinforce(run)}')
    else:
      _supervise(run)
  return 0


def _take_folder(run: parts.Run, stack: contextlib.ExitStack) -> None:
  """Holds the run folder and says what will run."""
  run.run_dir.mkdir(parents=True, exist_ok=True)
  stack.enter_context(folder.locked(run.run_dir))
  if run.mirror and run.mirror.pull():
    run.display.say(f'run folder fetched from {run.mirror.address("")}')
  folder.check_same_run(run.experiment, run.run_dir)
  run.display.say(f'run folder {run.run_dir}')
  for key, value in config_lib.flatten(run.experiment).items():
    run.display.say(f'  {key} = {value!r}')


def _reinforce(run: parts.Run) -> pathlib.Path:
  experiment = run.experiment
  params, model = load_model(
    experiment.model, experiment.seed, sharding=run.sharding
  )
  with parts.served(run, params, model) as served:
    parts.say_ready(run, model, served)
    loop_parts = parts.loop_parts(run, params, model, served)
    loop_config = dataclasses.replace(experiment.loop, seed=experiment.seed)
    page = loop.train(loop_parts, loop_config)
  if experiment.export:
    save_model(
      pathlib.Path(experiment.export),
      loop_parts.state.params,
      model,
      run.tokenizer,
    )
  return page


def _supervise(run: parts.Run) -> None:
  experiment, tokenizer = run.experiment, run.tokenizer
  config = dataclasses.replace(experiment.sft, seed=experiment.seed)
  rollouts: Sequence[types.Rollout]
  if config.data:
    rollouts = captured.load(
      config.data,
      tokenizer,
      min_reward=config.min_reward,
      thinking=experiment.thinking,
    )
    run.display.say(f'{len(rollouts)} trajectories of {config.data}')
  else:
    rollouts = run.pod.lead(lambda: _played(run))
  params, model = load_model(
    experiment.model,
    experiment.seed,
    vocab=tokenizer.vocab_size,
    sharding=run.sharding,
  )
  learner = step.Learner(
    model,
    state_lib.make_optimizer(experiment.optim),
    forward=experiment.forward,
    sharding=run.sharding,
  )
  rename = None
  if experiment.expert.rename:
    rename = sft.Renaming(tokenizer, words.WORDS, sft.stem_ids(rollouts))
  state = sft.fit(
    learner,
    state_lib.init(params, learner.optimizer, run.sharding),
    rollouts,
    config,
    run_dir=run.run_dir,
    display=run.display,
    rename=rename,
    drills=drill.Drills(tokenizer, words.WORDS, config.drill),
    pod=run.pod,
    checkpoints=run.checkpoints,
  )
  if experiment.loop.evaluate.tasks:
    with parts.served(run, state.params, model) as served:
      loop.evaluate(
        parts.loop_parts(run, state.params, model, served),
        experiment.loop,
        'after',
        config.drill.steps + config.steps,
      )
  if run.mirror:
    run.pod.lead(run.mirror.push)
  if experiment.export:
    where = pathlib.Path(experiment.export)
    save_model(where, state.params, model, tokenizer)
    run.display.say(f'weights: {where}')


def _played(run: parts.Run) -> list[types.Rollout]:
  """Trajectories of the scripted expert, through harness and sandbox.

  The tasks are dealt out over the harnesses in a seeded order: they come family
  by family, and one after the other each harness would see some families only.
  """
  experiment = run.experiment
  tasks = parts.make_tasks(experiment, 'train', experiment.expert.trajectories)
  by_id = {task.id: (i, task) for i, task in enumerate(tasks)}
  harnesses = parts.make_harnesses(experiment)
  dealt = deal(len(tasks), len(harnesses), experiment.expert.seed)

  def script(rollout_id: str) -> Sequence[types.Message]:
    # 'expert/synth/copy-123/0~1' -> 'synth/copy-123'
    i, task = by_id['/'.join(rollout_id.split('/')[1:-1])]
    rng = np.random.default_rng([experiment.expert.seed, i])
    turns = synth.expert(task, rng=rng, skill=experiment.expert.skill)
    return expert.spoken(turns, harnesses[dealt[i]].name)

  client = expert.ExpertClient(
    run.tokenizer, script, window=experiment.engine.window
  )
  played: list[types.Rollout] = []
  with parts.rollout_service(run, client, harnesses) as rollouts:
    for k, harness in enumerate(harnesses):
      played += sft.capture(
        rollouts,
        [task for task, place in zip(tasks, dealt, strict=True) if place == k],
        harness,
        prefix='expert',
        run_dir=run.run_dir,
        display=run.display,
      )
  run.display.say(
    f'captured {len(played)} trajectories, mean score'
    f' {np.mean([r.reward for r in played]):.3f}'
  )
  return played


def deal(count: int, hands: int, seed: int) -> np.ndarray:
  """int [count], the hand of each thing; hands differ by one at most."""
  order = np.random.default_rng([seed, 4]).permutation(count)
  return order % hands
