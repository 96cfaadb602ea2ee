"""Families of office and software work, in the six domains of ClawGym-Bench.

The same shape as in `families` (draft, script, mistakes), with workspaces of
several file types: docx, xlsx, pdf, csv, json, md, logs and Python. Nothing but
the Python standard library is needed to solve them. They are for larger models
and for evaluation; the tiny model of the quickstart trains on `families`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clawjax.tasks import office
from clawjax.tasks.families import Draft, Draw, Family, text

Spec = Mapping[str, Any]
Wrong = frozenset[str]


def python(code: str) -> str:
  """A shell command that runs Python code."""
  return f"python3 - <<'END'\n{code.strip()}\nEND"


def table(path: str, header: list[str], rows: list[list[Any]], **more: Any):
  """A check of a CSV file; wrong rows earn up to 0.3."""
  return {
    'name': 'rows',
    'kind': 'table',
    'path': path,
    'header': header,
    'rows': [[str(cell) for cell in row] for row in rows],
    'partial': 0.3,
    **more,
  }


# ---- product_collab: action items out of meeting notes (docx) --------------


def draft_actions(draw: Draw) -> Draft:
  source, out = f'{draw.word()}.docx', f'{draw.word()}.csv'
  rows, paragraphs = [], []
  for index in range(draw.size):
    owner, item, day = draw.word(), draw.word(), draw.number()
    mark = ' (done)' if index == 1 else ''
    paragraphs.append(f'We talked about the {draw.word()}.')
    paragraphs.append(
      f'Action{mark}: {owner} will prepare the {item} by day {day}.'
    )
    if not mark:
      rows.append([owner, item, day])
  instruction = draw.one(
    [
      f'Read the meeting notes in {source}. Write the open action items to '
      f'{out} with the columns owner,item,day, in the order of the notes. '
      'Leave out what is marked as done.',
      f'Which actions in {source} are still open? Make {out} with the header '
      'owner,item,day and a row for each, in order; done ones do not count.',
      f'Turn the open actions of {source} into {out}: columns owner, item and '
      'day, one row per action, nothing that is done.',
    ]
  )
  notes = office.docx('Weekly meeting', paragraphs)
  return Draft(
    instruction,
    {source: notes},
    [table(out, ['owner', 'item', 'day'], rows)],
    {'source': source, 'out': out},
  )


def script_actions(spec: Spec, wrong: Wrong) -> list[str]:
  pattern = r'Action(?: \(done\))?: ' if 'done' in wrong else 'Action: '
  header = 'item,owner,day' if 'columns' in wrong else 'owner,item,day'
  keep = 'rows[:1]' if 'short' in wrong else 'rows'
  code = f"""
import re, zipfile
xml = zipfile.ZipFile('{spec['source']}').read('word/document.xml').decode()
lines = [re.sub('<[^>]+>', '', p) for p in re.findall('<w:p[ >].*?</w:p>', xml, re.S)]
found = [re.match(r'{pattern}(\\w+) will prepare the (\\w+) by day (\\d+)', t) for t in lines]
rows = [','.join(m.groups()) for m in found if m]
open('{spec['out']}', 'w').write('\\n'.join(['{header}'] + {keep}) + '\\n')
"""
  return [python(code)]


# ---- systems_auto: errors in logs, settings by policy ----------------------


def draft_incidents(draw: Draw) -> Draft:
  services, out = draw.some(3), f'{draw.word()}.json'
  counts = dict(zip(services, (3, 2, 1), strict=True))
  lines = []
  for service, count in counts.items():
    lines += [('ERROR', service)] * count
    lines += [('WARN', service), ('INFO', service)]
  lines.append(('WARN', services[2]))
  order = [lines[i] for i in draw.rng.permutation(len(lines))]
  stamped = [
    f'{8 + n // 6:02d}:{n % 6 * 10:02d} {level} {service} {draw.word()}'
    for n, (level, service) in enumerate(order)
  ]
  # The second file must hold an error, or reading the first would do.
  cut = max(n for n, (level, _) in enumerate(order) if level == 'ERROR')
  cut = min(cut, len(stamped) // 2)
  instruction = draw.one(
    [
      'Count the ERROR lines of each service over all files in logs/. Write '
      f'{out}: an object with "errors" (service to count) and "worst" (the '
      'service with most errors).',
      f'Make {out} from the logs in logs/: "errors" maps each service to its '
      'number of ERROR lines, "worst" names the service that has most.',
      'Which service fails most? Go through logs/ and write '
      f'{out} with "errors", the ERROR lines per service, and "worst".',
    ]
  )
  return Draft(
    instruction,
    {'logs/a.log': text(stamped[:cut]), 'logs/b.log': text(stamped[cut:])},
    [
      {
        'name': 'errors',
        'kind': 'json_at',
        'path': out,
        'at': ['errors'],
        'value': counts,
        'weight': 0.7,
      },
      {
        'name': 'worst',
        'kind': 'json_at',
        'path': out,
        'at': ['worst'],
        'value': services[0],
        'weight': 0.3,
      },
    ],
    {'out': out},
  )


def script_incidents(spec: Spec, wrong: Wrong) -> list[str]:
  levels = "('ERROR', 'WARN')" if 'level' in wrong else "('ERROR',)"
  files = "['logs/a.log']" if 'first' in wrong else "glob.glob('logs/*')"
  key = 'error_count' if 'key' in wrong else 'errors'
  code = f"""
import collections, glob, json
count = collections.Counter()
for name in {files}:
  for line in open(name):
    stamp, level, service = line.split()[:3]
    count[service] += level in {levels}
worst = max(count, key=count.get)
json.dump({{'{key}': count, 'worst': worst}}, open('{spec['out']}', 'w'))
"""
  if 'level' in wrong:  # every line counts, whatever its level
    code = code.replace('level in', 'bool(level) or level in')
  return ['ls logs', python(code)]


def draft_settings(draw: Draw) -> Draft:
  source, policy = f'{draw.word()}.json', f'{draw.word()}.md'
  groups = draw.some(2)
  config = {g: {draw.word(): draw.number() for _ in range(3)} for g in groups}
  places = [(g, k) for g in groups for k in config[g]]
  chosen = [places[i] for i in draw.rng.choice(6, 4, replace=False)]
  wanted = json.loads(json.dumps(config))
  changes, lines = [], [f'# Policy {draw.word()}', '']
  for index, (group, key) in enumerate(chosen):
    value = config[group][key] + 100 + index
    line = f'set {group}.{key} to {value}'
    if index == 1:
      lines.append(f'- ~~{line}~~')
    else:
      lines.append(f'- {line}')
      wanted[group][key] = value
    changes.append([group, key, value, index == 1])
  instruction = draw.one(
    [
      f'Bring {source} in line with {policy}. Points that are struck through '
      'no longer hold; change nothing else.',
      f'Apply the policy in {policy} to {source}; skip what is struck through '
      'and leave all other settings as they are.',
      f'{policy} lists settings. Update {source} accordingly, without the '
      'points that were struck through.',
    ]
  )
  checks: list[dict[str, Any]] = [
    {
      'name': 'whole',
      'kind': 'json_at',
      'path': source,
      'at': [],
      'value': wanted,
      'weight': 0.7,
    }
  ]
  for number, (group, key, value, struck) in enumerate(changes):
    if not struck:
      checks.append(
        {
          'name': f'set_{number}',
          'kind': 'json_at',
          'path': source,
          'at': [group, key],
          'value': value,
          'weight': 0.1,
        }
      )
  return Draft(
    instruction,
    {source: json.dumps(config, indent=2) + '\n', policy: text(lines)},
    checks,
    {'source': source, 'policy': policy},
    changes=(source,),
  )


def script_settings(spec: Spec, wrong: Wrong) -> list[str]:
  pattern = (
    r'- (?:~~)?set (\w+)\.(\w+) to (\d+)'
    if 'struck' in wrong
    else r'- set (\w+)\.(\w+) to (\d+)'
  )
  found = 'found[:1]' if 'short' in wrong else 'found'
  value = 'value' if 'text' in wrong else 'int(value)'
  code = f"""
import json, re
config = json.load(open('{spec['source']}'))
found = re.findall(r'{pattern}', open('{spec['policy']}').read())
for group, key, value in {found}:
  config[group][key] = {value}
json.dump(config, open('{spec['source']}', 'w'), indent=2)
"""
  return [f'cat {spec["policy"]}', python(code)]


# ---- analysis_reason: revenue by region from a workbook (xlsx) -------------


def draft_regions(draw: Draw) -> Draft:
  source, out = f'{draw.word()}.xlsx', f'{draw.word()}.csv'
  regions, sheets = draw.some(3), draw.some(2)
  book: dict[str, list[list[Any]]] = {}
  totals = dict.fromkeys(regions, 0)
  for sheet in sheets:
    rows: list[list[Any]] = [['region', 'item', 'units', 'price']]
    for index in range(draw.size + 1):
      region = regions[index % 3]
      units, price = draw.number(), draw.number()
      totals[region] += units * price
      rows.append([region, draw.word(), units, price])
    book[sheet] = rows
  while len(set(totals.values())) < 3:  # no ties: the order must be one
    book[sheets[1]][1][2] += 1
    totals[book[sheets[1]][1][0]] += book[sheets[1]][1][3]
  ranked = sorted(totals.items(), key=lambda item: -item[1])
  instruction = draw.one(
    [
      f'{source} has orders on two sheets. Write the revenue (units times '
      f'price) of each region over both to {out}, columns region,revenue, '
      'highest first.',
      f'Compute the revenue per region from all sheets of {source}, units '
      f'times price, and save it as {out} with the header region,revenue, '
      'sorted from high to low.',
      f'Rank the regions in {source} by revenue (units times price, all '
      f'sheets) in {out}; header region,revenue.',
    ]
  )
  return Draft(
    instruction,
    {source: office.xlsx(book)},
    [table(out, ['region', 'revenue'], [list(r) for r in ranked])],
    {'source': source, 'out': out},
  )


def script_regions(spec: Spec, wrong: Wrong) -> list[str]:
  value = 'float(u)' if 'units' in wrong else 'float(u) * float(p)'
  sheets = "['xl/worksheets/sheet1.xml']" if 'sheet' in wrong else 'sheets'
  sign = '' if 'order' in wrong else '-'
  code = f"""
import collections, re, zipfile
from xml.etree import ElementTree as E
book = zipfile.ZipFile('{spec['source']}')
tag = '{{http://schemas.openxmlformats.org/spreadsheetml/2006/main}}'
sheets = [n for n in book.namelist() if re.match('xl/worksheets/sheet', n)]
total = collections.Counter()
for name in {sheets}:
  for row in list(E.fromstring(book.read(name)).iter(tag + 'row'))[1:]:
    r, _, u, p = [''.join(cell.itertext()) for cell in row]
    total[r] += {value}
ranked = sorted(total.items(), key=lambda item: {sign}item[1])
lines = ['region,revenue'] + ['%s,%d' % item for item in ranked]
open('{spec['out']}', 'w').write('\\n'.join(lines) + '\\n')
"""
  return [python(code)]


# ---- content_domain: a fact sheet out of a report (pdf) --------------------

_FIELDS = ('Seat', 'Product', 'Partner', 'Staff', 'Budget')


def draft_factsheet(draw: Draw) -> Draft:
  source, out, name = f'{draw.word()}.pdf', f'{draw.word()}.md', draw.word()
  facts = {f: draw.word() for f in _FIELDS[:3]}
  facts |= {f: str(draw.number()) for f in _FIELDS[3:]}
  order = [_FIELDS[i] for i in draw.rng.permutation(5)]
  wanted = order[:3]
  lines = []
  for field in [_FIELDS[i] for i in draw.rng.permutation(5)]:
    lines += [f'About the {draw.word()} there is no news.']
    lines += [f'{field}: {facts[field]}']
  asked = f'{wanted[0]}, {wanted[1]} and {wanted[2]}'
  instruction = draw.one(
    [
      f'Make a fact sheet {out} from the report {source}: the heading '
      f'"# {name}", then the bullets "- Field: value" for {asked}, in this '
      'order.',
      f'From {source} write {out}. First line "# {name}"; below it one bullet '
      f'("- Field: value") each for {asked}, nothing else.',
      f'{out} should sum up {source}: title "# {name}" and bullets of the '
      f'form "- Field: value" for {asked}.',
    ]
  )
  right = [f'# {name}', *(f'- {f}: {facts[f]}' for f in wanted)]
  check = {'name': 'rows', 'kind': 'lines', 'path': out, 'lines': right}
  return Draft(
    instruction,
    {source: office.pdf(f'Report on {name}', lines)},
    [{**check, 'partial': 0.3}],
    {'source': source, 'out': out, 'wanted': wanted, 'name': name},
  )


def script_factsheet(spec: Spec, wrong: Wrong) -> list[str]:
  wanted = list(spec['wanted'])
  if 'order' in wrong:
    wanted.reverse()
  if 'fields' in wrong:
    wanted = list(_FIELDS)
  head = [] if 'heading' in wrong else [f'# {spec["name"]}']
  code = f"""
import re
data = open('{spec['source']}', 'rb').read().decode('latin-1')
lines = re.findall(r'\\((.*?)\\) Tj', data)
facts = dict(line.split(': ', 1) for line in lines if ': ' in line)
out = {head!r} + ['- %s: %s' % (f, facts[f]) for f in {wanted!r}]
open('{spec['out']}', 'w').write('\\n'.join(out) + '\\n')
"""
  return [python(code)]


# ---- planning_knowl: start days from dependencies (csv) --------------------


def draft_plan(draw: Draw) -> Draft:
  source, out = f'{draw.word()}.csv', f'{draw.word()}.csv'
  names = draw.some(draw.size + 2)
  days = [int(d) for d in draw.rng.integers(2, 9, len(names))]
  days[1] = days[0] + 1 + int(draw.rng.integers(0, 4))
  # The third waits for both before it, of which the second ends later.
  after: list[list[int]] = [[], [], [0, 1]]
  for index in range(3, len(names)):
    after.append([int(draw.rng.integers(0, index))])
  start: list[int] = []
  for before in after:
    start.append(max((start[b] + days[b] for b in before), default=0))
  lines = ['task,days,after']
  for name, day, before in zip(names, days, after, strict=True):
    lines.append(f'{name},{day},{";".join(names[b] for b in before)}')
  instruction = draw.one(
    [
      f'{source} lists tasks with their days and what they come after. Write '
      f'{out} with the columns task,start: the earliest day each can start, '
      'counted from 0, in the same order.',
      f'Plan the tasks of {source}. In {out}, header task,start, give each its '
      'earliest start day (the first is 0); it starts when all tasks it comes '
      'after have ended.',
      f'From {source} compute when each task can start at the earliest, from '
      f'day 0, and save task,start to {out} in the order of the file.',
    ]
  )
  rows = [[n, s] for n, s in zip(names, start, strict=True)]
  return Draft(
    instruction,
    {source: text(lines)},
    [table(out, ['task', 'start'], rows)],
    {'source': source, 'out': out},
  )


def script_plan(spec: Spec, wrong: Wrong) -> list[str]:
  before = "r['after'].split(';')"
  first = f'{before}[:1]' if 'first' in wrong else before
  start = f'max((end[b] for b in {first} if b), default=0)'
  if 'zero' in wrong:
    start = '0'
  if 'sequence' in wrong:
    start = 'max(end.values(), default=0)'
  code = f"""
import csv
end, out = {{}}, ['task,start']
for r in csv.DictReader(open('{spec['source']}')):
  start = {start}
  end[r['task']] = start + int(r['days'])
  out.append('%s,%d' % (r['task'], start))
open('{spec['out']}', 'w').write('\\n'.join(out) + '\\n')
"""
  return [f'cat {spec["source"]}', python(code)]


# ---- software_dev: a bug, and a program of one's own -----------------------

# name -> (what it prints, right line, wrong line)
_TOOLS = {
  'total': ('the sum of', 'sum(numbers)', 'sum(numbers[1:])'),
  'largest': ('the largest of', 'max(numbers)', 'min(numbers)'),
  'span': ('the largest minus the smallest of', 'max(numbers) - min(numbers)')
  + ('max(numbers) + min(numbers)',),
  'count': ('how many there are of', 'len(numbers)', 'len(numbers) - 1'),
}
_PROGRAM = """import sys


def main():
  numbers = [int(line) for line in sys.stdin if line.strip()]
  print({expression})


main()
"""


def draft_repair(draw: Draw) -> Draft:
  path = f'{draw.word()}.py'
  tool = draw.one(list(_TOOLS))
  what, right, buggy = _TOOLS[tool]
  cases: list[list[str]] = []
  # Lists of different lengths and answers: no constant gets two of them.
  while len(cases) < 5:
    numbers = draw.numbers(draw.size + len(cases))
    want = {
      'total': sum(numbers),
      'largest': max(numbers),
      'span': max(numbers) - min(numbers),
      'count': len(numbers),
    }[tool]
    if f'{want}\n' not in [w for _, w in cases]:
      cases.append([text([str(n) for n in numbers]), f'{want}\n'])
  instruction = draw.one(
    [
      f'{path} should print {what} the numbers on its standard input, one per '
      'line, but the result is wrong. Find the bug and fix it.',
      f'There is a bug in {path}: it is meant to print {what} the numbers it '
      'reads from standard input. Repair it.',
      f'Fix {path}. Given numbers on standard input, one a line, it has to '
      f'print {what} them.',
    ]
  )
  return Draft(
    instruction,
    {path: _PROGRAM.format(expression=buggy), 'notes.md': draw.word() + '\n'},
    [{'name': 'cases', 'kind': 'runs', 'path': path, 'cases': cases}],
    {'path': path, 'right': right, 'last': cases[-1][1].strip()},
    changes=(path,),
  )


def script_repair(spec: Spec, wrong: Wrong) -> list[str]:
  path, new = spec['path'], spec['right']
  if 'constant' in wrong:
    new = spec['last']
  if 'syntax' in wrong:
    new += ')'
  if 'elsewhere' in wrong:
    return [f'cat {path}', f"sed -i 's/line.strip()/line/' {path}"]
  return [f'cat {path}', f"sed -i 's/  print(.*/  print({new})/' {path}"]


def draft_program(draw: Draw) -> Draft:
  path, by_count = f'{draw.word()}.py', draw.flip()
  cases = []
  for _ in range(3):
    words = draw.some(4)
    # Counts 3, 1, 1 and 2, in an order that is neither sorted one.
    bag = [words[i] for i in (0, 1, 0, 3, 2, 3, 0)]
    bag[1], bag[4] = max(bag[1], bag[4]), min(bag[1], bag[4])
    counts = {w: bag.count(w) for w in bag}
    ranked = sorted(counts)
    if by_count:
      ranked.sort(key=counts.__getitem__, reverse=True)  # keeps the alphabet
    want = text([f'{w} {counts[w]}' for w in ranked])
    given = ' '.join(w.upper() if n == 0 else w for n, w in enumerate(bag))
    cases.append([given + '\n', want])
  order = (
    'by count from high to low, equal counts by the alphabet'
    if by_count
    else 'by the alphabet'
  )
  instruction = draw.one(
    [
      f'Write {path}: it counts the words on standard input, in lower case, '
      f'and prints "word count" lines, sorted {order}.',
      f'Make a Python program {path} that reads text from standard input and '
      f'prints each word in lower case with its count, sorted {order}.',
      f'{path} should count words of its standard input without regard to '
      f'case and print a line "word count" for each, sorted {order}.',
    ]
  )
  return Draft(
    instruction,
    {},
    [{'name': 'cases', 'kind': 'runs', 'path': path, 'cases': cases}],
    {'path': path, 'by_count': by_count},
  )


def script_program(spec: Spec, wrong: Wrong) -> list[str]:
  by_count = spec['by_count'] != ('order' in wrong)
  key = '(-count[w], w)' if by_count else 'w'
  lower = '' if 'case' in wrong else '.lower()'
  shown = 'count[w], w' if 'swap' in wrong else 'w, count[w]'
  code = f"""import collections, sys
count = collections.Counter(sys.stdin.read(){lower}.split())
for w in sorted(count, key=lambda w: {key}):
  print({shown})
"""
  return [f"cat > {spec['path']} <<'END'\n{code}END"]


# ---- the table -------------------------------------------------------------


def _family(
  domain: str, draft: Any, script: Any, *mistakes: str, looks: bool = False
) -> Family:
  shares = dict.fromkeys(('stop', *mistakes), 1.0)
  return Family(draft, script, shares, looks=looks, domain=domain)


FAMILIES: Mapping[str, Family] = {
  'actions': _family(
    'product_collab',
    draft_actions,
    script_actions,
    *('done', 'columns', 'short'),
  ),
  'incidents': _family(
    'systems_auto',
    draft_incidents,
    script_incidents,
    *('level', 'first', 'key'),
    looks=True,
  ),
  'settings': _family(
    'systems_auto',
    draft_settings,
    script_settings,
    *('struck', 'short', 'text'),
    looks=True,
  ),
  'regions': _family(
    'analysis_reason',
    draft_regions,
    script_regions,
    *('units', 'sheet', 'order'),
  ),
  'factsheet': _family(
    'content_domain',
    draft_factsheet,
    script_factsheet,
    *('order', 'fields', 'heading'),
  ),
  'plan': _family(
    'planning_knowl',
    draft_plan,
    script_plan,
    *('sequence', 'zero', 'first'),
    looks=True,
  ),
  'repair': _family(
    'software_dev',
    draft_repair,
    script_repair,
    *('constant', 'syntax', 'elsewhere'),
    looks=True,
  ),
  'program': _family(
    'software_dev', draft_program, script_program, *('order', 'case', 'swap')
  ),
}
