"""What a harness is: data about a program that we run and did not write.

  Harness.plan(turns, base_url, model) -> Plan: files, command lines, env,
  mounts: all that `rollout.run` needs to start it in a sandbox.

The program runs unmodified. Its only link to the model is `base_url`, which it
reaches on loopback inside the sandbox, in its own API dialect. HOME is fresh
in each rollout; telemetry, updates and all retries beyond one are off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from clawjax.errors import HarnessError
from clawjax.tasks import needs
from clawjax.types import Task

# Where things lie inside a sandbox.
PACKAGES = '/opt/harness'
NODE = '/opt/node'
CACHE = '/opt/harness-cache'
MODEL = 'policy'


@dataclasses.dataclass(frozen=True)
class Plan:
  """How to run a harness on one task.

  Attributes:
    files: path -> content, written before the first turn; a relative path is
      below HOME.
    argv: one command line per user message, run one after the other; or one
      for all of them, which reads them from its stdin.
    env: variables for each of them.
    readonly: (host path, inside path) pairs to mount.
    ok_codes: exit codes that mean the harness ended by itself.
    stdin: what each command reads, or empty.
  """

  files: Mapping[str, bytes]
  argv: tuple[tuple[str, ...], ...]
  env: Mapping[str, str]
  readonly: tuple[tuple[str, str], ...] = ()
  ok_codes: tuple[int, ...] = (0,)
  stdin: tuple[bytes, ...] = ()


class Harness(Protocol):
  """A harness with its options; see `clawjax.harness.load`.

  Attributes:
    name: as in configs and reports.
    version: of the program, as pinned.
    dialect: 'chat', 'messages' or 'responses'.
    rules: names of the proxy's normalisation rules for its volatile spans.
    multi_turn: several user messages in one session are possible.
  """

  name: str
  version: str
  dialect: str
  rules: tuple[str, ...]
  multi_turn: bool

  def installed(self) -> bool:
    """Whether `plan` would find all it mounts."""

  def install(self) -> None:
    """Fetches the pinned program; does nothing the second time.

    Raises:
      HarnessError: it cannot be fetched.
    """

  async def prepare(self, backend: Any) -> None:
    """Makes what shortens its start-up, once per machine; may do nothing."""

  def plan(
    self, turns: Sequence[str], *, base_url: str, model: str = MODEL
  ) -> Plan:
    """Files, command lines and environment for a task's user messages.

    Args:
      turns: user messages in order.
      base_url: the session's endpoint, without '/v1', on loopback.
      model: name that the harness asks for.
    """


def check_turns(harnesses: Sequence[Harness], tasks: Sequence[Task]) -> None:
  """Whether each harness can take all user messages of each task.

  Raises:
    HarnessError: one takes a single message and a session of a task has more.
    TaskError: the sessions of a task cannot be told.
  """
  longest = {t.id: max(map(len, needs.sessions(t)), default=0) for t in tasks}
  several = [id for id, turns in longest.items() if turns > 1]
  single = [h.name for h in harnesses if not h.multi_turn]
  if several and single:
    raise HarnessError(
      f'{" and ".join(single)}: one user message a session, and {len(several)}'
      f' of {len(tasks)} tasks have more (the first is {several[0]}, with'
      f' {longest[several[0]]}): leave these out, or use'
      ' other harnesses'
    )
