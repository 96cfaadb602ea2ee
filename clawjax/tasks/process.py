"""Process rewards: what each call of a rollout added to the final score.

Off by default; the paper scores a rollout once. With snapshots of the workspace
at tool boundaries, the same verifier scores each of them, and the reward of call
k is how much the score rose with it. With monotone check-points a check that was
once passed stays counted, so that tidying up afterwards takes nothing back and
the rewards sum to the best value of each check; without, a fall is negative and
the rewards sum to the final score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from clawjax import types
from clawjax.sandbox import base
from clawjax.tasks import verifier


async def snapshot_scores(
  task: types.Task,
  snapshots: Sequence[Mapping[str, bytes]],
  backend: base.Backend,
) -> list[verifier.Score]:
  """Scores of workspaces in order; equal ones are scored once.

  Args:
    task: with a grader (judges are not asked in between).
    snapshots: workspaces, the untouched one first.
    backend: makes the sandboxes.

  Raises:
    VerifierError: one of them gives no usable reward.
  """
  known: dict[str, verifier.Score] = {}
  scores = []
  for files in snapshots:
    key = _digest(files)
    if key not in known:
      known[key] = await verifier.verify(task, files, backend, code_only=True)
    scores.append(known[key])
  return scores


def rises(rewards: Sequence[float], *, monotone: bool = True) -> list[float]:
  """Reward of each call from the scores around it.

  Args:
    rewards: [K + 1] scores of the snapshots: before call 0, after call 0, ...
    monotone: count the best score so far instead of the present one.

  Returns:
    [K] rewards; they sum to (best or last) - first.
  """
  if not rewards:
    raise ValueError('wanted the score of the untouched workspace at least')
  levels = list(rewards)
  if monotone:
    for index in range(1, len(levels)):
      levels[index] = max(levels[index], levels[index - 1])
  return [b - a for a, b in zip(levels[:-1], levels[1:], strict=True)]


def levels(scores: Sequence[verifier.Score], how: str) -> list[float]:
  """One number per snapshot, to be given to `rises`.

  Args:
    scores: of the snapshots in order.
    how: 'last' or 'best': the reward as it is; 'checks': see `check_points`.
  """
  if how == 'checks':
    return check_points(scores)
  return [score.reward for score in scores]


def check_points(
  scores: Sequence[verifier.Score], names: Sequence[str] | None = None
) -> list[float]:
  """Scores with every check held at its best so far.

  Args:
    scores: of the snapshots in order.
    names: checks that count, equally; None: those of the last score.

  Returns:
    [len(scores)] non-decreasing values in [0, 1], to be given to `rises`.
  """
  names = list(scores[-1].checks) if names is None else list(names)
  if not names:
    raise ValueError('the verifier names no checks')
  best = dict.fromkeys(names, 0.0)
  levels = []
  for score in scores:
    for name in names:
      best[name] = max(best[name], score.checks.get(name, 0.0))
    levels.append(sum(best.values()) / len(names))
  return levels


def _digest(files: Mapping[str, bytes]) -> str:
  state = hashlib.blake2b(digest_size=16)
  for path in sorted(files):
    for part in (path.encode(), files[path]):
      state.update(len(part).to_bytes(8, 'little') + part)
  return state.hexdigest()
