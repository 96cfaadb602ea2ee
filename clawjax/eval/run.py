"""Runs tasks through a harness on a fleet and keeps what they scored.

`evaluate` is the whole of it: one group of `samples` rollouts per task, finished
groups taken as they come, each rollout reduced to a `Trial`. The trainer calls
it in process before and after training, sampled as in training and greedy; the
command line (`python -m clawjax.eval`) calls it for task sets of any source.

A rollout that failed for a reason of ours is run again by the fleet while its
retry budget lasts; what stays failed is a trial without a reward, which the
scores count apart.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from clawjax import types
from clawjax.eval import scores


class Fleet(Protocol):
  """What is needed of a fleet; see `clawjax.rollout.fleet`."""

  def run_groups(
    self, requests: Sequence[Any], **options: Any
  ) -> AsyncIterator[list[types.Rollout]]:
    """Yields finished groups as they complete."""


@dataclasses.dataclass(frozen=True)
class EvalResult:
  """Trials of one evaluation.

  Attributes:
    harness: its name.
    greedy: sampled at temperature 0.
    trials: by task, then by sample.
  """

  harness: str
  greedy: bool
  trials: tuple[scores.Trial, ...]

  def summary(self, **options: Any) -> scores.Summary:
    """All scores; see `scores.summarise`."""
    return scores.summarise(self.trials, **options)

  def task_scores(self) -> dict[str, float]:
    """Task id -> mean score of its scored samples."""
    return scores.task_means(self.trials)

  def metrics(self, section: str = 'eval') -> dict[str, float]:
    """Flat metrics; the names of a greedy evaluation end in `_greedy`."""
    s = self.summary()
    tail = '_greedy' if self.greedy else ''
    values = {
      'pass1': s.pass1.value,
      'pass1_low': s.pass1.low,
      'pass1_high': s.pass1.high,
      'success': s.success.value,
      'tasks': float(s.tasks),
      'rollouts': float(s.trials),
      'errors': float(s.trials - s.scored),
    }
    for k, e in s.pass_at.items():
      values[f'pass_at_{k}'] = e.value
    for k, e in s.pass_hat.items():
      values[f'pass_hat_{k}'] = e.value
    return {f'{section}/{k}{tail}': v for k, v in values.items()}


async def evaluate(
  fleet: Fleet,
  tasks: Sequence[types.Task],
  *,
  harness: Any,
  samples: int = 1,
  prefix: str = 'eval',
  greedy: bool = False,
  concurrency: int = 8,
  retry_budget: int | None = None,
  on_rollout: Callable[[types.Rollout], None] | None = None,
) -> EvalResult:
  """Scores every task `samples` times.

  Args:
    fleet: runs the rollouts.
    tasks: with distinct ids.
    harness: as the fleet takes it.
    samples: rollouts per task.
    prefix: start of the rollout ids; a sampled and a greedy evaluation of one
      step need different ones.
    greedy: sample at temperature 0.
    concurrency: rollouts side by side.
    retry_budget: rollouts that may be run again for faults of ours, in all;
      default: a tenth of the rollouts, at least 4.
    on_rollout: called with each finished rollout.

  Returns:
    One trial per task and sample, whatever happened to it.
  """
  from clawjax.rollout import fleet as fleet_lib

  by_id = {task.id: task for task in tasks}
  if len(by_id) != len(tasks):
    raise ValueError('wanted tasks with distinct ids')
  if retry_budget is None:
    retry_budget = max(4, len(tasks) * samples // 10)
  requests = [
    fleet_lib.GroupRequest(
      task=task, harness=harness, size=samples, prefix=prefix
    )
    for task in tasks
  ]
  trials = []
  name = getattr(harness, 'name', str(harness))
  async for group in fleet.run_groups(
    requests,
    concurrency=concurrency,
    on_rollout=on_rollout,
    retry_budget=retry_budget,
  ):
    for rollout in group:
      trials.append(
        scores.trial(rollout, by_id[rollout.task_id], greedy=greedy)
      )
  order = {task.id: i for i, task in enumerate(tasks)}
  trials.sort(key=lambda t: (order[t.task_id], t.sample_index))
  return EvalResult(harness=name, greedy=greedy, trials=tuple(trials))


# ---- on disk ---------------------------------------------------------------


def save_trials(
  path: str | os.PathLike[str], trials: Sequence[scores.Trial]
) -> None:
  """Writes trials as a JSON list, atomically; makes the folder."""
  target = pathlib.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  temporary = target.with_suffix('.tmp')
  rows = ',\n '.join(json.dumps(scores.trial_to_json(t)) for t in trials)
  temporary.write_text(f'[{rows}]\n')
  temporary.replace(target)


def load_trials(path: str | os.PathLike[str]) -> list[scores.Trial]:
  """Inverse of `save_trials`."""
  data = json.loads(pathlib.Path(path).read_text())
  return [scores.trial_from_json(item) for item in data]
