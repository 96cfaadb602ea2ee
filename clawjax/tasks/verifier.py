"""Scores a final workspace: the task's own grader in a fresh sandbox, a judge,
or both.

  workspace (path -> bytes) + task.verifier  ->  Score(reward, checks)

The agent's sandbox is gone by now: a new one gets a copy of the workspace, the
hidden files at `/verifier` (Harbor's at `/tests`), and runs the grader there,
with limits and without network. What the grader prints is read strictly. A
grader that crashes, hangs, prints nothing, prints NaN or a number outside
[0, 1] has not said 0: it has said nothing, and that is a `VerifierError`. The
same goes for a judge.

A task with `metadata['judge']` is scored by a judge too, and the two sides are
mixed by `metadata['weights']`; `metadata['hybrid'] == 'penalised'` lets the
judge count only from 0.75 of the grader on (QwenClawBench).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.sandbox import base
from clawjax.tasks import judge as judge_lib
from clawjax.tasks import needs, rubric, scoring
from clawjax.tasks import transcript as transcript_lib

VERIFIER = '/verifier'
HARBOR_TESTS = '/tests'
# The run, for graders: canonical messages, and OpenClaw's events.
TRANSCRIPT = f'{VERIFIER}/transcript.json'
EVENTS = f'{VERIFIER}/events.json'
_REWARD_FILES = ('/logs/verifier/reward.json', '/logs/verifier/reward.txt')
LIMITS = base.Limits(memory_bytes=1024 * base.MIB, processes=128)
PENALTY_BELOW = 0.75


@dataclasses.dataclass(frozen=True)
class Score:
  """What a verifier said of one workspace.

  Attributes:
    reward: in [0, 1].
    checks: parts by name, each in [0, 1] (further keys of Harbor's
      reward.json: any finite number).
    seconds: wall time of grader and judge.
    notes: what a judge or a grader remarked.
    parts: 'code' and 'rubric', the two sides before they are mixed.
    by_judge: value of each judge, by model name.
    judge: what the judges took: calls, tokens, seconds, cost; {} without any.
  """

  reward: float
  checks: Mapping[str, float] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0
  notes: str = ''
  parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
  by_judge: Mapping[str, float] = dataclasses.field(default_factory=dict)
  judge: Mapping[str, Any] = dataclasses.field(default_factory=dict)


async def verify(
  task: types.Task,
  workspace: Mapping[str, bytes],
  backend: base.Backend,
  *,
  transcript: Sequence[types.Message] | None = None,
  judge: judge_lib.Scorer | None = None,
  code_only: bool = False,
  renormalise_missing: bool = False,
  aliases: bool = True,
  executable: Sequence[str] | None = None,
  limits: base.Limits = LIMITS,
) -> Score:
  """Scores `workspace`.

  Args:
    task: with a verifier, a judge's rubric, or both.
    workspace: relative path -> content, as the agent left it.
    backend: makes the sandbox of the grader.
    transcript: the run's messages, for graders and judges that read them.
    judge: scores the rubric.
    code_only: leave the rubric out where there is a grader. Such a score must
      not be set beside hybrid ones.
    renormalise_missing: when one side gives no number, the other stands alone
      (as the public ClawGym-Bench runner is reported to do); else an error.
    aliases: give graders OpenClaw's tool names whatever the harness.
    executable: files that may be run, as the agent left them; None: those of
      the task.
    limits: of the sandbox; time comes from the verifier.

  Raises:
    VerifierError: there is no usable reward.
    SandboxError: the sandbox could not be made or used.
  """
  asked = task.metadata.get('judge')

  async def grade() -> Score:
    return await _run_grader(
      task, workspace, backend, transcript, aliases, executable, limits
    )

  if task.verifier is None and not asked:
    raise errors.VerifierError(f'{task.id}: the task has no verifier')
  if not asked or (code_only and task.verifier is not None):
    return await grade()
  weights = task.metadata.get('weights') or {'rubric': 1.0}
  if judge is None:
    raise errors.VerifierError(
      f'{task.id}: the task has a rubric and no judge is configured; give a '
      'judge, or code_only to leave the rubric out'
    )
  code = failed = None
  if task.verifier is not None and weights.get('code', 0.0) > 0:
    try:
      code = await grade()
    except errors.VerifierError as error:
      if not renormalise_missing:
        raise
      failed = error
  if (
    task.metadata.get('hybrid') == 'penalised'
    and code is not None
    and code.reward < PENALTY_BELOW
  ):
    verdict: judge_lib.Verdict | None = judge_lib.Verdict(
      0.0, notes=f'judge not asked: the grader gave {code.reward:g}'
    )
  else:
    start = asyncio.get_running_loop().time()
    try:
      verdict = await judge.score(task, workspace, transcript)
    except errors.VerifierError:
      if not renormalise_missing or code is None:
        raise
      verdict = None
    waited = asyncio.get_running_loop().time() - start
    if code is not None:
      code = dataclasses.replace(code, seconds=code.seconds + waited)
  return _mixed(task, code, verdict, weights, failed)


def _mixed(
  task: types.Task,
  code: Score | None,
  verdict: judge_lib.Verdict | None,
  weights: Mapping[str, float],
  failed: errors.VerifierError | None,
) -> Score:
  """One score of two sides."""
  used = dict(weights)
  notes = [verdict.notes if verdict else 'no judge: the grader stands alone']
  if code is None and failed is not None:
    used['code'] = 0.0
    notes.append(f'no grader: the judge stands alone ({failed})')
  if verdict is None:
    used['rubric'] = 0.0
  try:
    reward = rubric.mix(
      code.reward if code else None, verdict.value if verdict else None, used
    )
  except ValueError as error:
    raise errors.VerifierError(f'{task.id}: {error}') from error
  parts = {}
  if code is not None:
    parts['code'] = code.reward
  if verdict is not None:
    parts['rubric'] = verdict.value
  return Score(
    reward,
    {**(code.checks if code else {}), **(verdict.scores if verdict else {})},
    code.seconds if code else 0.0,
    '\n'.join(n for n in notes if n),
    parts,
    verdict.by_judge if verdict else {},
    scoring.facts(verdict.used, verdict.cost) if verdict else {},
  )


# ---- the grader ------------------------------------------------------------


async def _run_grader(
  task: types.Task,
  workspace: Mapping[str, bytes],
  backend: base.Backend,
  transcript: Sequence[types.Message] | None,
  aliases: bool,
  executable: Sequence[str] | None,
  limits: base.Limits,
) -> Score:
  verifier = task.verifier
  assert verifier is not None
  harbor = verifier.output == 'harbor'
  with tempfile.TemporaryDirectory(prefix='clawjax-tests-') as name:
    readonly = ()
    if harbor:  # its scripts name /tests
      _write_tree(pathlib.Path(name), verifier.files)
      readonly = ((name, HARBOR_TESTS),)
    spec = needs.spec(
      task, limits, backend, readonly=readonly, label=f'verify {task.id}'
    )
    sandbox = await backend.create(spec)
    try:
      await needs.fill(sandbox, task, workspace, executable=executable)
      hidden = {} if harbor else dict(verifier.files)
      if transcript is not None:
        plain = [dataclasses.asdict(message) for message in transcript]
        hidden['transcript.json'] = json.dumps(plain).encode()
      events = transcript_lib.openclaw_events(transcript or (), aliases=aliases)
      hidden['events.json'] = json.dumps(events).encode()
      for path, content in hidden.items():
        await sandbox.write(f'{VERIFIER}/{path}', content, 0o755)
      result = await sandbox.exec(
        verifier.command,
        cwd=base.WORKSPACE,
        env=task.metadata.get('verifier_env') or None,
        timeout_s=verifier.timeout_s,
      )
      try:
        return await _read(task, verifier, sandbox, result)
      except ValueError as error:
        tail = result.stderr[-300:].decode('utf-8', 'replace').strip()
        raise errors.VerifierError(
          f'{task.id}: {error}' + (f'; stderr ends: {tail}' if tail else '')
        ) from error
    finally:
      # A known score is not lost to a slow clean-up; a sweep takes the rest.
      with contextlib.suppress(errors.SandboxError):
        await sandbox.destroy()


def _write_tree(root: pathlib.Path, files: Mapping[str, bytes]) -> None:
  root.chmod(0o755)
  for path, content in files.items():
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755)
  for folder in root.rglob('*/'):
    folder.chmod(0o755)


async def _read(
  task: types.Task,
  verifier: types.Verifier,
  sandbox: base.Sandbox,
  result: base.ExecResult,
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
    key = str(task.metadata.get('reward_key', 'reward'))
    reward, checks = parse_harbor(*files, key=key)
  else:
    if result.returncode:
      raise ValueError(f'the grader ended with status {result.returncode}')
    if result.truncated:
      raise ValueError('the grader printed more than is read')
    text = result.stdout.decode('utf-8', 'replace')
    parse = {'json_line': parse_json_line, 'float_line': parse_float_line}
    reward, checks = parse[verifier.output](text)
    if verifier.output == 'json_line':
      notes = str(_json(last_line(text)).get('notes') or '')
      return Score(reward, checks, result.seconds, notes)
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
    checks = data.get('checks') or {}
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
  reward_json: bytes | None, reward_txt: bytes | None, *, key: str = 'reward'
) -> tuple[float, dict[str, float]]:
  """Reward from Harbor's files; `reward.json` goes before `reward.txt`.

  Args:
    reward_json: a flat object of finite numbers, or None.
    reward_txt: one finite float, or None.
    key: which number of the object is the reward; the rest are checks.
  """
  if reward_json is not None:
    data = _json(reward_json.decode('utf-8', 'replace'))
    if not isinstance(data, dict) or key not in data:
      raise ValueError(f'wanted reward.json with a key {key!r}')
    parts = {str(k): finite(v, f'key {k!r}') for k, v in data.items()}
    reward = unit(parts.pop(key), key)
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
