"""What a set of scored rollouts amounts to; plain numpy.

A `Trial` is one rollout of one task, reduced to what a score needs. From a
list of them come

  Pass@1   the mean score as the paper defines it: mean over the samples of a
           task, then mean over tasks. Scores are continuous in [0, 1].
  success  the same with each score replaced by `score >= threshold`.
  Pass@k   chance that the best of k samples of a task succeeds.
  Pass^k   chance that all of k samples of a task succeed.

An error is not a zero: a trial whose reward is unknown (sandbox, engine or
verifier fault) is left out of every mean and counted by its outcome instead.
A task none of whose trials was scored is counted as `unscored_tasks`.

Intervals come from a bootstrap over tasks, since samples of one task are not
independent; two runs are compared on the tasks that both scored.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from clawjax import types

SUCCESS = 1.0  # a score that counts as solved unless told otherwise
_ROUNDING = 1e-9  # a mean of ten checks may give 0.9999999999


@dataclasses.dataclass(frozen=True)
class Trial:
  """One rollout of a task, reduced to what a score needs.

  Attributes:
    task_id, harness: what ran.
    reward: the verifier's score in [0, 1], or None when unknown.
    outcome: how the rollout ended; see `types.Outcome`.
    family: kind of task, for the per-family table ('' if none).
    domain: column of the benchmark's own table ('' if none).
    sample_index: number among the samples of its task.
    greedy: sampled at temperature 0.
    rollout_id: where the transcript is.
    reason: one line on the outcome ('' for 'ok').
    seconds: wall time, 0 when not known.
    by_judge: value of each judge, by model name.
    judge: what judges took: calls, tokens, seconds, cost.
    flags: signs of a reward that was not earned.
  """

  task_id: str
  reward: float | None
  outcome: str = 'ok'
  harness: str = ''
  family: str = ''
  domain: str = ''
  sample_index: int = 0
  greedy: bool = False
  rollout_id: str = ''
  reason: str = ''
  seconds: float = 0.0
  by_judge: Mapping[str, float] = dataclasses.field(default_factory=dict)
  judge: Mapping[str, float] = dataclasses.field(default_factory=dict)
  flags: tuple[str, ...] = ()

  @property
  def scored(self) -> bool:
    """Whether its reward is known and may enter a mean."""
    return self.reward is not None and self.outcome in types.SCORED_OUTCOMES


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean over tasks with its interval; NaN where there is nothing.

  Attributes:
    value: the mean.
    low, high: bounds of the interval.
    tasks: number of tasks that the mean is over.
  """

  value: float
  low: float
  high: float
  tasks: int


@dataclasses.dataclass(frozen=True)
class Summary:
  """All numbers of one list of trials.

  Attributes:
    tasks: tasks with at least one scored trial.
    unscored_tasks: tasks that have trials, none of them scored.
    trials, scored, zeros: counts of trials; a zero is a scored 0.
    errors: outcome -> number of trials left out for it.
    pass1, success: see the top of the file.
    pass_at, pass_hat: k -> estimate, over the tasks with k scored samples.
  """

  tasks: int
  unscored_tasks: int
  trials: int
  scored: int
  zeros: int
  errors: Mapping[str, int]
  pass1: Estimate
  success: Estimate
  pass_at: Mapping[int, Estimate]
  pass_hat: Mapping[int, Estimate]


# ---- trials ----------------------------------------------------------------


def trial(
  rollout: types.Rollout,
  task: types.Task | None = None,
  *,
  greedy: bool = False,
) -> Trial:
  """Reduces a rollout to a trial; `task` gives family and domain."""
  metadata = task.metadata if task else {}
  return Trial(
    task_id=rollout.task_id,
    reward=rollout.reward if rollout.valid else None,
    outcome=rollout.outcome,
    harness=rollout.harness,
    family=str(metadata.get('family', '')),
    domain=str(metadata.get('domain', '')),
    sample_index=rollout.index,
    greedy=greedy,
    rollout_id=rollout.rollout_id,
    reason=rollout.reason,
    seconds=float(rollout.timings.get('total', 0.0)),
    by_judge=dict(rollout.extra.get('by_judge') or {}),
    judge=dict(rollout.extra.get('judge') or {}),
    flags=tuple(rollout.extra.get('flags') or ()),
  )


def trial_to_json(item: Trial) -> dict[str, Any]:
  """A JSON-ready dict."""
  return dataclasses.asdict(item)


def trial_from_json(data: Mapping[str, Any]) -> Trial:
  """Inverse of `trial_to_json`; keys that are not ours are ignored.

  A reward that is no finite number is unknown, never 0.
  """
  names = {f.name for f in dataclasses.fields(Trial)}
  fields = {k: v for k, v in data.items() if k in names and v is not None}
  reward = fields.get('reward')
  if not isinstance(reward, (int, float)) or not math.isfinite(reward):
    fields['reward'] = None
  fields['flags'] = tuple(fields.get('flags', ()))
  return Trial(**fields)


# ---- scores of a task ------------------------------------------------------


def solved(reward: float, threshold: float = SUCCESS) -> bool:
  """Whether a score reaches the threshold, but for rounding."""
  return reward >= threshold - _ROUNDING


def pass_at_k(n: int, c: int, k: int) -> float:
  """Unbiased chance that one of k samples succeeds, c of n having done so.

  1 - C(n - c, k) / C(n, k), the estimator of Chen et al. 2021 (Codex), eq. 1.
  """
  _check_counts(n, c, k)
  return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
  """Unbiased chance that all of k samples succeed, c of n having done so.

  C(c, k) / C(n, k), the estimator of Yao et al. 2024 (tau-bench).
  """
  _check_counts(n, c, k)
  return math.comb(c, k) / math.comb(n, k)


def _check_counts(n: int, c: int, k: int) -> None:
  if not 0 <= c <= n or not 1 <= k <= n:
    raise ValueError(f'wanted 0 <= c <= n and 1 <= k <= n, got {n=} {c=} {k=}')


def by_task(trials: Iterable[Trial]) -> dict[str, list[float]]:
  """Task id -> scores of its scored trials (tasks without any left out)."""
  rewards: dict[str, list[float]] = {}
  for item in trials:
    if item.scored:
      rewards.setdefault(item.task_id, []).append(float(item.reward))
  return rewards


def task_means(trials: Iterable[Trial]) -> dict[str, float]:
  """Task id -> mean score over its scored trials."""
  return {k: float(np.mean(v)) for k, v in by_task(trials).items()}


# ---- means over tasks ------------------------------------------------------


def bootstrap(
  values: Sequence[float] | np.ndarray,
  *,
  level: float = 0.95,
  resamples: int = 2000,
  seed: int = 0,
) -> tuple[float, float]:
  """Percentile interval of the mean of `values`, resampled with replacement.

  Returns:
    (low, high); NaN for no value; the value twice for one value.
  """
  data = np.asarray(values, np.float64)
  if data.size == 0:
    return math.nan, math.nan
  rng = np.random.default_rng(seed)
  means = np.empty(resamples)
  # In blocks, so that 100,000 tasks need no gigabytes.
  block = max(1, 4_000_000 // data.size)
  for start in range(0, resamples, block):
    stop = min(start + block, resamples)
    index = rng.integers(data.size, size=(stop - start, data.size))
    means[start:stop] = data[index].mean(axis=1)
  tail = 50.0 * (1.0 - level)
  low, high = np.percentile(means, [tail, 100.0 - tail])
  return float(low), float(high)


def estimate(
  values: Sequence[float], *, level: float = 0.95, seed: int = 0
) -> Estimate:
  """Mean and bootstrap interval of one number per task."""
  if not len(values):
    return Estimate(math.nan, math.nan, math.nan, 0)
  low, high = bootstrap(values, level=level, seed=seed)
  return Estimate(float(np.mean(values)), low, high, len(values))


def pass1(trials: Iterable[Trial], *, seed: int = 0) -> Estimate:
  """Mean score: over the samples of a task, then over tasks."""
  return estimate(list(task_means(trials).values()), seed=seed)


def success(
  trials: Iterable[Trial], *, threshold: float = SUCCESS, seed: int = 0
) -> Estimate:
  """Share of samples that reach `threshold`, mean over tasks."""
  return estimate(
    [
      float(np.mean([solved(r, threshold) for r in rewards]))
      for rewards in by_task(trials).values()
    ],
    seed=seed,
  )


def _over_k(
  trials: Iterable[Trial],
  k: int,
  one: Callable[[int, int, int], float],
  threshold: float,
  seed: int,
) -> Estimate:
  return estimate(
    [
      one(len(r), sum(solved(x, threshold) for x in r), k)
      for r in by_task(trials).values()
      if len(r) >= k
    ],
    seed=seed,
  )


def pass_at(
  trials: Iterable[Trial],
  k: int,
  *,
  threshold: float = SUCCESS,
  seed: int = 0,
) -> Estimate:
  """Pass@k over the tasks that have at least k scored samples."""
  return _over_k(trials, k, pass_at_k, threshold, seed)


def pass_hat(
  trials: Iterable[Trial],
  k: int,
  *,
  threshold: float = SUCCESS,
  seed: int = 0,
) -> Estimate:
  """Pass^k over the tasks that have at least k scored samples."""
  return _over_k(trials, k, pass_hat_k, threshold, seed)


def summarise(
  trials: Sequence[Trial],
  *,
  ks: Sequence[int] | None = None,
  threshold: float = SUCCESS,
  seed: int = 0,
) -> Summary:
  """All scores of `trials`, which should be one harness and one sampling.

  Args:
    trials: scored or not.
    ks: values of k for Pass@k and Pass^k; default: powers of two up to the
      largest number of scored samples that a task has.
    threshold: score that counts as a success.
    seed: of the bootstrap.
  """
  rewards = by_task(trials)
  most = max((len(r) for r in rewards.values()), default=0)
  if ks is None:
    ks = [2**i for i in range(1, 10) if 2**i <= most]
  scored = [t for t in trials if t.scored]
  errors = collections.Counter(
    t.outcome if t.outcome not in types.SCORED_OUTCOMES else 'no_reward'
    for t in trials
    if not t.scored
  )
  return Summary(
    tasks=len(rewards),
    unscored_tasks=len({t.task_id for t in trials} - set(rewards)),
    trials=len(trials),
    scored=len(scored),
    zeros=sum(t.reward == 0 for t in scored),
    errors=dict(sorted(errors.items())),
    pass1=pass1(trials, seed=seed),
    success=success(trials, threshold=threshold, seed=seed),
    pass_at={k: pass_at(trials, k, threshold=threshold, seed=seed) for k in ks},
    pass_hat={
      k: pass_hat(trials, k, threshold=threshold, seed=seed) for k in ks
    },
  )


# ---- parts and pairs -------------------------------------------------------


def split(
  trials: Iterable[Trial], key: str = 'family'
) -> dict[str, list[Trial]]:
  """Value of a field -> its trials, sorted by value ('' stays '')."""
  parts: dict[str, list[Trial]] = {}
  for item in trials:
    parts.setdefault(getattr(item, key), []).append(item)
  return dict(sorted(parts.items()))


def weighted(
  trials: Sequence[Trial], weights: Mapping[str, float], *, key: str = 'domain'
) -> float:
  """Pass@1 with a benchmark's own weights: sum w_d * mean_d / sum w_d.

  With the task counts of the full benchmark as weights this is the paper's
  average even when some tasks could not be scored. NaN unless every domain
  with a weight has a scored task: a missing column is not a zero.
  """
  means = {k: pass1(v).value for k, v in split(trials, key).items()}
  used = {k: w for k, w in weights.items() if w > 0}
  if not used:
    return math.nan
  total = sum(w * means.get(k, math.nan) for k, w in used.items())
  return total / sum(used.values())


@dataclasses.dataclass(frozen=True)
class Difference:
  """What changed from one run to another on the tasks that both scored.

  Attributes:
    before, after: means over the common tasks.
    change: after - before with its interval.
    better, worse, equal: numbers of tasks.
    p_value: two-sided, of no difference (random sign flips of the per-task
      differences); NaN when there is no common task.
  """

  before: float
  after: float
  change: Estimate
  better: int
  worse: int
  equal: int
  p_value: float


def difference(
  before: Iterable[Trial],
  after: Iterable[Trial],
  *,
  threshold: float | None = None,
  level: float = 0.95,
  seed: int = 0,
) -> Difference:
  """Compares two runs task by task.

  Args:
    before, after: trials of either run.
    threshold: compare success rates at it; None: mean scores.
    level: of the interval.
    seed: of the bootstrap and of the sign flips.
  """

  def one(rewards: list[float]) -> float:
    if threshold is None:
      return float(np.mean(rewards))
    return float(np.mean([solved(r, threshold) for r in rewards]))

  a = {k: one(v) for k, v in by_task(before).items()}
  b = {k: one(v) for k, v in by_task(after).items()}
  common = sorted(a.keys() & b.keys())
  deltas = np.array([b[k] - a[k] for k in common], np.float64)
  nan = math.nan
  return Difference(
    before=float(np.mean([a[k] for k in common])) if common else nan,
    after=float(np.mean([b[k] for k in common])) if common else nan,
    change=estimate(list(deltas), level=level, seed=seed),
    better=int((deltas > _ROUNDING).sum()),
    worse=int((deltas < -_ROUNDING).sum()),
    equal=int((np.abs(deltas) <= _ROUNDING).sum()),
    p_value=_sign_flip(deltas, seed=seed) if common else nan,
  )


def _sign_flip(
  deltas: np.ndarray, *, seed: int, flips: int = 10_000, exact_up_to: int = 12
) -> float:
  """Share of sign assignments whose mean is at least as far from 0."""
  deltas = deltas[np.abs(deltas) > _ROUNDING]  # zeros have no sign to flip
  n = deltas.size
  if n == 0:
    return 1.0
  seen = abs(deltas.sum()) - _ROUNDING
  if n <= exact_up_to:
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return float((np.abs((2 * bits - 1) @ deltas) >= seen).mean())
  rng = np.random.default_rng(seed)
  far = 0
  block = max(1, 4_000_000 // n)
  for start in range(0, flips, block):
    count = min(block, flips - start)
    signs = rng.integers(2, size=(count, n)) * 2 - 1
    far += int((np.abs(signs @ deltas) >= seen).sum())
  return (far + 1) / (flips + 1)  # the seen assignment is one of them
