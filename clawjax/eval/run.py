"""Runs tasks through a harness on a fleet and keeps what they scored.

`run_jobs` runs a list of (task, harness, sample) side by side and hands each
rollout over as it ends; `evaluate` reduces those of one harness to trials. The
command line (`python -m clawjax.eval`, see `bench.py`) runs whole matrices.

A rollout that failed for a reason of ours is run again by the fleet while its
retry budget lasts; what stays failed is a trial without a reward, which the
scores count apart.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import pathlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from clawjax import types
from clawjax.eval import scores
from clawjax.rollout import fleet as fleet_lib
from clawjax.rollout import run as run_lib


class Fleet(Protocol):
  """What is needed of a fleet; see `clawjax.rollout.fleet`.

  Attributes:
    limits: `RolloutLimits` of its rollouts, sampling overrides among them.
  """

  limits: Any

  def run_groups(
    self, requests: Sequence[Any], *, concurrency: int, **options: Any
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


@dataclasses.dataclass(frozen=True)
class Job:
  """One rollout to be run.

  Attributes:
    task, harness: what runs.
    sample: number among the samples of its task.
    prefix: start of the rollout id.
  """

  task: types.Task
  harness: Any
  sample: int
  prefix: str = 'eval'

  @property
  def rollout_id(self) -> str:
    """'<prefix>/<task>/<harness>/<sample>'; the fleet adds the attempt."""
    return (
      f'{self.prefix}/{slug(self.task.id)}/{self.harness.name}/{self.sample}'
    )


async def run_jobs(
  fleet: Fleet,
  jobs: Sequence[Job],
  *,
  concurrency: int = 8,
  retry_budget: int | None = None,
  on_rollout: Callable[[types.Rollout], None] | None = None,
) -> AsyncIterator[tuple[Job, types.Rollout]]:
  """Runs jobs side by side; yields each with its last attempt as it ends.

  Every job is a group of its own, so that a resumed evaluation can run just
  the ones that are missing.

  Args:
    fleet: runs the rollouts.
    jobs: with distinct rollout ids.
    concurrency: rollouts side by side.
    retry_budget: rollouts that may be run again for faults of ours, in all;
      default: a tenth of the jobs, at least 4.
    on_rollout: told of every rollout that ended, failed attempts included.
  """
  by_id = {job.rollout_id: job for job in jobs}
  if len(by_id) != len(jobs):
    raise ValueError('wanted tasks with distinct ids')
  if retry_budget is None:
    retry_budget = max(4, len(jobs) // 10)

  def numbered(rollout: types.Rollout) -> types.Rollout:
    job = by_id[rollout.rollout_id.rsplit('/', 1)[0]]
    return dataclasses.replace(rollout, index=job.sample)

  def ended(rollout: types.Rollout) -> None:
    if on_rollout is not None:
      on_rollout(numbered(rollout))

  requests = [
    fleet_lib.GroupRequest(
      task=job.task, harness=job.harness, size=1, prefix=job.rollout_id
    )
    for job in jobs
  ]
  async with contextlib.aclosing(
    fleet.run_groups(
      requests,
      concurrency=concurrency,
      on_rollout=ended,
      retry_budget=retry_budget,
    )
  ) as groups:
    async for group in groups:
      for rollout in group:
        yield by_id[rollout.rollout_id.rsplit('/', 1)[0]], numbered(rollout)


async def evaluate(
  fleet: Fleet,
  tasks: Sequence[types.Task],
  *,
  harness: Any,
  samples: int = 1,
  prefix: str = 'eval',
  greedy: bool = False,
  sampling: Mapping[str, Any] | None = None,
  **options: Any,
) -> EvalResult:
  """Scores every task `samples` times.

  Args:
    fleet: runs the rollouts.
    tasks: with distinct ids.
    harness: an installed harness.
    samples: rollouts per task.
    prefix: start of the rollout ids. A sampled and a greedy evaluation of one
      step need different ones.
    greedy: sample at temperature 0.
    sampling: further overrides of sampling parameters, on top of the fleet's.
    **options: see `run_jobs`.

  Returns:
    One trial per task and sample, whatever happened to it.
  """
  overrides = dict(sampling or {}) | ({'temperature': 0.0} if greedy else {})
  if overrides:
    fleet = with_sampling(fleet, overrides)
  jobs = [Job(t, harness, i, prefix) for t in tasks for i in range(samples)]
  found = {}
  async with contextlib.aclosing(run_jobs(fleet, jobs, **options)) as runs:
    async for job, rollout in runs:
      found[job.rollout_id] = scores.trial(rollout, job.task, greedy=greedy)
  return EvalResult(
    harness=harness.name,
    greedy=greedy,
    trials=tuple(found[job.rollout_id] for job in jobs),
  )


def with_sampling(fleet: Any, overrides: Mapping[str, Any]) -> Any:
  """A fleet on the same machinery that samples otherwise."""
  twin = copy.copy(fleet)
  limits = fleet.limits or run_lib.RolloutLimits()
  twin.limits = dataclasses.replace(
    limits, sampling={**limits.sampling, **overrides}
  )
  return twin


def slug(text: str) -> str:
  """A task id as one part of a rollout id.

  '/' becomes '-'; so do characters that a file name could not hold, and then
  a short digest of the id keeps it apart from its likes.
  """
  plain = re.sub(r'[^A-Za-z0-9._-]+', '-', text).strip('-')
  if plain == text.replace('/', '-') and len(plain) <= 80:
    return plain
  digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
  return f'{plain[:80]}-{digest}'


# ---- on disk ---------------------------------------------------------------


def save_trials(
  path: str | os.PathLike[str], trials: Sequence[scores.Trial]
) -> None:
  """Writes trials as a JSON list, atomically; makes the folder."""
  target = pathlib.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  temporary = target.with_name(target.name + '.tmp')
  rows = ',\n '.join(json.dumps(scores.trial_to_json(t)) for t in trials)
  temporary.write_text(f'[{rows}]\n')
  temporary.replace(target)


def load_trials(path: str | os.PathLike[str]) -> list[scores.Trial]:
  """Inverse of `save_trials`."""
  data = json.loads(pathlib.Path(path).read_text())
  return [scores.trial_from_json(item) for item in data]
