"""What loads from a task set, and what does not and why.

  python -m clawjax.tasks PATH --format NAME [--allow needs_network,...]

Prints a table of domains and one of reasons; `--json` gives the same to a
program. Ends with status 1 when a task is broken, 0 otherwise (a task that is
sound but unsupported here is no error).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter

from clawjax import errors
from clawjax.tasks import formats


def main(argv: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m clawjax.tasks', description=__doc__.split('\n')[0]
  )
  parser.add_argument('path')
  parser.add_argument('--format', required=True, choices=list(formats.FORMATS))
  add_options(parser)
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--all', action='store_true', help='list every problem')
  args = parser.parse_args(argv)
  try:
    report = formats.load(args.path, args.format, options_of(args))
  except errors.ClawjaxError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  if args.json:
    print(json.dumps(as_json(report), indent=1))
  else:
    show(report, everything=args.all)
  return 1 if report.faults else 0


def add_options(parser: argparse.ArgumentParser) -> None:
  """Options of the loaders, shared with other commands."""
  parser.add_argument('--allow', default='', help='reasons to let in, by comma')
  parser.add_argument('--only', default='', help='ids, by comma, or @FILE')
  parser.add_argument('--max-mib', type=int, default=0)
  parser.add_argument('--domains', default='', help='JSON file {id: domain}')
  parser.add_argument(
    '--weights-compat', default='strict', choices=['strict', 'upstream']
  )
  parser.add_argument(
    '--hybrid', default='', choices=['', 'weighted', 'penalised']
  )
  parser.add_argument('--tolerance', type=float, default=0.0)
  parser.add_argument('--reward-file', default='')
  parser.add_argument('--corpus', default='')
  parser.add_argument('--reward-key', default='reward')
  parser.add_argument('--timeout-factor', type=float, default=1.0)
  parser.add_argument('--split', default='', choices=['', 'main', 'easy'])


def options_of(args: argparse.Namespace) -> formats.Options:
  """Options from parsed arguments."""
  only = args.only
  if only.startswith('@'):
    try:
      with open(only[1:], encoding='utf-8') as stream:
        only = ','.join(stream.read().split())
    except OSError as error:
      raise errors.TaskError(f'--only: {error}') from None
  return formats.Options(
    allow=tuple(a for a in args.allow.split(',') if a),
    only=tuple(o for o in only.split(',') if o),
    max_bytes=args.max_mib << 20 if args.max_mib else formats.MAX_BYTES,
    domains=args.domains,
    weights_compat=args.weights_compat,
    hybrid=args.hybrid,
    tolerance=args.tolerance,
    reward_file=args.reward_file,
    corpus=args.corpus,
    reward_key=args.reward_key,
    timeout_factor=args.timeout_factor,
    split=args.split,
  )


def as_json(report: formats.LoadReport) -> dict[str, object]:
  """The report without contents."""
  origin = report.provenance
  return {
    'loaded': len(report.tasks),
    'unsupported': len(report.unsupported),
    'broken': len(report.faults),
    'warnings': len(report.warnings),
    'reasons': report.reasons(),
    'domains': dict(
      Counter(str(t.metadata.get('domain')) for t in report.tasks)
    ),
    'left_out': [
      {'id': l.id, 'code': l.code, 'text': l.text}
      for l in (*report.unsupported, *report.faults)
    ],
    'commit': origin.commit if origin else '',
    'digest': origin.digest if origin else '',
    'options': dict(origin.options) if origin else {},
  }


def show(report: formats.LoadReport, *, everything: bool = False) -> None:
  """Prints the report as tables."""
  import rich.console
  import rich.table

  console = rich.console.Console()
  console.print(f'[bold]{report.counts()}[/bold]', highlight=False)
  if report.provenance:
    origin = report.provenance
    commit = f', commit {origin.commit[:12]}' if origin.commit else ''
    console.print(f'digest {origin.digest[:16]}{commit}', highlight=False)
  table = rich.table.Table(title='what loads')
  for column in ('domain', 'tasks', 'graded by', 'turns', 'files', 'KiB'):
    table.add_column(column, justify='left' if column == 'domain' else 'right')
  groups: dict[str, list] = {}
  for task in report.tasks:
    groups.setdefault(str(task.metadata.get('domain')), []).append(task)
  for domain, tasks in sorted(groups.items(), key=lambda g: -len(g[1])):
    kinds = Counter(graded_by(t) for t in tasks)
    size = sum(len(b) for t in tasks for b in t.files.values())
    table.add_row(
      domain,
      str(len(tasks)),
      ', '.join(f'{n} {k}' for k, n in kinds.most_common()),
      f'{sum(len(t.turns) for t in tasks) / len(tasks):.1f}',
      f'{sum(len(t.files) for t in tasks) / len(tasks):.1f}',
      f'{size / 1024:.0f}',
    )
  console.print(table)
  for title, items in (
    ('unsupported here', report.unsupported),
    ('broken', report.faults),
    ('read in spite of a flaw', report.warnings),
  ):
    if not items:
      continue
    table = rich.table.Table(title=f'{title}: {len(items)}')
    for column in ('reason', 'tasks', 'first', 'why'):
      table.add_column(column)
    by_code: dict[str, list[formats.Left]] = {}
    for item in items:
      by_code.setdefault(item.code, []).append(item)
    for code, group in sorted(by_code.items(), key=lambda g: -len(g[1])):
      for item in group if everything else group[:1]:
        table.add_row(code, str(len(group)), item.id, item.text)
    console.print(table)


def graded_by(task) -> str:
  """'code', 'rubric', 'code + rubric' or 'nothing'."""
  parts = []
  if task.verifier is not None:
    parts.append('code')
  if 'judge' in task.metadata:
    parts.append('rubric')
  return ' + '.join(parts) or 'nothing'


if __name__ == '__main__':
  sys.exit(main())
