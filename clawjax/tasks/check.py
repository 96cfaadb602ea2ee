"""The hidden grader of our own tasks: stdlib only, copied as it stands.

A task carries this file as `check.py` and its demands as `checks.json` beside
it. In the grading sandbox `python3 -I check.py WORKSPACE` looks at the files
that the agent left, and at nothing else, and prints one JSON line:

  {"reward": 0.65, "checks": {"rows": 0.3, "gone": 1.0, "kept": 1.0}}

`checks.json` holds a list of {"name", "kind", "weight", ...}. Each check gives
a value in [0, 1]; the reward is their weighted mean. A check with a "factor"
is a guard: it does not add, it multiplies the reward by 1 - (1 - factor) *
(1 - value), so that leaving everything alone never earns anything.
"""

import collections
import csv
import hashlib
import io
import json
import os
import subprocess
import sys

MAX_BYTES = 1 << 20  # more than any answer needs; a bigger file is wrong


def read(root, path):
  """Text of a regular file of the workspace, or None."""
  full = os.path.join(root, path)
  if os.path.islink(full) or not os.path.isfile(full):
    return None
  if not os.path.realpath(full).startswith(os.path.realpath(root) + os.sep):
    return None
  with open(full, 'rb') as stream:
    data = stream.read(MAX_BYTES + 1)
  return None if len(data) > MAX_BYTES else data.decode('utf-8', 'replace')


def rows(text):
  """Lines without trailing blanks; blank lines at the end do not count."""
  lines = [line.rstrip() for line in text.split('\n')]
  while lines and not lines[-1]:
    lines.pop()
  return lines


def overlap(got, want):
  """F1 of two multisets of rows."""
  same = collections.Counter(got) & collections.Counter(want)
  total = len(got) + len(want)
  return 2.0 * sum(same.values()) / total if total else 1.0


def lines(root, check):
  """All rows in order: 1; else `partial` times the share of right rows."""
  text = read(root, check['path'])
  if text is None:
    return 0.0
  got, want = rows(text), check['lines']
  if got == want:
    return 1.0
  if check.get('any_order') and sorted(got) == sorted(want):
    return 1.0
  return check.get('partial', 0.0) * overlap(got, want)


def value(root, check):
  """The file holds this text and nothing else (white space aside)."""
  text = read(root, check['path'])
  return float(text is not None and text.strip() == check['value'])


def row(root, check):
  """Exactly one row starts with `key`, and it reads `line`."""
  text = read(root, check['path'])
  if text is None:
    return 0.0
  found = [r for r in rows(text) if r.split(' ')[0] == check['key']]
  return float(found == [check['line']])


def rest(root, check):
  """The rows that do not start with `key` are as they were, in order."""
  text = read(root, check['path'])
  if text is None:
    return 0.0
  others = [r for r in rows(text) if r.split(' ')[0] != check['key']]
  return float(others == check['lines'])


def moved(root, check):
  """`path` holds the content and `source` is gone; still there: `partial`."""
  text = read(root, check['path'])
  if text is None or rows(text) != check['lines']:
    return 0.0
  there = os.path.lexists(os.path.join(root, check['source']))
  return check.get('partial', 0.0) if there else 1.0


def gone(root, check):
  """Nothing is left at this path, in a workspace that is still there."""
  return float(not os.path.lexists(os.path.join(root, check['path'])))


def json_at(root, check):
  """The JSON file holds `value` under the keys `at`; numbers within 1e-6."""
  text = read(root, check['path'])
  if text is None:
    return 0.0
  try:
    found = json.loads(text)
    for key in check['at']:
      found = found[key]
  except (ValueError, KeyError, IndexError, TypeError, RecursionError):
    return 0.0
  return float(alike(found, check['value']))


def alike(got, want):
  """Equal JSON values; numbers may differ by 1e-6, true is no number."""
  if isinstance(want, bool) or isinstance(got, bool):
    return got is want
  if isinstance(want, (int, float)) and isinstance(got, (int, float)):
    return abs(got - want) <= 1e-6
  if isinstance(want, dict) and isinstance(got, dict):
    return got.keys() == want.keys() and all(
      alike(got[k], want[k]) for k in want
    )
  if isinstance(want, list) and isinstance(got, list):
    return len(got) == len(want) and all(map(alike, got, want))
  return got == want


def table(root, check):
  """A CSV file with this header and these rows; else `partial` by rows.

  With `any_order` the rows may stand in any order.
  """
  text = read(root, check['path'])
  if text is None:
    return 0.0
  try:
    got = [
      tuple(cell.strip() for cell in line)
      for line in csv.reader(io.StringIO(text))
      if any(cell.strip() for cell in line)
    ]
  except csv.Error:
    return 0.0
  if not got or list(got[0]) != check['header']:
    return 0.0
  got, want = got[1:], [tuple(r) for r in check['rows']]
  if got == want or (check.get('any_order') and sorted(got) == sorted(want)):
    return 1.0
  return check.get('partial', 0.0) * overlap(got, want)


def has_rows(root, check):
  """Share of the given rows that the file holds, blanks and case aside.

  More than `most` rows in all (or a row of `never`) earn nothing: pasting
  everything in is no answer.
  """
  text = read(root, check['path'])
  if text is None:
    return 0.0
  got = [' '.join(r.lower().split()) for r in rows(text) if r.strip()]
  if len(got) > check.get('most', len(got)):
    return 0.0
  if any(r.lower() in got for r in check.get('never', ())):
    return 0.0
  want = [' '.join(r.lower().split()) for r in check['rows']]
  return sum(r in got for r in want) / len(want)


def runs(root, check):
  """All `cases` (input, output) that a Python program gets right: 1.

  Else `partial` of the share of right cases beyond those that one and the same
  answer to all would get: a constant is no part of a program. The program is
  the agent's: our own files are removed before it starts, so that it finds no
  answers, and what it prints is only compared.
  """
  if read(root, check['path']) is None:
    return 0.0
  here = os.path.dirname(os.path.abspath(__file__))
  if os.path.basename(here) == 'verifier':
    for name in os.listdir(here):
      try:
        os.unlink(os.path.join(here, name))
      except OSError:
        pass
  good = 0
  for given, want in check['cases']:
    try:
      done = subprocess.run(
        ['python3', check['path']],
        input=given.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        timeout=20,  # a busy machine is slow to start Python
        start_new_session=True,
      )
    except (OSError, subprocess.TimeoutExpired):
      continue
    out = done.stdout[:MAX_BYTES].decode('utf-8', 'replace')
    good += done.returncode == 0 and rows(out) == rows(want)
  total = len(check['cases'])
  if good == total:
    return 1.0
  wanted = collections.Counter('\n'.join(rows(w)) for _, w in check['cases'])
  free = max(wanted.values())
  return check.get('partial', 0.2) * max(0, good - free) / max(1, total - free)


def kept(root, check):
  """All the named files are there, their text untouched (see `sha256`)."""
  for path, digest in check['files'].items():
    text = read(root, path)
    if text is None or sha256(text) != digest:
      return 0.0
  return 1.0


def sha256(text):
  """Digest of a text, blanks at line ends and at the end aside."""
  return hashlib.sha256('\n'.join(rows(text)).encode()).hexdigest()


KINDS = {
  f.__name__: f
  for f in (
    *(lines, value, row, rest, moved, gone, kept),
    *(json_at, table, has_rows, runs),
  )
}


def score(root, checks):
  """Values by name and the reward of a workspace.

  Args:
    root: folder to look at.
    checks: list of checks as in `checks.json`.

  Returns:
    {'reward': float in [0, 1], 'checks': {name: float in [0, 1]}}.
  """
  values, total, weights, factor = {}, 0.0, 0.0, 1.0
  for check in checks:
    got = KINDS[check['kind']](root, check)
    values[check['name']] = round(got, 6)
    if 'factor' in check:
      factor *= 1.0 - (1.0 - check['factor']) * (1.0 - got)
    else:
      weight = check.get('weight', 1.0)
      total += weight * got
      weights += weight
  return {'reward': round(factor * total / weights, 6), 'checks': values}


def main():
  here = os.path.dirname(os.path.abspath(__file__))
  with open(os.path.join(here, 'checks.json'), encoding='utf-8') as stream:
    checks = json.load(stream)
  print(json.dumps(score(sys.argv[1], checks)))


if __name__ == '__main__':
  main()
