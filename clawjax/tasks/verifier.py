"""Scores a final workspace with the task's own grader, in a fresh sandbox.

  workspace (path -> bytes) + task.verifier  ->  Score(reward, checks)

The agent's sandbox is gone by now: a new one gets a copy of the workspace, the
hidden files at `/verifier`, and runs the grader there, with limits and without
network. What the grader prints is read strictly. A grader that crashes, hangs,
prints nothing, prints NaN or a number outside [0, 1] has not said 0: it has
said nothing, and that is a `VerifierError`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.sandbox import base

VERIFIER = '/verifier'
TRANSCRIPT = f'{VERIFIER}/transcript.json'
_REWARD_FILES = ('/logs/verifier/reward.json', '/logs/verifier/reward.txt')
LIMITS = base.Limits(memory_bytes=1024 * base.MIB, processes=128)


@dataclasses.dataclass(frozen=True)
class Score:
  """What a verifier said of one workspace.

  Attributes:
    reward: in [0, 1].
    checks: parts by name, each in [0, 1].
    seconds: wall time of the grader.
    notes: what a judge said, or why a part is missing.
  """

  reward: float
  checks: Mapping[str, float] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0
  notes: str = ''


async def verify(
  task: types.Task,
  workspace: Mapping[str, bytes],
  backend: base.Backend,
  *,
  transcript: Sequence[types.Message] | None = None,
  limits: base.Limits = LIMITS,
) -> Score:
  """Runs the grader of `task` on a copy of `workspace`.

  Args:
    task: with a verifier.
    workspace: relative path -> content, as the agent left it.
    backend: makes the sandbox.
    transcript: the run's messages, for graders that read them.
    limits: of the sandbox; time comes from the verifier.

  Raises:
    VerifierError: there is no usable reward.
    SandboxError: the sandbox could not be made or used.
  """
  verifier = task.verifier
  if verifier is None:
    raise errors.VerifierError(f'{task.id}: the task has no verifier')
  sandbox = await backend.create(
    base.SandboxSpec.of(limits, label=f'verify {task.id}')
  )
  try:
    for path, content in workspace.items():
      await sandbox.write(f'{base.WORKSPACE}/{path}', content)
    for path, content in verifier.files.items():
      await sandbox.write(f'{VERIFIER}/{path}', content, 0o755)
    if transcript is not None:
      lines = [dataclasses.asdict(message) for message in transcript]
      await sandbox.write(TRANSCRIPT, json.dumps(lines).encode())
    result = await sandbox.exec(
      verifier.command, cwd=base.WORKSPACE, timeout_s=verifier.timeout_s
    )
    try:
      return await _read(verifier, sandbox, result)
    except ValueError as error:
      tail = result.stderr[-300:].decode('utf-8', 'replace').strip()
      raise errors.VerifierError(
        f'{task.id}: {error}' + (f'; stderr ends: {tail}' if tail else '')
      ) from error
  finally:
    await sandbox.destroy()


async def _read(
  verifier: types.Verifier, sandbox: base.Sandbox, result: base.ExecResult
) -> Score:
  """The score from what the grader left; ValueError when there is none."""
  if result.timed_out:
    raise ValueError(f'the grader ran past {verifier.timeout_s:g} s')
  if result.killed_for or result.out_of_memory:
    raise ValueError(f'the grader ran into {result.killed_for or "memory"}')
  if verifier.output == 'harbor':
    files = []
    for path in _REWARD_FILES:
      try:
        files.append(await sandbox.read(path))
      except FileNotFoundError:
        files.append(None)
    reward, checks = parse_harbor(*files)
  else:
    if result.returncode:
      raise ValueError(f'the grader ended with status {result.returncode}')
    if result.truncated:
      raise ValueError('the grader printed more than is read')
    text = result.stdout.decode('utf-8', 'replace')
    parse = {'json_line': parse_json_line, 'float_line': parse_float_line}
    reward, checks = parse[verifier.output](text)
  return Score(reward, checks, result.seconds)


# ---- reading rewards -------------------------------------------------------


def parse_json_line(text: str) -> tuple[float, dict[str, float]]:
  """Reward and checks from the last line: `{"reward": x, "checks": {...}}`.

  Without `reward` the mean of the checks; a flat object of numbers is taken as
  checks.

  Raises:
    ValueError: nothing usable is there.
  """
  data = _json(last_line(text))
  if not isinstance(data, dict):
    raise ValueError(f'wanted a JSON object, got {type(data).__name__}')
  if 'checks' in data or 'reward' in data:
    checks = data.get('checks', {})
  else:
    checks = data
  if not isinstance(checks, dict):
    raise ValueError(f'wanted checks by name, got {type(checks).__name__}')
  checks = {str(k): unit(v, f'check {k!r}') for k, v in checks.items()}
  if 'reward' in data:
    return unit(data['reward'], 'reward'), checks
  if not checks:
    raise ValueError('the grader gave neither a reward nor a check')
  return sum(checks.values()) / len(checks), checks


def parse_float_line(text: str) -> tuple[float, dict[str, float]]:
  """Reward from a last line that is one float."""
  line = last_line(text)
  try:
    number = float(line)
  except ValueError:
    raise ValueError(f'wanted one number, got {line[:80]!r}') from None
  return unit(number, 'reward'), {}


def parse_harbor(
  reward_json: bytes | None, reward_txt: bytes | None
) -> tuple[float, dict[str, float]]:
  """Reward from Harbor's files; `reward.json` goes before `reward.txt`."""
  if reward_json is not None:
    data = _json(reward_json.decode('utf-8', 'replace'))
    if not isinstance(data, dict) or 'reward' not in data:
      raise ValueError("wanted reward.json with a key 'reward'")
    parts = {str(k): finite(v, f'key {k!r}') for k, v in data.items()}
    reward = unit(parts.pop('reward'), 'reward')
    return reward, parts
  if reward_txt is not None:
    return parse_float_line(reward_txt.decode('utf-8', 'replace'))
  raise ValueError('the grader left neither reward.json nor reward.txt')


def last_line(text: str) -> str:
  """The last line that is not blank."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  if not lines:
    raise ValueError('the grader printed nothing')
  return lines[-1]


def finite(value: Any, what: str) -> float:
  """A finite number (true and false count as 1 and 0)."""
  if not isinstance(value, (bool, int, float)):
    raise ValueError(f'{what}: wanted a number, got {value!r:.80}')
  if not math.isfinite(value):
    raise ValueError(f'{what} is {value}, wanted a finite number')
  return float(value)


def unit(value: Any, what: str) -> float:
  """A number in [0, 1]; never clamped."""
  number = finite(value, what)
  if not 0.0 <= number <= 1.0:
    raise ValueError(f'{what} is {number:g}, wanted a number from 0 to 1')
  return number


def _json(text: str) -> Any:
  try:
    return json.loads(text)
  except ValueError:
    raise ValueError(f'wanted JSON, got {text[:80]!r}') from None
