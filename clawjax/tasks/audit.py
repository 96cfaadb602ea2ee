"""Looks for weak verifiers: solutions that are none, and what they score.

  python -m clawjax.tasks.audit PATH --format NAME [--limit N]
  python -m clawjax.tasks.audit synth [--count N]      (our generated tasks)

Every task with a grader gets probes that need no understanding of it: leaving
everything alone, removing everything, and making each file that the instruction
names, empty, with the instruction in it, or with all inputs in it. Where a
solution is known (our scripted expert, a Harbor `solve.sh`) it must score 1, and
the expert's scripted mistakes below 0.5; a probe that leaves just what the
solution leaves is no finding. A grader that gives no number, or two
numbers for one workspace, is a finding too, and so is hidden text in the agent's
files.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import pathlib
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from clawjax import errors, sandbox, types
from clawjax.sandbox import base
from clawjax.tasks import __main__ as command
from clawjax.tasks import formats, guards, needs, synth, verifier
from clawjax.tasks.formats import tree

IDLE_MOST = 0.05  # an untouched workspace
CHEAP_MOST = 0.5  # a probe or a scripted mistake
_NAMED = re.compile(r'(?<![\w/.-])[\w-][\w.-]*(?:/[\w.-]+)*\.[A-Za-z]\w{0,4}\b')


@dataclasses.dataclass(frozen=True)
class Finding:
  """One weakness of one task.

  Attributes:
    code: 'idle_scores', 'cheap_score', 'solution_fails', 'mistake_passes',
      'grader_fails', 'not_deterministic' or 'leak'.
  """

  task: str
  code: str
  text: str


@dataclasses.dataclass(frozen=True)
class Audit:
  """Probe scores and findings.

  Attributes:
    scores: task id -> probe -> score; a probe without a score is left out.
    findings: weaknesses.
    skipped: tasks without a grader.
  """

  scores: Mapping[str, Mapping[str, float]]
  findings: tuple[Finding, ...]
  skipped: tuple[str, ...]

  def mean(self, probe: str) -> float | None:
    """Mean score of a probe over the tasks that have it."""
    values = [s[probe] for s in self.scores.values() if probe in s]
    return sum(values) / len(values) if values else None


def named_files(task: types.Task) -> list[str]:
  """Relative paths that the instruction names and the task does not have."""
  text = task.instruction.replace('/workspace/', '')
  found = []
  for path in _NAMED.findall(text):
    if path in ('e.g', 'i.e') or '..' in path:
      continue
    if path not in task.files and path not in found:
      found.append(path)
  return found[:20]


def probes(task: types.Task) -> dict[str, dict[str, bytes]]:
  """Workspaces that no understanding of the task went into."""
  names = named_files(task)
  everything = b''.join(task.files[p] for p in sorted(task.files))[:100_000]
  made = {'idle': dict(task.files), 'wiped': {}}
  if names:
    for probe, content in (
      ('empty', b''),
      ('echo', task.instruction.encode()),
      ('flood', everything),
    ):
      made[probe] = {**task.files, **dict.fromkeys(names, content)}
  return made


async def audit(
  tasks: Sequence[types.Task],
  backend: base.Backend,
  *,
  concurrency: int = 2,
  solve: bool = True,
) -> Audit:
  """Probes every task.

  Args:
    tasks: any.
    backend: makes the sandboxes.
    concurrency: tasks at a time.
    solve: run known solutions and mistakes too.
  """
  slots = asyncio.Semaphore(concurrency)
  scores: dict[str, dict[str, float]] = {}
  findings: list[Finding] = []
  skipped: list[str] = []

  async def one(task: types.Task) -> None:
    async with slots:
      own = scores.setdefault(task.id, {})
      findings.extend(await _task(task, backend, own, solve))

  for task in tasks:
    if task.verifier is None:
      skipped.append(task.id)
  await asyncio.gather(*(one(t) for t in tasks if t.verifier is not None))
  order = {t.id: n for n, t in enumerate(tasks)}
  findings.sort(key=lambda f: order[f.task])
  return Audit(scores, tuple(findings), tuple(skipped))


async def _task(
  task: types.Task,
  backend: base.Backend,
  scores: dict[str, float],
  solve: bool,
) -> list[Finding]:
  found = [Finding(task.id, 'leak', text) for text in guards.leaks(task)]
  cheap: list[tuple[Finding, dict[str, bytes]]] = []

  async def score(probe: str, files: Mapping[str, bytes]) -> float | None:
    try:
      got = await verifier.verify(
        task, files, backend, transcript=(), code_only=True
      )
    except errors.ClawjaxError as error:
      found.append(Finding(task.id, 'grader_fails', f'{probe}: {error}'))
      return None
    scores[probe] = got.reward
    return got.reward

  for probe, files in probes(task).items():
    value = await score(probe, files)
    if value is None:
      continue
    if probe == 'idle':
      if value > IDLE_MOST:
        found.append(
          Finding(task.id, 'idle_scores', f'untouched scores {value:.2f}')
        )
      again = await score('idle', files)
      if again is not None and again != value:
        text = f'one workspace scored {value:g} and {again:g}'
        found.append(Finding(task.id, 'not_deterministic', text))
    elif value >= CHEAP_MOST:
      text = f'{probe} scores {value:.2f}'
      cheap.append((Finding(task.id, 'cheap_score', text), files))
  solved: Mapping[str, bytes] | None = None
  if solve:
    for name, commands, hidden in solutions(task):
      try:
        files = await run(task, commands, backend, hidden)
      except errors.ClawjaxError as error:
        found.append(Finding(task.id, 'grader_fails', f'{name}: {error}'))
        continue
      value = await score(name, files)
      if name == 'solution':
        solved = files
      if value is None:
        continue
      if name == 'solution' and value < 1.0:
        found.append(Finding(task.id, 'solution_fails', f'it scores {value:g}'))
      if name != 'solution' and value >= CHEAP_MOST:
        text = f'mistake {name} scores {value:.2f}'
        found.append(Finding(task.id, 'mistake_passes', text))
  # A probe may happen on the solution: all inputs in one file, for one.
  found += [finding for finding, files in cheap if files != solved]
  return found


def solutions(
  task: types.Task,
) -> list[tuple[str, list[str], dict[str, bytes]]]:
  """(name, shell commands, files at /verifier) of known right and wrong runs."""
  if synth.knows(task):
    runs = [('solution', synth.script(task), {})]
    for wrong in synth.mistakes(task):
      runs.append((wrong, synth.script(task, [wrong]), {}))
    return runs
  folder = task.metadata.get('solution')
  if folder and 'image' not in task.metadata:
    hidden = tree.read_tree(pathlib.Path(folder))
    return [('solution', ['bash /verifier/solve.sh'], hidden)]
  return []


async def run(
  task: types.Task,
  commands: Sequence[str],
  backend: base.Backend,
  hidden: Mapping[str, bytes],
) -> dict[str, bytes]:
  """The workspace after shell commands; a failing one does not stop the rest."""
  spec = needs.spec(task, base.Limits(), backend, label=f'audit {task.id}')
  made = await backend.create(spec)
  try:
    await needs.fill(made, task, task.files)
    for path, data in hidden.items():
      await made.write(f'/verifier/{path}', data, 0o755)
    if commands:
      await made.exec(
        ['bash', '-c', '\n'.join(commands)], timeout_s=task.time_limit_s
      )
    return await made.export()
  finally:
    await made.destroy()


# ---- the command -----------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m clawjax.tasks.audit', description=__doc__.split('\n')[0]
  )
  parser.add_argument('path', help="folder or file of a set, or 'synth'")
  parser.add_argument('--format', default='', choices=['', *formats.FORMATS])
  parser.add_argument('--limit', type=int, default=0, help='tasks at most')
  each = 3 * len(synth.ALL)  # Every family in every difficulty.
  parser.add_argument('--count', type=int, default=each, help='of synth')
  parser.add_argument('--seed', type=int, default=0, help='of synth')
  parser.add_argument('--backend', default='bwrap')
  parser.add_argument('--concurrency', type=int, default=2)
  parser.add_argument('--no-solutions', action='store_true')
  parser.add_argument('--json', action='store_true')
  command.add_options(parser)
  args = parser.parse_args(argv)
  try:
    tasks = _tasks(args)
    backend = sandbox.load(args.backend)
    done = asyncio.run(_probed(tasks, backend, args))
  except errors.ClawjaxError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  if args.json:
    print(json.dumps(as_json(done), indent=1))
  else:
    show(done)
  return 1 if done.findings else 0


def _tasks(args: argparse.Namespace) -> list[types.Task]:
  if args.path == 'synth':
    return synth.everything('train', count=args.count, seed=args.seed)
  if not args.format:
    raise errors.TaskError('give --format')
  report = formats.load(args.path, args.format, command.options_of(args))
  print(report.counts(), file=sys.stderr)
  return list(report.tasks[: args.limit or None])


async def _probed(
  tasks: list[types.Task], backend: base.Backend, args: argparse.Namespace
) -> Audit:
  probe = await backend.probe()
  if not probe.ok:
    raise errors.SandboxError(probe.text)
  return await audit(
    tasks,
    backend,
    concurrency=args.concurrency,
    solve=not args.no_solutions,
  )


def as_json(done: Audit) -> dict[str, object]:
  """Everything, JSON-ready."""
  return {
    'tasks': len(done.scores),
    'skipped': list(done.skipped),
    'findings': [dataclasses.asdict(f) for f in done.findings],
    'codes': dict(Counter(f.code for f in done.findings)),
    'means': {p: done.mean(p) for p in _probe_names(done)},
    'scores': {k: dict(v) for k, v in done.scores.items()},
  }


def _probe_names(done: Audit) -> list[str]:
  names: dict[str, None] = {}
  for scores in done.scores.values():
    names.update(dict.fromkeys(scores))
  return list(names)


def show(done: Audit) -> None:
  """Prints means per probe and the findings."""
  import rich.console
  import rich.table

  console = rich.console.Console()
  table = rich.table.Table(title=f'probes of {len(done.scores)} tasks')
  for column in ('probe', 'tasks', 'mean', 'highest', 'from 0.5'):
    table.add_column(column, justify='left' if column == 'probe' else 'right')
  for name in _probe_names(done):
    values = [s[name] for s in done.scores.values() if name in s]
    table.add_row(
      name,
      str(len(values)),
      f'{sum(values) / len(values):.3f}',
      f'{max(values):.2f}',
      str(sum(v >= CHEAP_MOST for v in values)),
    )
  console.print(table)
  if done.skipped:
    console.print(f'{len(done.skipped)} without a grader, left out')
  if not done.findings:
    console.print('no weak verifier found')
    return
  counts = Counter(f.code for f in done.findings)
  console.print(', '.join(f'{n} {c}' for c, n in counts.most_common()))
  table = rich.table.Table(title='findings')
  for column in ('task', 'finding', 'what'):
    table.add_column(column)
  for finding in done.findings[:50]:
    table.add_row(finding.task, finding.code, finding.text)
  console.print(table)
  if len(done.findings) > 50:
    console.print(f'{len(done.findings) - 50} more; --json lists them')


if __name__ == '__main__':
  sys.exit(main())
