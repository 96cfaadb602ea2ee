"""The paper's published scores, for a table beside ours.

`data/published.json` restates tables 1 and 2 of ClawGym II. The numbers are
theirs: measured with their models, judge, harness versions and sampling, of
which several are not disclosed, so they are shown as a reference and never
mixed into a mean of ours. Domains of a user's task set are matched to the
paper's by their first letters, as sets spell them differently.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Iterable, Mapping

_FILE = pathlib.Path(__file__).with_name('data') / 'published.json'
# The paper's columns in its order, with their headings.
DOMAINS = {
  'product_collab': 'Prod.',
  'systems_auto': 'Syst.',
  'analysis_reason': 'Anal.',
  'content_domain': 'Cont.',
  'planning_knowl': 'Plan.',
  'software_dev': 'Softw.',
}


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of the paper's tables, in percent.

  Attributes:
    harness, model: as in the paper, harness names as ours.
    domains: domain -> score.
    average: their average over tasks.
    pinchbench: their PinchBench score, or None where they give none.
  """

  harness: str
  model: str
  domains: Mapping[str, float]
  average: float
  pinchbench: float | None


@functools.cache
def _data() -> dict:
  return json.loads(_FILE.read_text())


def source() -> str:
  """Where the numbers come from."""
  return _data()['source']


def weights() -> dict[str, int]:
  """Domain -> tasks of the benchmark, the weights of the average."""
  return dict(_data()['weights'])


def rows(harnesses: Iterable[str] = ()) -> list[Row]:
  """The paper's rows, of some harnesses or of all."""
  wanted = set(harnesses)
  return [
    Row(r['harness'], r['model'], r['domains'], r['average'], r['pinchbench'])
    for r in _data()['rows']
    if not wanted or r['harness'] in wanted
  ]


def domain_of(name: str) -> str | None:
  """The paper's domain that a task set's name stands for, or None."""
  letters = re.sub('[^a-z]', '', name.lower())
  for domain in DOMAINS:
    if letters and letters[:4] == domain[:4]:
      return domain
  return None


def match(names: Iterable[str]) -> dict[str, str] | None:
  """Names of a set's domains -> the paper's, or None unless all six match."""
  found = {name: domain_of(name) for name in names}
  if set(found.values()) != set(DOMAINS) or len(found) != len(DOMAINS):
    return None
  return {name: domain for name, domain in found.items() if domain}
