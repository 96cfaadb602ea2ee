"""A matrix of evaluations: models x harnesses x task sets, in one folder.

  cells/<cell>.json                 what ran: model, harness, tasks, sampling
  eval/<cell>.json                  trials
  rollouts/eval/<cell>/*.json       rollouts as `types.dumps` writes them
  transcripts/<cell>/*.html         the same as readable trees
  results.json, report.html         all scores; see `board.py`
  atif/, chat/                      transcripts for other programs, if asked for

A cell is one model through one harness on one task set. Cells of one model run
side by side on one fleet. The folder can be run again: rollouts that are on
disk and were not lost to a fault of ours are kept, the rest is run; a cell
whose model, harness, tasks or sampling are not those on disk is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.eval import atif, chat_jsonl, endpoint, page, scores, transcript
from clawjax.eval import run as run_lib
from clawjax.harness import base as harness_base
from clawjax.proxy import serve as serve_lib
from clawjax.rollout import fleet as fleet_lib
from clawjax.rollout import run as rollout_lib
from clawjax.sandbox import base as sandbox_base
from clawjax.tasks import scoring as scoring_lib


@dataclasses.dataclass(frozen=True)
class TaskSet:
  """Tasks of one source.

  Attributes:
    name: for tables and folders.
    tasks: those to run.
    facts: JSON values that say which tasks these are (path, format, digest,
      counts of what did not load).
  """

  name: str
  tasks: Sequence[types.Task]
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class BenchConfig:
  """How to run a matrix.

  Attributes:
    samples: rollouts per task.
    sampling: overrides of sampling parameters; temperature 0 is greedy.
    seed: of all sampling.
    concurrency: rollouts side by side; 0: 8, or 1 with a script.
    time_limit_s: seconds for the harness; None: the task's own.
    token_budget: most tokens sampled in a rollout, or None.
    retries: share of the rollouts that may be run again for faults of ours.
    export: any of 'atif', 'chat'.
    endpoint: how models are served.
    scoring: judges and options of the score.
  """

  samples: int = 1
  sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  seed: int = 0
  concurrency: int = 0
  time_limit_s: float | None = None
  token_budget: int | None = None
  retries: float = 0.1
  export: tuple[str, ...] = ()
  endpoint: endpoint.EndpointConfig = endpoint.EndpointConfig()
  scoring: scoring_lib.Scoring = scoring_lib.Scoring()

  @property
  def greedy(self) -> bool:
    """Sampled at temperature 0."""
    return self.sampling.get('temperature') == 0


@dataclasses.dataclass(frozen=True)
class Cell:
  """One model through one harness on one task set.

  Attributes:
    model, harness, tasks: names.
    harness_version: of the program.
    facts: JSON values that say exactly what ran.
    trials: its results, by task and sample.
  """

  model: str
  harness: str
  tasks: str
  harness_version: str = ''
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  trials: tuple[scores.Trial, ...] = ()

  @property
  def slug(self) -> str:
    """Its name in the folder."""
    return run_lib.slug(f'{self.model}.{self.harness}.{self.tasks}')

  @property
  def label(self) -> str:
    """Its name for a person."""
    return f'{self.model} through {self.harness} on {self.tasks}'


Say = Callable[[str], None]


async def run(
  out: pathlib.Path,
  *,
  models: Sequence[str],
  harnesses: Sequence[Any],
  sets: Sequence[TaskSet],
  backend: Any,
  config: BenchConfig,
  say: Say = lambda text: None,
) -> list[Cell]:
  """Runs or completes the matrix; returns its cells, models outermost.

  Args:
    out: the folder.
    models: see `endpoint`.
    harnesses: installed ones.
    sets: the task sets.
    backend: makes the sandboxes.
    config: see `BenchConfig`.
    say: told in a line what goes on.

  Raises:
    ClawjaxError: something that a person can put right.
  """
  _check(models, harnesses, sets)
  _check_judges(sets, config.scoring)
  probe = await backend.probe()
  if not probe.ok:
    raise errors.SandboxError(probe.text)
  await backend.sweep()
  for harness in harnesses:
    await harness.prepare(backend)
  cells = []
  try:
    for spec in models:
      async with _serve(spec, config, out) as served:
        here = [
          _open_cell(out, served, harness, tasks, config)
          for harness in harnesses
          for tasks in sets
        ]
        cells += await _run_model(
          out, served, here, harnesses, sets, backend, config, say
        )
  finally:
    await scoring_lib.close_judges()
  return cells


def _check_judges(sets, scoring: scoring_lib.Scoring) -> None:
  """A rubric without a judge is told before anything runs."""
  for tasks in sets:
    asked = [t.id for t in tasks.tasks if scoring_lib.wants_judge(t, scoring)]
    if asked and not scoring.judges:
      raise errors.ConfigError(
        f'{len(asked)} tasks of {tasks.name} have a rubric (the first is '
        f'{asked[0]}): name a judge with --judge, or leave rubrics out where '
        'there is a grader with --code-only'
      )


def _check(models, harnesses, sets) -> None:
  harness_base.check_turns(harnesses, [t for s in sets for t in s.tasks])
  for what, names in (
    ('--model', list(models)),
    ('--harness', [h.name for h in harnesses]),
    ('--tasks', [s.name for s in sets]),
  ):
    if len(set(names)) != len(names):
      raise errors.ConfigError(f'{what}: wanted distinct names, got {names}')
  for harness in harnesses:
    if not harness.installed():
      raise errors.HarnessError(
        f'{harness.name} {harness.version} is not installed; run '
        f'python -m clawjax.harness.install {harness.name}'
      )
    for spec in models:
      spoken = endpoint.DIALECTS.get(endpoint.kind_of(spec))
      if spoken and harness.dialect not in spoken:
        raise errors.ConfigError(
          f'{harness.name} speaks {harness.dialect!r}, {spec} wants '
          f'{" or ".join(spoken)}; choose an endpoint of the other kind, or '
          "set the harness's dialect with --harness-options"
        )


@contextlib.asynccontextmanager
async def _serve(spec: str, config: BenchConfig, out: pathlib.Path):
  """A model behind a proxy on a socket; yields (endpoint, socket folder)."""
  # Short, since a socket's path may have 107 bytes; open to sandbox uids.
  socket_dir = pathlib.Path(tempfile.mkdtemp(prefix='clawjax-'))
  socket_dir.chmod(0o755)
  try:
    async with (
      endpoint.serve(spec, config.endpoint, record_dir=out / 'proxy') as model,
      serve_lib.serve(
        model.proxy.app, uds=socket_dir / sandbox_base.SOCKET_NAME
      ),
    ):
      yield model, socket_dir
  finally:
    shutil.rmtree(socket_dir, ignore_errors=True)


def _open_cell(
  out: pathlib.Path, served, harness, tasks: TaskSet, config: BenchConfig
) -> Cell:
  """The cell, its facts written down or found to be the same.

  Raises:
    ConfigError: the folder holds another cell of this name.
  """
  model = served[0]
  facts = {
    **model.identity,
    'harness': harness.name,
    'harness_version': harness.version,
    'harness_options': _options(harness),
    'tasks': dict(tasks.facts),
    'sampling': dict(config.sampling),
    'seed': config.seed,
    'time_limit_s': config.time_limit_s,
    'token_budget': config.token_budget,
  }
  if config.scoring != scoring_lib.Scoring():
    facts['scoring'] = scoring_lib.identity(config.scoring)
  facts = json.loads(json.dumps(facts, default=str))
  cell = Cell(model.name, harness.name, tasks.name, harness.version, facts)
  path = out / 'cells' / f'{cell.slug}.json'
  if path.exists():
    old = json.loads(path.read_text())
    was, now = _identity(old), _identity(facts)
    changed = [
      f'{k} was {was.get(k)!r}, now {now.get(k)!r}'
      for k in sorted(was.keys() | now.keys())
      if was.get(k) != now.get(k)
    ]
    if changed:
      raise errors.ConfigError(
        f'{out} holds another evaluation of {cell.label} '
        f'({"; ".join(changed)}); give another --out, or remove it'
      )
  write_json(path, facts)
  return cell


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
  """What must be the same for a cell to go on: all but how much is run."""
  tasks = {k: v for k, v in (facts.get('tasks') or {}).items() if k != 'run'}
  return {**facts, 'tasks': tasks}


def _options(harness: Any) -> dict[str, Any]:
  if dataclasses.is_dataclass(harness):
    return dataclasses.asdict(harness)  # type: ignore[arg-type]
  return {}


async def _run_model(
  out: pathlib.Path,
  served,
  cells: Sequence[Cell],
  harnesses,
  sets: Sequence[TaskSet],
  backend: Any,
  config: BenchConfig,
  say: Say,
) -> list[Cell]:
  """Runs what is missing of all cells of one model."""
  model, socket_dir = served
  by_name = {h.name: h for h in harnesses}
  tasks = {s.name: s.tasks for s in sets}
  found: dict[str, dict[tuple[str, int], types.Rollout]] = {}
  jobs: list[run_lib.Job] = []
  home: dict[str, Cell] = {}
  for cell in cells:
    found[cell.slug] = load_rollouts(out, cell)
    for task in tasks[cell.tasks]:
      for sample in range(config.samples):
        job = run_lib.Job(
          task, by_name[cell.harness], sample, f'eval/{cell.slug}'
        )
        home[job.rollout_id] = cell
        if (task.id, sample) not in found[cell.slug]:
          jobs.append(job)
  kept = sum(len(f) for f in found.values())
  say(
    f'{model.name}: {len(jobs)} rollouts to run'
    + (f', {kept} on disk' if kept else '')
  )
  fleet = fleet_lib.LocalFleet(
    backend=backend,
    proxy=model.proxy,
    socket_dir=socket_dir,
    run_seed=config.seed,
    limits=rollout_lib.RolloutLimits(
      time_limit_s=config.time_limit_s,
      token_budget=config.token_budget,
      sampling=dict(config.sampling),
      scoring=config.scoring,
    ),
    out_dir=out,
  )
  progress = _Progress(len(jobs), say)
  async with contextlib.aclosing(
    run_lib.run_jobs(
      fleet,
      jobs,
      concurrency=_concurrency(config, model),
      retry_budget=max(4, int(config.retries * len(jobs))),
    )
  ) as runs:
    async for job, rollout in runs:
      cell = home[job.rollout_id]
      await asyncio.to_thread(
        keep, out, cell, rollout, tokenizer=model.tokenizer
      )
      found[cell.slug][job.task.id, job.sample] = rollout
      progress.ended(rollout)
  done = []
  for cell in cells:
    trials = tuple(
      scores.trial(rollout, task, greedy=config.greedy)
      for task in tasks[cell.tasks]
      for sample in range(config.samples)
      if (rollout := found[cell.slug].get((task.id, sample))) is not None
    )
    run_lib.save_trials(out / 'eval' / f'{cell.slug}.json', trials)
    _export(out, cell, found[cell.slug], model, config.export)
    done.append(dataclasses.replace(cell, trials=trials))
  return done


def _concurrency(config: BenchConfig, model: endpoint.Endpoint) -> int:
  if config.concurrency:
    return config.concurrency
  # A script's lines are for one rollout after the other.
  return 1 if model.identity['endpoint'].startswith('scripted:') else 8


class _Progress:
  """Says how far a run is, at every tenth and at each fault."""

  def __init__(self, total: int, say: Say):
    self._total, self._say = total, say
    self._done = self._failed = 0
    self._rewards: list[float] = []

  def ended(self, rollout: types.Rollout) -> None:
    self._done += 1
    if rollout.valid:
      self._rewards.append(float(rollout.reward or 0.0))
    else:
      self._failed += 1
      self._say(f'  {rollout.rollout_id}: {rollout.outcome}: {rollout.reason}')
    every = max(1, self._total // 10)
    if self._done % every == 0 or self._done == self._total:
      mean = sum(self._rewards) / max(len(self._rewards), 1)
      self._say(
        f'  {self._done}/{self._total} done, {self._failed} failed, '
        f'mean score {mean:.3f}'
      )


# ---- on disk ---------------------------------------------------------------


def rollout_name(rollout: types.Rollout) -> str:
  """File name (without ending) of a rollout: its task and sample."""
  return f'{run_lib.slug(rollout.task_id)}.{rollout.index}'


def keep(
  out: pathlib.Path,
  cell: Cell,
  rollout: types.Rollout,
  *,
  tokenizer: transcript.Tokenizer | None,
) -> None:
  """Writes a rollout and its transcript page."""
  name = rollout_name(rollout)
  place = out / 'rollouts' / 'eval' / cell.slug
  write_text(place / f'{name}.json', types.dumps(rollout) + '\n')
  body = transcript.draw(rollout, tokenizer=tokenizer, opened=True)
  title = f'{rollout.task_id} \u00b7 {cell.harness} \u00b7 {rollout.index}'
  write_text(
    out / 'transcripts' / cell.slug / f'{name}.html',
    page.shell(
      title,
      f'<h1>{page.escape(rollout.task_id)}</h1><p class="sub">'
      f'{page.escape(cell.label)}, sample {rollout.index}</p>'
      f'<section>{body}</section>',
    ),
  )


def load_rollouts(
  out: pathlib.Path, cell: Cell
) -> dict[tuple[str, int], types.Rollout]:
  """(task id, sample) -> rollout, without those lost to faults of ours."""
  found = {}
  for path in sorted((out / 'rollouts' / 'eval' / cell.slug).glob('*.json')):
    try:
      rollout = types.rollout_from_json(json.loads(path.read_text()))
    except (ValueError, TypeError, KeyError):
      continue  # a torn file: run it again
    if rollout.outcome not in fleet_lib.FAULTS:
      found[rollout.task_id, rollout.index] = rollout
  return found


def _export(out, cell, rollouts, model, kinds) -> None:
  """Transcripts of a cell for other programs.

  A hosted model has no token ids: its conversations come from what the
  passthrough recorded, and there is no ATIF, which is made of calls.
  """
  ordered = [rollouts[k] for k in sorted(rollouts)]
  if 'chat' in kinds:
    path = out / 'chat' / f'{cell.slug}.jsonl'
    if model.tokenizer is not None:
      chat_jsonl.write(path, ordered, model.tokenizer)
    else:
      chat_jsonl.write_lines(path, _recorded(out, ordered))
  if 'atif' in kinds and model.tokenizer is not None:
    for rollout in ordered:
      atif.write(
        out / 'atif' / cell.slug,
        rollout,
        model.tokenizer,
        model_name=model.name,
      )


def _recorded(out, rollouts):
  """A chat line for each rollout of a hosted model."""
  from clawjax.eval import passthrough

  for rollout in rollouts:
    lines = passthrough.read(out / 'proxy', rollout.rollout_id)
    messages, tools = passthrough.longest(lines)
    if messages:
      yield chat_jsonl.line(rollout, messages, tools)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes JSON, atomically; makes the folder."""
  write_text(path, json.dumps(value, indent=1, sort_keys=True) + '\n')


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes text, atomically; makes the folder."""
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(path.name + '.tmp')
  temporary.write_text(text, encoding='utf-8')
  temporary.replace(path)
