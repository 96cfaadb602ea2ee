"""One rollout, from an empty sandbox to a scored record.

  create -> write files -> harness (its calls go to the proxy) -> settle
  -> export the workspace -> destroy -> verify in a fresh sandbox -> Rollout

What the task asks of its sandbox is read in `tasks.needs`, how the result is
scored in `rollout.score`. A fault of one rollout is a record with a reason,
never an exception. Which fault leaves the rollout usable is decided here, in
`_outcome`: what the policy or the harness did is scored and kept; what our own
machinery did is not, and the fleet runs it again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from clawjax import types
from clawjax.errors import ClawjaxError, SandboxError, VerifierError
from clawjax.harness import Harness, openclaw
from clawjax.rollout import conversation
from clawjax.rollout import score as score_lib
from clawjax.sandbox import base
from clawjax.tasks import guards, needs, verifier
from clawjax.tasks.scoring import Scoring

PORT = 8899


@dataclasses.dataclass(frozen=True, kw_only=True)
class RolloutLimits:
  """What one rollout may use.

  Attributes:
    sandbox: memory, processes, disk of the agent's sandbox.
    time_limit_s: seconds for the harness; None: the task's own limit.
    sampling: overrides of the requests' sampling parameters.
    token_budget: most tokens sampled in a session, or None.
    settle_interval_s, settle_checks, settle_timeout_s: the session has
      settled when nothing was pending at so many looks in a row.
    destroy_timeout_s: then the destroy goes on by itself.
    scoring: judges and options of the score.
  """

  sandbox: base.Limits = base.Limits()
  time_limit_s: float | None = None
  sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  token_budget: int | None = None
  settle_interval_s: float = 0.05
  settle_checks: int = 2
  settle_timeout_s: float = 30.0
  destroy_timeout_s: float = 30.0
  scoring: Scoring = Scoring()


class Proxy(Protocol):
  """The part of the proxy that a rollout needs.

  Attributes:
    tokenizer: of the calls, to read the conversation from their ids; a proxy
      without token ids has `messages(id)` instead, the conversation itself.
  """

  def open(self, rollout_id: str, **options: Any) -> Any:
    """Starts a session: `.id`, `.path`."""

  def calls(self, id: str) -> tuple[types.Call, ...]:
    """What was captured, in order of arrival."""

  async def settle(self, id: str, **options: Any) -> bool:
    """Waits until nothing is pending."""

  def close(self, id: str) -> Any:
    """Ends the session; later requests are refused."""

  def stats(self, id: str) -> Any:
    """Served, captured and pending calls, seconds in the engine."""


@dataclasses.dataclass
class _Progress:
  """What is known so far; becomes the `Rollout`."""

  calls: tuple[types.Call, ...] = ()
  results: list[base.ExecResult] = dataclasses.field(default_factory=list)
  ok_codes: tuple[int, ...] = (0,)
  workspace: dict[str, bytes] | None = None
  executable: tuple[str, ...] = ()
  snapshots: score_lib.Snapshots | None = None
  canaries: guards.Canaries | None = None
  transcript: Sequence[types.Message] | None = None
  score: verifier.Score | None = None
  fault: str = ''
  verifier_fault: str = ''
  timings: dict[str, float] = dataclasses.field(default_factory=dict)
  telemetry: str = ''
  extra: dict[str, Any] = dataclasses.field(default_factory=dict)


class _Stage:
  """Times a stage; `with` it."""

  def __init__(self, progress: _Progress, name: str):
    self.timings, self.name = progress.timings, name

  def __enter__(self):
    self.start = time.monotonic()

  def __exit__(self, *_):
    spent = time.monotonic() - self.start
    self.timings[self.name] = self.timings.get(self.name, 0.0) + spent


async def run_rollout(
  task: types.Task,
  *,
  harness: Harness,
  backend: base.Backend,
  proxy: Proxy,
  socket_dir: pathlib.Path,
  rollout_id: str,
  index: int = 0,
  run_seed: int = 0,
  limits: RolloutLimits | None = None,
  out_dir: pathlib.Path | None = None,
  on_stage: Callable[[str], None] = lambda stage: None,
) -> types.Rollout:
  """Runs `harness` on `task` once and scores what it left.

  Args:
    task: what to do.
    harness: an installed harness.
    backend: makes the sandboxes.
    proxy: serves the model on `socket_dir`/proxy.sock.
    socket_dir: see `base.SandboxSpec`.
    rollout_id: unique; with `run_seed` it fixes all sampling.
    index: number within the group.
    run_seed: of the run.
    limits: see `RolloutLimits`.
    out_dir: run folder; what the harness printed goes to
      `telemetry/<rollout id>.log` below it.
    on_stage: told the name of each stage as it begins.

  Returns:
    The record, whatever happened; only cancellation gets out.
  """
  limits = limits or RolloutLimits()
  progress = _Progress()
  start = time.monotonic()
  try:
    await _run(
      task, harness, backend, proxy, socket_dir, rollout_id, run_seed, limits,
      out_dir, progress, on_stage,
    )  # fmt: skip
  except ClawjaxError as e:
    progress.fault = progress.fault or str(e)
  except Exception as e:  # a fault of ours: one rollout must not end the run
    progress.fault = progress.fault or f'{type(e).__name__}: {e}'
  outcome, reason = _outcome(progress, harness)
  progress.timings['total'] = time.monotonic() - start
  score = progress.score
  return types.Rollout(
    rollout_id=rollout_id,
    task_id=task.id,
    harness=harness.name,
    harness_version=harness.version,
    index=index,
    calls=progress.calls,
    reward=score.reward if score and outcome in types.SCORED_OUTCOMES else None,
    checks=dict(score.checks) if score else {},
    outcome=outcome,
    reason=reason,
    timings={k: round(v, 4) for k, v in progress.timings.items()},
    telemetry=progress.telemetry,
    extra=progress.extra,
  )


async def _run(
  task, harness, backend, proxy, socket_dir, rollout_id, run_seed, limits,
  out_dir, progress, on_stage,
):  # fmt: skip
  scoring = limits.scoring
  groups = needs.sessions(task)
  files = await guards.clean_git(task.files, backend)
  task = dataclasses.replace(task, files=files)
  if scoring.canaries:
    task, progress.canaries = guards.plant(task, f'{run_seed}/{rollout_id}')
  options: dict[str, Any] = {}
  if scoring.process != 'off' and task.verifier is not None:
    progress.snapshots = score_lib.Snapshots()
    options['gate'] = progress.snapshots.take
  session = proxy.open(
    rollout_id,
    run_seed=run_seed,
    sampling=limits.sampling,
    rules=harness.rules,
    token_budget=limits.token_budget,
    metadata={
      'task': task.id,
      'harness': harness.name,
      'instruction': groups[0][0],
      'openings': [group[0] for group in groups[1:]],
    },
    **options,
  )
  try:
    await _agent(
      task, groups, harness, backend, socket_dir, rollout_id, session, proxy,
      limits, out_dir, progress, on_stage,
    )  # fmt: skip
  finally:
    _account(proxy, session, progress)
    proxy.close(session.id)
  if progress.workspace is None:
    return
  on_stage('verify')
  with _Stage(progress, 'verify'):
    tokenizer = getattr(proxy, 'tokenizer', None)
    if tokenizer is not None:
      progress.transcript = await asyncio.to_thread(
        conversation.transcript, progress.calls, tokenizer
      )
    await _verify(task, backend, scoring, progress)


async def _verify(task, backend, scoring: Scoring, progress: _Progress) -> None:
  """Scores what was left; flags what should not have been touched."""
  assert progress.workspace is not None
  flags, workspace = score_lib.flags(
    task, progress.workspace, progress.transcript or (), progress.canaries
  )
  if flags:
    progress.extra['flags'] = flags
  if task.verifier is None and 'judge' not in task.metadata:
    return
  try:
    progress.score = await score_lib.final(
      task,
      workspace,
      backend,
      transcript=progress.transcript,
      executable=progress.executable,
      scoring=scoring,
    )
  except VerifierError as e:
    progress.verifier_fault = str(e)
    return
  progress.extra |= score_lib.facts(progress.score)
  if progress.snapshots is not None:
    progress.extra['process'] = await score_lib.process(
      task,
      progress.snapshots,
      workspace,
      progress.calls,
      backend,
      how=scoring.process,
      left_out=progress.canaries.tokens if progress.canaries else (),
    )


async def _agent(
  task, groups, harness, backend, socket_dir, rollout_id, session, proxy,
  limits, out_dir, progress, on_stage,
):  # fmt: skip
  """From an empty sandbox to the exported workspace."""
  url = f'http://127.0.0.1:{PORT}{session.path}'
  plans = [harness.plan(turns, base_url=url) for turns in groups]
  if task.metadata.get('openclaw_bootstrap') == 'remove':
    plans = [openclaw.without_bootstrap(plan) for plan in plans]
  on_stage('create')
  with _Stage(progress, 'create'):
    sandbox = await backend.create(
      needs.spec(
        task,
        limits.sandbox,
        backend,
        readonly=plans[0].readonly,
        socket_dir=socket_dir,
        label=rollout_id,
      )
    )
  try:
    with _Stage(progress, 'create'):
      await needs.fill(sandbox, task, task.files)
    if progress.snapshots is not None:
      progress.snapshots.sandbox = sandbox
    on_stage('harness')
    with _Stage(progress, 'harness'):
      log = _telemetry(out_dir, rollout_id, progress)
      seconds = limits.time_limit_s or task.time_limit_s
      deadline = time.monotonic() + seconds
      for number, plan in enumerate(plans):
        if number:  # a harness keeps its sessions below HOME
          await sandbox.exec(_EMPTY_HOME, cwd='/')
        for path, content in plan.files.items():
          inside = path if path.startswith('/') else f'{base.HOME}/{path}'
          await sandbox.write(inside, content)
        if not await _session(sandbox, plan, deadline, log, progress):
          break
    on_stage('settle')
    with _Stage(progress, 'settle'):
      settled = await proxy.settle(
        session.id,
        interval_s=limits.settle_interval_s,
        checks=limits.settle_checks,
        timeout_s=limits.settle_timeout_s,
      )
      if not settled:
        raise SandboxError(
          f'calls still pending {limits.settle_timeout_s} s after the end'
        )
      # All that the agent could write can be scored.
      progress.workspace = await sandbox.export(
        max_bytes=limits.sandbox.workspace_bytes,
        max_files=limits.sandbox.files,
      )
      progress.executable = await _executable(sandbox)
  finally:
    if progress.snapshots is not None:
      progress.snapshots.sandbox = None
    on_stage('destroy')
    with _Stage(progress, 'destroy'):
      await _destroy(sandbox, limits.destroy_timeout_s, progress)


_EMPTY_HOME = ('find', base.HOME, '-mindepth', '1', '-delete')


async def _session(sandbox, plan, deadline, log, progress) -> bool:
  """Runs the turns of one session; whether all of them ended well."""
  for turn, argv in enumerate(plan.argv):
    result = await sandbox.exec(
      argv,
      env=plan.env,
      timeout_s=max(0.1, deadline - time.monotonic()),
      stdin=plan.stdin[turn] if plan.stdin else b'',
      relay_port=PORT,
      log_path=log,
    )
    progress.results.append(result)
    progress.ok_codes = plan.ok_codes
    if result.timed_out or result.returncode not in plan.ok_codes:
      return False
  return True


async def _executable(sandbox) -> tuple[str, ...]:
  """Files that may be run, so that a grader can run what the agent made."""
  entries = await sandbox.snapshot()
  return tuple(
    path
    for path, entry in entries.items()
    if entry.kind == 'file' and entry.mode & 0o100
  )


async def _destroy(sandbox, timeout_s: float, progress: _Progress) -> None:
  """Destroys; a hung or failed destroy does not spoil a good rollout."""
  job = asyncio.ensure_future(sandbox.destroy())
  try:
    await asyncio.wait_for(asyncio.shield(job), timeout_s)
  except TimeoutError:
    progress.extra['destroy_fault'] = f'not done after {timeout_s} s'
  except ClawjaxError as e:
    progress.extra['destroy_fault'] = str(e)


def _telemetry(out_dir, rollout_id: str, progress) -> pathlib.Path | None:
  if out_dir is None:
    return None
  parts = [re.sub(r'[^\w.=~-]', '_', p) for p in rollout_id.split('/')]
  parts = [p if p.strip('.') else '_' for p in parts]
  progress.telemetry = '/'.join(['telemetry', *parts]) + '.log'
  path = pathlib.Path(out_dir) / progress.telemetry
  path.parent.mkdir(parents=True, exist_ok=True)
  return path


def _account(proxy: Proxy, session: Any, progress: _Progress) -> None:
  """Takes the calls, the conversation and the counts from the proxy."""
  progress.calls = tuple(proxy.calls(session.id))
  if hasattr(proxy, 'messages'):
    progress.transcript = proxy.messages(session.id)
  stats = proxy.stats(session.id)
  stats = stats if isinstance(stats, Mapping) else vars(stats)
  for name in ('served', 'captured', 'pending', 'aborted', 'refused'):
    if name in stats:
      progress.extra[name] = stats[name]
  progress.timings['model'] = stats.get('engine_s', 0.0)
  if progress.results:
    last = progress.results[-1]
    progress.extra.update(
      exit_code=last.returncode,
      turns=len(progress.results),
      peak_memory_bytes=_known(
        max, [r.peak_memory_bytes for r in progress.results]
      ),
      cpu_seconds=_known(sum, [r.cpu_seconds for r in progress.results]),
      truncated_output=any(r.truncated for r in progress.results),
    )


def _known(total: Callable[[list], Any], values: list) -> Any:
  """The total, or None where one of the values is unknown."""
  return None if None in values else total(values)


def _outcome(progress: _Progress, harness: Harness) -> tuple[str, str]:
  """How it ended and why, see DESIGN 'Outcomes'."""
  if progress.fault:
    return 'infra_error', progress.fault
  answered = [c for c in progress.calls if c.status == 'ok']
  failed = [c for c in progress.calls if c.status == 'error']
  if failed and (not answered or failed[-1].index > answered[-1].index):
    # A fault that the harness got over by asking again does no harm.
    return 'infra_error', f'engine: {failed[-1].error}'
  if progress.verifier_fault:
    return 'verifier_error', progress.verifier_fault
  outcome, reason = _ending(progress, harness)
  if outcome != 'ok' and not answered:
    # Nothing was sampled that could be to blame, and nothing to train.
    return 'infra_error', f'{reason}; the model was never heard'
  if not answered:
    return 'infra_error', f'{harness.name} ended without asking the model'
  return outcome, reason


def _ending(progress: _Progress, harness: Harness) -> tuple[str, str]:
  """How the harness ended and why."""
  last = progress.results[-1]
  if last.timed_out:
    return 'timeout', f'the harness ran for {last.seconds:.0f} s'
  if last.out_of_memory or last.killed_for:
    limit = last.killed_for or 'memory'
    return 'harness_error', f'over the {limit} limit'
  if last.returncode not in progress.ok_codes:
    text = (last.stderr or last.stdout).decode(errors='replace').strip()
    reason = f'{harness.name} ended with {last.returncode}: {text[-300:]}'
    return 'harness_error', reason
  return 'ok', ''
