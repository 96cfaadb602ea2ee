"""What a step was made of: rollouts by outcome, tokens trained, time spent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from clawjax import types
from clawjax.rollout.fleet import FAULTS
from clawjax.train import harvest


def collected(
  rollouts: Sequence[types.Rollout], chunks: Sequence[harvest.Chunk]
) -> dict[str, float]:
  """Counts by outcome, and what of the sampled tokens is trained."""
  out = {'rollouts/ended': float(len(rollouts))}
  for outcome in (*types.SCORED_OUTCOMES, *FAULTS):
    count = sum(r.outcome == outcome for r in rollouts)
    out[f'rollouts/{outcome}'] = float(count)
  calls = [c for r in rollouts if r.valid for c in r.calls]
  valid = sum(r.valid for r in rollouts)
  out['rollouts/calls_mean'] = len(calls) / valid if valid else float('nan')
  out['rollouts/malformed_fraction'] = (
    sum(c.malformed for c in calls) / len(calls) if calls else float('nan')
  )
  by_harness: dict[str, list[float]] = {}
  for r in rollouts:
    if r.valid and r.reward is not None:
      by_harness.setdefault(r.harness, []).append(r.reward)
  for name, rewards in by_harness.items():
    out[f'reward/{name}'] = float(np.mean(rewards))
    out[f'rollouts/valid/{name}'] = float(len(rewards))
  reports = {k: v for chunk in chunks for k, v in chunk.reports.items()}
  out |= {f'train/{k}': v for k, v in harvest.accounting(reports).items()}
  return out


class Clock:
  """Wall seconds of the phases of a step; phases may nest."""

  def __init__(self):
    self._start = time.monotonic()
    self.spent: dict[str, float] = {}

  @contextlib.contextmanager
  def __call__(self, phase: str) -> Iterator[None]:
    begin = time.monotonic()
    try:
      yield
    finally:
      spent = time.monotonic() - begin
      self.spent[phase] = self.spent.get(phase, 0.0) + spent

  def total(self) -> float:
    """Seconds since the step began."""
    return time.monotonic() - self._start

  def metrics(self) -> dict[str, float]:
    """'time/<phase>_s' and 'time/step_s'."""
    out = {f'time/{k}_s': v for k, v in self.spent.items()}
    return out | {'time/step_s': self.total()}


_STAGES: dict[str, Callable[[dict[str, float]], float]] = {
  'model': lambda t: t.get('model', 0.0),
  'harness': lambda t: max(t.get('harness', 0.0) - t.get('model', 0.0), 0.0),
  'sandbox': lambda t: (
    t.get('create', 0.0) + t.get('destroy', 0.0) + t.get('verify', 0.0)
  ),
}


def shares(rollouts: Sequence[types.Rollout], clock: Clock) -> dict[str, float]:
  """Where the wall time of a step went; the four shares sum to 1.

  Rollouts overlap, so the wall time of collecting is divided as the rollouts'
  own seconds are: waiting for the model, the harness's own time, the sandbox
  (create, verify, destroy). The rest (settling, packing, scoring, the update,
  saving) is 'other'.
  """
  seconds = {
    name: sum(stage(dict(r.timings)) for r in rollouts)
    for name, stage in _STAGES.items()
  }
  total = sum(r.timings.get('total', 0.0) for r in rollouts)
  wall = clock.total()
  collect_s = clock.spent.get('collect', 0.0)
  if not total or not wall:
    return {}
  out = {
    f'time/share_{name}': value / total * collect_s / wall
    for name, value in seconds.items()
  }
  out['time/share_other'] = 1.0 - sum(out.values())
  return out
