"""Scores what a rollout left: graders and judges, flags, rewards of calls.

  final        the score of the final workspace
  flags        signs of a reward that was not earned
  process      rewards of single calls, from workspaces at tool boundaries

A call is made when the tools of the call before have ended. The proxy holds it
back (`gate`) until the workspace is copied, so a snapshot never shows half of
what a tool did.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.sandbox import base
from clawjax.tasks import guards, verifier
from clawjax.tasks import process as process_lib
from clawjax.tasks import scoring as scoring_lib


async def final(
  task: types.Task,
  workspace: Mapping[str, bytes],
  backend: base.Backend,
  *,
  transcript: Sequence[types.Message] | None,
  executable: Sequence[str],
  scoring: scoring_lib.Scoring,
) -> verifier.Score:
  """The score of the workspace as the agent left it.

  Raises:
    VerifierError: grader or judge gave no usable number, for whatever reason.
    SandboxError, TaskError: a fault of ours.
  """
  judge = None
  if scoring_lib.wants_judge(task, scoring):
    judge = scoring_lib.judge_of(scoring.judges)
  try:
    return await verifier.verify(
      task,
      workspace,
      backend,
      transcript=transcript,
      judge=judge,
      code_only=scoring.code_only,
      renormalise_missing=scoring.renormalise_missing,
      aliases=scoring.aliases,
      executable=executable,
    )
  except errors.ClawjaxError:
    raise
  except Exception as e:
    raise errors.VerifierError(f'{task.id}: {type(e).__name__}: {e}') from e


def facts(score: verifier.Score) -> dict[str, Any]:
  """What a score is made of, for the record of the rollout."""
  found = {
    'parts': dict(score.parts),
    'by_judge': dict(score.by_judge),
    'judge': dict(score.judge),
    'notes': score.notes[:2000],
  }
  return {name: value for name, value in found.items() if value}


def flags(
  task: types.Task,
  workspace: Mapping[str, bytes],
  transcript: Sequence[types.Message],
  canaries: guards.Canaries | None,
) -> tuple[list[str], dict[str, bytes]]:
  """Remarks on the rollout, and the workspace without planted files."""
  found = [f'edited test {p}' for p in guards.edited_tests(task, workspace)]
  if canaries is None:
    return found, dict(workspace)
  read = guards.read_canaries(canaries, transcript, workspace)
  found += [f'read {path}' for path in read]
  kept = {p: d for p, d in workspace.items() if p not in canaries.tokens}
  return found, kept


# ---- rewards of calls ------------------------------------------------------


@dataclasses.dataclass
class Snapshots:
  """Workspaces before calls, taken as the calls come in.

  Attributes:
    sandbox: that the agent is in; None before and after.
    found: number of the call -> workspace.
    fault: why there are none ('' if nothing went wrong).
  """

  sandbox: base.Sandbox | None = None
  found: dict[int, dict[str, bytes]] = dataclasses.field(default_factory=dict)
  fault: str = ''

  async def take(self, index: int) -> None:
    """Copies the workspace before call number `index`; never raises."""
    if self.sandbox is None or self.fault:
      return
    try:
      self.found[index] = await self.sandbox.export()
    except errors.ClawjaxError as e:
      self.fault = str(e)


async def process(
  task: types.Task,
  snapshots: Snapshots,
  workspace: Mapping[str, bytes],
  calls: Sequence[types.Call],
  backend: base.Backend,
  *,
  how: str,
  left_out: Collection[str] = (),
) -> dict[str, Any]:
  """Rewards of the calls of the main agent.

  Args:
    task: with a grader.
    snapshots: the workspaces before the calls.
    workspace: the final one.
    calls: of the rollout; those of other roles count to the main call before.
    backend: makes the sandboxes of the grader.
    how: 'last', 'best' or 'checks', see `Scoring.process`.
    left_out: files to take out of the snapshots.

  Returns:
    'levels': the score before each main call and at the end, by `how`;
    'rewards': call id -> its rise; or 'fault' with the reason.
  """
  main = [
    c for c in calls if c.role == 'main' and c.status == 'ok' and not c.retry_of
  ]
  missing = [c.call_id for c in main if c.index not in snapshots.found]
  if snapshots.fault or missing or not main:
    why = snapshots.fault or f'no workspace before {missing or "any call"}'
    return {'fault': why}
  states = [
    {p: d for p, d in snapshots.found[c.index].items() if p not in left_out}
    for c in main
  ]
  try:
    scores = await process_lib.snapshot_scores(
      task, [*states, workspace], backend
    )
    levels = process_lib.levels(scores, how)
  except (errors.VerifierError, ValueError) as e:
    return {'fault': str(e)}
  rewards = process_lib.rises(levels, monotone=how != 'last')
  return {
    'levels': [round(v, 6) for v in levels],
    'rewards': {
      c.call_id: round(r, 6) for c, r in zip(main, rewards, strict=True)
    },
  }
