"""How rollouts are scored, as plain data, and the judges that this names.

`Scoring` travels with the limits of a rollout, to another process where need
be. A judge is made where it is used, one for each event loop, so that all
rollouts there share its limit on concurrent requests:

  judge = judge_of(scoring.judges)      # None, a `Judge` or a `Panel`
  await close_judges()                  # before the loop ends
"""

from __future__ import annotations

import asyncio
import dataclasses
import weakref
from collections.abc import Mapping
from typing import Any, Literal

from clawjax import types
from clawjax.tasks import judge as judge_lib

Process = Literal['off', 'last', 'best', 'checks']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scoring:
  """What a score is made of.

  Attributes:
    judges: models that grade rubrics; several are a panel, whose mean counts.
    code_only: leave rubrics out where there is a grader; such scores must not
      be set beside hybrid ones.
    renormalise_missing: a side without a number leaves the other alone, instead
      of being an error.
    aliases: graders see OpenClaw's tool names, whatever the harness.
    process: score the workspace before each call too, for rewards of calls:
      'last' counts every rise and fall, 'best' the best score so far, 'checks'
      each check at its best so far. 'off': only the final workspace.
    canaries: plant files that only somebody looking for answers would open.
  """

  judges: tuple[judge_lib.JudgeConfig, ...] = ()
  code_only: bool = False
  renormalise_missing: bool = False
  aliases: bool = True
  process: Process = 'off'
  canaries: bool = False

  def __post_init__(self):
    names = [j.model for j in self.judges]
    if len(set(names)) != len(names):
      raise ValueError(f'wanted judges with distinct models, got {names}')


_judges: weakref.WeakKeyDictionary[
  asyncio.AbstractEventLoop, dict[Any, judge_lib.Judge | judge_lib.Panel]
] = weakref.WeakKeyDictionary()


def judge_of(
  configs: tuple[judge_lib.JudgeConfig, ...],
) -> judge_lib.Judge | judge_lib.Panel | None:
  """The judge of the running loop for these configs; None without any."""
  if not configs:
    return None
  made = _judges.setdefault(asyncio.get_running_loop(), {})
  if configs not in made:
    judges = [judge_lib.Judge(config) for config in configs]
    made[configs] = judges[0] if len(judges) == 1 else judge_lib.Panel(judges)
  return made[configs]


async def close_judges() -> None:
  """Closes the connections of all judges of the running loop."""
  for made in _judges.pop(asyncio.get_running_loop(), {}).values():
    await made.close()


def facts(used: judge_lib.Account, cost: float | None) -> Mapping[str, Any]:
  """What judges did for one rollout, JSON-ready; see `judge.Account`."""
  values = dataclasses.asdict(used)
  values['seconds'] = round(used.seconds, 4)
  return values | ({} if cost is None else {'cost': cost})


# Options of a judge that change how it is asked, not what it says.
_HOW = ('api_key_env', 'timeout_s', 'retries', 'backoff_s', 'concurrency')
_HOW += ('cache_dir', 'price_in', 'price_out')


def identity(scoring: Scoring) -> dict[str, Any]:
  """What of it can change a score: scores under two of these do not mix."""
  found = dataclasses.asdict(scoring)
  found['judges'] = [
    {k: v for k, v in judge.items() if k not in _HOW}
    for judge in found['judges']
  ]
  return found


def wants_judge(task: types.Task, scoring: Scoring) -> bool:
  """Whether a judge will be asked about this task."""
  if 'judge' not in task.metadata:
    return False
  return not (scoring.code_only and task.verifier is not None)
