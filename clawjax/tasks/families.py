"""Families of small file tasks: how one is drawn, solved, and got wrong.

A family turns a `Draw` (seeded words and numbers) into a `Draft`: instruction,
files, checks, and the `spec` that its script needs. `script(spec, wrong)`
gives the shell commands of an expert; `wrong` names the mistakes to make.
Every mistake stands at a point where the right choice can be seen (which
direction, which file, look first or guess), so that a policy can learn to
avoid it. The numbers behind the mistakes say how much of all failures they
make; see `mistakes`. Nothing here reads a transcript: what counts is in
`checks`, for `check.py`.

To add one: write `draft_x` and `script_x`, add a line to `FAMILIES`; the tests
then run it for real.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clawjax.tasks import check
from clawjax.tasks.words import WORDS

# Where a mistaken script writes, and what it reads, instead of what was asked.
WRONG_OUT = 'out.txt'
WRONG_SOURCE = 'data.txt'


class Draw:
  """Seeded draws of distinct words and of numbers; remembers the words.

  Args:
    rng: source of randomness.
    difficulty: 0, 1 or 2; sets the rows per file, the number of files that do
      not matter, and whether there is an extra step.
  """

  def __init__(self, rng: np.random.Generator, difficulty: int):
    self.rng = rng
    self.size = 3 + difficulty + int(rng.integers(0, 2))
    self._order = [str(w) for w in rng.permutation(WORDS)]
    self._used = 0

  @property
  def words(self) -> tuple[str, ...]:
    """All words drawn so far."""
    return tuple(self._order[: self._used])

  def word(self) -> str:
    """A word not drawn before."""
    self._used += 1
    return self._order[self._used - 1]

  def some(self, count: int) -> list[str]:
    """Several words not drawn before."""
    return [self.word() for _ in range(count)]

  def name(self) -> str:
    """A file name not drawn before."""
    return f'{self.word()}.txt'

  def number(self) -> int:
    """A number of one or two digits."""
    return int(self.rng.integers(2, 100))

  def numbers(self, count: int) -> list[int]:
    """Distinct numbers."""
    return [int(n) for n in self.rng.choice(98, count, replace=False) + 2]

  def flip(self) -> bool:
    """A fair coin."""
    return bool(self.rng.integers(0, 2))

  def one(self, choices: Sequence[str]) -> str:
    """One of the choices."""
    return choices[int(self.rng.integers(0, len(choices)))]


@dataclasses.dataclass(frozen=True)
class Draft:
  """A task before it is named and split.

  Attributes:
    instruction: what the user asks.
    files: path -> text or bytes.
    checks: list for `check.py`, without the guard on untouched files.
    spec: what the script needs; JSON values.
    changes: files of `files` that a right solution changes or removes.
  """

  instruction: str
  files: Mapping[str, str | bytes]
  checks: Sequence[Mapping[str, Any]]
  spec: Mapping[str, Any]
  changes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Family:
  """One kind of task.

  Attributes:
    draft: draws a task.
    script: commands of the expert, given spec and mistakes.
    mistakes: name -> share of the failures it makes. 'stop' (ending without
      acting) and 'out' (a wrong output file) mean the same in all families.
    looks: whether the answer is only in the workspace, so that a look must
      come before the action.
    domain: what kind of work it is.
  """

  draft: Callable[[Draw], Draft]
  script: Callable[[Mapping[str, Any], frozenset[str]], list[str]]
  mistakes: Mapping[str, float]
  looks: bool = False
  domain: str = 'files'


def text(rows: Sequence[str]) -> str:
  """Rows as the content of a file."""
  return ''.join(f'{row}\n' for row in rows)


def listing(words: Sequence[str]) -> str:
  """'a, b and c'."""
  return ', '.join(words[:-1]) + ' and ' + words[-1]


def out_name(spec: Mapping[str, Any], wrong: frozenset[str]) -> str:
  return WRONG_OUT if 'out' in wrong else spec['out']


def source_name(spec: Mapping[str, Any], wrong: frozenset[str]) -> str:
  return WRONG_SOURCE if 'source' in wrong else spec['source']


# ---- create ----------------------------------------------------------------


def draft_create(draw: Draw) -> Draft:
  out, words = draw.name(), draw.some(min(3, draw.size - 1))
  instruction = draw.one(
    [
      f'Create the file {out} with one word per line: {listing(words)}.',
      f'Write the words {listing(words)} to {out}, each on its own line.',
      f'Make a new file {out}. Its lines are {listing(words)}, in this order.',
      f'Put {listing(words)} into {out}, one word on each line.',
    ]
  )
  checks = [{'name': 'rows', 'kind': 'lines', 'path': out, 'lines': words}]
  checks[0]['partial'] = 0.3
  return Draft(instruction, {}, checks, {'out': out, 'words': words})


def script_create(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  words = list(spec['words'])
  if 'order' in wrong:
    words[:2] = words[1::-1]
  if 'short' in wrong:
    words.pop()
  return [f"printf '%s\\n' {' '.join(words)} > {out_name(spec, wrong)}"]


# ---- copy: one value from a file -------------------------------------------


def draft_copy(draw: Draw) -> Draft:
  source, out, keys = draw.name(), draw.name(), draw.some(draw.size)
  numbers = draw.numbers(len(keys))
  at = int(draw.rng.integers(0, len(keys)))
  key, number = keys[at], numbers[at]
  instruction = draw.one(
    [
      f'Find the number of {key} in {source} and write it to {out}.',
      f'Look up {key} in {source}. Save only its number in {out}.',
      f'Which number has {key} in {source}? Put the number into {out}.',
      f'Write the number that follows {key} in {source} to the file {out}.',
    ]
  )
  rows = [f'{k} {n}' for k, n in zip(keys, numbers, strict=True)]
  other = numbers[at - 1]
  return Draft(
    instruction,
    {source: text(rows)},
    [{'name': 'value', 'kind': 'value', 'path': out, 'value': str(number)}],
    {
      'source': source,
      'out': out,
      'number': number,
      'other': other,
      'guess': next(n for n in range(10, 99, 7) if n not in numbers),
    },
  )


def script_copy(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  out = out_name(spec, wrong)
  if 'guess' in wrong:
    return [f'echo {spec["guess"]} > {out}']
  number = spec['other'] if 'row' in wrong else spec['number']
  return [f'cat {spec["source"]}', f'echo {number} > {out}']


# ---- edit: one row, with a value from another file -------------------------


def draft_edit(draw: Draw) -> Draft:
  source, ref, keys = draw.name(), draw.name(), draw.some(draw.size)
  numbers = draw.numbers(len(keys) + 1)
  number = numbers.pop()
  at = int(draw.rng.integers(0, len(keys)))
  key = keys[at]
  instruction = draw.one(
    [
      f'In {source} set {key} to the number stored in {ref}.',
      f'Change the number of {key} in {source} to the one in {ref}.',
      f'Update {source}: {key} must get the number that {ref} holds.',
      f'Take the number from {ref} and put it after {key} in {source}.',
    ]
  )
  rows = [f'{k} {n}' for k, n in zip(keys, numbers, strict=True)]
  rest = rows[:at] + rows[at + 1 :]
  return Draft(
    instruction,
    {source: text(rows), ref: f'{number}\n'},
    [
      {
        'name': 'row',
        'kind': 'row',
        'path': source,
        'key': key,
        'line': f'{key} {number}',
      },
      {
        'name': 'rest',
        'kind': 'rest',
        'path': source,
        'key': key,
        'lines': rest,
        'factor': 0.4,
      },
    ],
    {
      'source': source,
      'ref': ref,
      'key': key,
      'number': number,
      'guess': next(n for n in range(12, 99, 7) if n != number),
    },
    changes=(source,),
  )


def script_edit(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  source, ref, key = spec['source'], spec['ref'], spec['key']
  if 'swap' in wrong:
    source, ref = ref, source
  number = spec['guess'] if 'guess' in wrong else spec['number']
  if 'key' in wrong:
    key = spec['ref'].removesuffix('.txt')
  act = f"sed -i 's/^{key} .*/{key} {number}/' {source}"
  return [act] if 'guess' in wrong else [f'cat {ref}', act]


# ---- sort ------------------------------------------------------------------


def draft_sort(draw: Draw) -> Draft:
  source, out, words = draw.name(), draw.name(), draw.some(draw.size)
  down = draw.flip()
  if words in (sorted(words), sorted(words, reverse=True)):
    words = words[1:] + words[:1]
  how = 'from z to a' if down else 'from a to z'
  instruction = draw.one(
    [
      f'Sort the lines of {source} {how} and save them in {out}.',
      f'Write the lines of {source} to {out}, sorted {how}.',
      f'Order {source} {how}. The result goes into {out}.',
      f'Make {out}: the lines of {source} in order {how}.',
    ]
  )
  right = sorted(words, reverse=down)
  return Draft(
    instruction,
    {source: text(words)},
    [
      {
        'name': 'rows',
        'kind': 'lines',
        'path': out,
        'lines': right,
        'partial': 0.3,
      }
    ],
    {'source': source, 'out': out, 'down': down},
  )


def script_sort(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  down = spec['down'] != ('direction' in wrong)
  flag = '-r ' if down else ''
  source, out = source_name(spec, wrong), out_name(spec, wrong)
  return [f'sort {flag}{source} > {out}']


# ---- filter ----------------------------------------------------------------


def draft_filter(draw: Draw) -> Draft:
  source, out, words = draw.name(), draw.name(), draw.some(draw.size + 1)
  tag, other = draw.some(2)
  # At least one row of each tag, in an order that gives nothing away.
  tags = [tag, other] + [draw.one([tag, other]) for _ in words[2:]]
  tags = [str(t) for t in draw.rng.permutation(tags)]
  rows = [f'{w} {t}' for w, t in zip(words, tags, strict=True)]
  without = draw.flip()
  how = f'without {tag}' if without else f'with {tag}'
  instruction = draw.one(
    [
      f'Copy the lines {how} from {source} to {out}.',
      f'Save all lines of {source} {how} in {out}, in the same order.',
      f'Filter {source}: only the lines {how} go into {out}.',
      f'Write the lines of {source} {how} to {out}.',
    ]
  )
  right = [r for r in rows if r.endswith(f' {tag}') != without]
  return Draft(
    instruction,
    {source: text(rows)},
    [
      {
        'name': 'rows',
        'kind': 'lines',
        'path': out,
        'lines': right,
        'partial': 0.3,
      }
    ],
    {'source': source, 'out': out, 'tag': tag, 'without': without},
  )


def script_filter(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  without = spec['without'] != ('invert' in wrong)
  flag = '-v ' if without else ''
  source, out = source_name(spec, wrong), out_name(spec, wrong)
  return [f'grep {flag}{spec["tag"]} {source} > {out}']


# ---- rename: the file that holds a word ------------------------------------


def draft_rename(draw: Draw) -> Draft:
  names = [draw.name() for _ in range(3)]
  out = draw.name()
  bodies = [draw.some(draw.size - 1) for _ in names]
  at = int(draw.rng.integers(0, len(names)))
  key = draw.one(bodies[at])
  instruction = draw.one(
    [
      f'One file holds the word {key}. Rename that file to {out}.',
      f'Rename the file that contains {key} to {out}.',
      f'Find the file with {key} in it and give it the name {out}.',
      f'Which file mentions {key}? Its new name must be {out}.',
    ]
  )
  files = {n: text(b) for n, b in zip(names, bodies, strict=True)}
  return Draft(
    instruction,
    files,
    [
      {
        'name': 'moved',
        'kind': 'moved',
        'path': out,
        'source': names[at],
        'lines': bodies[at],
        'partial': 0.3,
      }
    ],
    {
      'source': names[at],
      'other': names[at - 1],
      'out': out,
      'key': key,
    },
    changes=(names[at],),
  )


def script_rename(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  out = out_name(spec, wrong)
  verb = 'cp' if 'copy' in wrong else 'mv'
  if 'guess' in wrong:
    return [f'{verb} {spec["key"]}.txt {out}']
  return [f'grep -l {spec["key"]} *', f'{verb} {spec["source"]} {out}']


# ---- sum -------------------------------------------------------------------


def draft_sum(draw: Draw) -> Draft:
  source, out, words = draw.name(), draw.name(), draw.some(draw.size)
  table = [[draw.number() for _ in range(2)] for _ in words]
  totals = [sum(r[c] for r in table) for c in range(2)]
  if totals[0] == totals[1]:
    table[0][1] += 1
    totals[1] += 1
  column = 2 + int(draw.flip())
  instruction = draw.one(
    [
      f'Add up column {column} of {source} and write the total to {out}.',
      f'Write the sum of column {column} in {source} to {out}.',
      f'What is the total of column {column} in {source}? Save it in {out}.',
      f'Sum the numbers of column {column} of {source} into {out}.',
    ]
  )
  rows = [f'{w} {r[0]} {r[1]}' for w, r in zip(words, table, strict=True)]
  return Draft(
    instruction,
    {source: text(rows)},
    [
      {
        'name': 'value',
        'kind': 'value',
        'path': out,
        'value': str(totals[column - 2]),
      }
    ],
    {'source': source, 'out': out, 'column': column},
  )


def script_sum(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  column = spec['column']
  if 'column' in wrong:
    column = 5 - column
  source, out = source_name(spec, wrong), out_name(spec, wrong)
  return [f"awk '{{s+=${column}}} END {{print s}}' {source} > {out}"]


# ---- combine ---------------------------------------------------------------


def draft_combine(draw: Draw) -> Draft:
  first, second, out = draw.name(), draw.name(), draw.name()
  head, tail = draw.some(draw.size - 1), draw.some(draw.size - 1)
  instruction = draw.one(
    [
      f'Put the lines of {first} and then those of {second} into {out}.',
      f'Write {second} below {first} and save both in {out}.',
      f'Combine two files in {out}: {first} on top, {second} below.',
      f'Join them in {out}: {second} comes after {first}.',
    ]
  )
  return Draft(
    instruction,
    {first: text(head), second: text(tail)},
    [
      {
        'name': 'rows',
        'kind': 'lines',
        'path': out,
        'lines': [*head, *tail],
        'partial': 0.3,
      }
    ],
    {'first': first, 'second': second, 'out': out},
  )


def script_combine(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  parts = [spec['first'], spec['second']]
  if 'order' in wrong:
    parts.reverse()
  if 'half' in wrong:
    parts.pop()
  return [f'cat {" ".join(parts)} > {out_name(spec, wrong)}']


# ---- follow: a file that names another one ---------------------------------


def draft_follow(draw: Draw) -> Draft:
  source, out = draw.name(), draw.name()
  names = [draw.name() for _ in range(2)]
  bodies = [draw.some(draw.size - 1) for _ in names]
  at = int(draw.flip())
  instruction = draw.one(
    [
      f'The file {source} names another file. Copy that file to {out}.',
      f'Read {source}: it holds a file name. Copy this file to {out}.',
      f'Copy the file whose name is in {source} to {out}.',
      f'{out} must be a copy of the file that {source} points to.',
    ]
  )
  files = {n: text(b) for n, b in zip(names, bodies, strict=True)}
  return Draft(
    instruction,
    {source: f'{names[at]}\n', **files},
    [{'name': 'rows', 'kind': 'lines', 'path': out, 'lines': bodies[at]}],
    {'source': source, 'target': names[at], 'out': out},
  )


def script_follow(spec: Mapping[str, Any], wrong: frozenset[str]) -> list[str]:
  out = out_name(spec, wrong)
  verb = 'mv' if 'move' in wrong else 'cp'
  if 'shallow' in wrong:
    return [f'{verb} {spec["source"]} {out}']
  return [f'cat {spec["source"]}', f'{verb} {spec["target"]} {out}']


# ---- the table -------------------------------------------------------------

FAMILIES: Mapping[str, Family] = {
  'create': Family(
    draft_create,
    script_create,
    {'stop': 0.1, 'short': 0.5, 'order': 0.2, 'out': 0.2},
  ),
  'copy': Family(
    draft_copy,
    script_copy,
    {'stop': 0.1, 'guess': 0.4, 'row': 0.3, 'out': 0.2},
    looks=True,
  ),
  'edit': Family(
    draft_edit,
    script_edit,
    {'stop': 0.1, 'guess': 0.5, 'key': 0.2, 'swap': 0.2},
    looks=True,
  ),
  'sort': Family(
    draft_sort, script_sort, {'stop': 0.1, 'direction': 0.7, 'out': 0.2}
  ),
  'filter': Family(
    draft_filter,
    script_filter,
    {'stop': 0.1, 'invert': 0.6, 'source': 0.1, 'out': 0.2},
  ),
  'rename': Family(
    draft_rename,
    script_rename,
    {'stop': 0.1, 'guess': 0.5, 'copy': 0.2, 'out': 0.2},
    looks=True,
  ),
  'sum': Family(
    draft_sum,
    script_sum,
    {'stop': 0.1, 'column': 0.6, 'source': 0.1, 'out': 0.2},
  ),
  'combine': Family(
    draft_combine,
    script_combine,
    {'stop': 0.1, 'order': 0.6, 'half': 0.1, 'out': 0.2},
  ),
  'follow': Family(
    draft_follow,
    script_follow,
    {'stop': 0.1, 'shallow': 0.6, 'move': 0.1, 'out': 0.2},
    looks=True,
  ),
}


def kept(draft: Draft) -> dict[str, Any] | None:
  """The guard that the other files stay as they were; None without files."""
  files = {
    path: check.sha256(
      body if isinstance(body, str) else body.decode('utf-8', 'replace')
    )
    for path, body in draft.files.items()
    if path not in draft.changes
  }
  if not files:
    return None
  return {'name': 'kept', 'kind': 'kept', 'files': files, 'factor': 0.4}
