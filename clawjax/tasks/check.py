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
import hashlib
import json
import os
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


def kept(root, check):
  """Share of the named files whose text is untouched (sha256 of the rows)."""
  good = 0
  for path, digest in check['files'].items():
    text = read(root, path)
    good += text is not None and sha256(text) == digest
  return float(good == len(check['files']))


def sha256(text):
  """Digest of a text, blanks at line ends and at the end aside."""
  return hashlib.sha256('\n'.join(rows(text)).encode()).hexdigest()


KINDS = {f.__name__: f for f in (lines, value, row, rest, moved, gone, kept)}


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
