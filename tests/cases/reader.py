"""The shared cases: public faults of agents and servers as small inputs.

Each case has a check of its own (`check('C01')`), or is held by the checks of
its level (`levels.py`); a case with neither fails as "not run".
"""

import contextlib
import dataclasses
import json
import logging
import pathlib

CHECKS = {}


@dataclasses.dataclass(frozen=True)
class Case:
  """One line of a case file.

  Attributes:
    id: letter, number, slug.
    input: what comes in, see the cases' own README.
    expected: what must come of it.
  """

  id: str
  input: dict
  expected: dict

  @property
  def number(self):
    """Letter and number: 'C01'."""
    return self.id.partition('-')[0]

  @property
  def level(self):
    """'model_output', 'request' or 'sequence'."""
    return self.input['level']

  @property
  def steps(self):
    """Of a sequence."""
    return self.input['steps']

  @property
  def body(self):
    """Of a request."""
    return self.input['body']


def load(folder: pathlib.Path) -> list[Case]:
  """All cases of a folder; none where it is absent."""
  return [
    Case(*(json.loads(line)[k] for k in ('id', 'input', 'expected')))
    for path in sorted(folder.glob('*.jsonl'))
    for line in path.read_text().splitlines()
  ]


def check(*numbers):
  """Registers an async check(case, bench) for cases by number."""

  def add(function):
    for number in numbers:
      assert number not in CHECKS, number
      CHECKS[number] = function
    return function

  return add


@contextlib.contextmanager
def heard(name):
  """Lines that a logger says meanwhile."""
  lines = []
  handler = logging.Handler()
  handler.emit = lambda record: lines.append(record.getMessage())
  logger = logging.getLogger(name)
  level = logger.level
  logger.addHandler(handler)
  logger.setLevel(logging.INFO)
  try:
    yield lines
  finally:
    logger.removeHandler(handler)
    logger.setLevel(level)


def same(a, b):
  """Equality of JSON values: 1000.0 is 1000, true is not 1, "1" is not 1."""
  if isinstance(a, bool) or isinstance(b, bool):
    return a is b
  if isinstance(a, (int, float)) and isinstance(b, (int, float)):
    return a == b
  if isinstance(a, dict) and isinstance(b, dict):
    return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
  if isinstance(a, list) and isinstance(b, list):
    return len(a) == len(b) and all(map(same, a, b))
  return type(a) is type(b) and a == b
