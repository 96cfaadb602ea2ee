"""Trained on x evaluated on: several runs beside each other, by harness.

  python -m clawjax.eval.transfer runs/mix runs/mix-pi ... --out transfer.html

Each run evaluated its policy through several harnesses. A row is a run, named
by the harnesses that it was trained through; a column is a harness that it was
evaluated through; the first row is the policy before any training. Below, the
mixed policy against each single-harness one, on that one's own harness: paired
by task, with an interval, because a difference of means alone says nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from clawjax.eval import folder as folder_lib
from clawjax.eval import page, scores

_BEFORE = 'before training'


@dataclasses.dataclass(frozen=True)
class Row:
  """A policy and its trials.

  Attributes:
    name: for people.
    trained: harnesses that it was trained through, () for none.
    trials: sampled (not greedy) trials by harness.
    rollouts: training rollouts by harness.
  """

  name: str
  trained: tuple[str, ...]
  trials: dict[str, list[scores.Trial]]
  rollouts: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The mixed policy against a single-harness one, on the latter's harness."""

  harness: str
  difference: scores.Difference
  rollouts: tuple[int, int]

  @property
  def verdict(self) -> str:
    """'above', 'within noise' or 'below', by the 95% interval."""
    change = self.difference.change
    if not change.tasks:
      return 'not known'
    if change.low > 0:
      return 'above'
    return 'below' if change.high < 0 else 'within noise'


def row(run: folder_lib.RunFolder) -> Row:
  """What a finished run says, after training."""
  counts: dict[str, int] = {}
  for name in run.metric_names():
    section, _, harness = name.partition('/')
    if section == 'reward' and harness:
      counts[harness] = int(sum(run.series(f'rollouts/valid/{harness}')[1]))
  trained = tuple(sorted(counts))
  return Row(
    name=' + '.join(trained) or run.path.resolve().name,
    trained=trained,
    trials=_sampled(run.trials.get('after', ())),
    rollouts=counts,
  )


def before(runs: Sequence[folder_lib.RunFolder]) -> Row:
  """The untrained policy, from the first run that evaluated it."""
  for run in runs:
    if trials := _sampled(run.trials.get('before', ())):
      return Row(_BEFORE, (), trials, {})
  return Row(_BEFORE, (), {}, {})


def _sampled(trials: Sequence[scores.Trial]) -> dict[str, list[scores.Trial]]:
  return scores.split([t for t in trials if not t.greedy], 'harness')


def compare(rows: Sequence[Row]) -> list[Comparison]:
  """The run with most harnesses against each run with one of them."""
  mixed = max(rows, key=lambda r: len(r.trained), default=None)
  if mixed is None or len(mixed.trained) < 2:
    return []
  out = []
  for one in rows:
    if len(one.trained) != 1 or one.trained[0] not in mixed.trained:
      continue
    [harness] = one.trained
    out.append(
      Comparison(
        harness,
        scores.difference(
          one.trials.get(harness, ()), mixed.trials.get(harness, ())
        ),
        (one.rollouts[harness], mixed.rollouts[harness]),
      )
    )
  return out


def render(runs: Sequence[folder_lib.RunFolder]) -> str:
  """The matrix and the comparisons as parts of a page."""
  rows = [before(runs), *map(row, runs)]
  names = sorted({h for r in rows for h in r.trials})
  body = page.table(
    ['trained on', *map(page.escape, names)],
    [[page.escape(r.name), *(_cell(r, n) for n in names)] for r in rows],
    caption='Pass@1, sampled, on unseen tasks; small figures are 95% intervals '
    'over tasks; bold where policy and harness met in training',
  )
  out = page.section('Trained on x evaluated on', body)
  found = compare(rows)
  if found:
    out += page.section(
      'The mixed policy on each harness',
      page.table(
        ['harness', 'alone', 'mixed', 'change', 'rollouts', 'verdict'],
        [
          [
            page.escape(c.harness),
            page.number(c.difference.before),
            page.number(c.difference.after),
            page.signed(c.difference.change.value)
            + page.span(c.difference.change.low, c.difference.change.high),
            f'{c.rollouts[0]} / {c.rollouts[1]}',
            c.verdict,
          ]
          for c in found
        ],
        text_columns=(0, 5),
      ),
      lead='Against the policy trained through that harness alone, paired by '
      'task; the rollouts are those trained on through it, alone / mixed.',
    )
  return out


def _cell(one: Row, harness: str) -> str:
  trials = one.trials.get(harness)
  if not trials:
    return page.NONE
  e = scores.pass1(trials)
  text = page.number(e.value)
  if harness in one.trained:
    text = f'<b>{text}</b>'
  return text + page.span(e.low, e.high)


def main(argv: Sequence[str] | None = None) -> int:
  """Command line: see the top of the file."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('runs', nargs='+', type=pathlib.Path)
  parser.add_argument('--out', type=pathlib.Path, default='transfer.html')
  options = parser.parse_args(argv)
  for path in options.runs:
    if not (path / 'eval').is_dir():
      print(
        f'transfer: wanted run folders with an evaluation, got {path}',
        file=sys.stderr,
      )
      return 2
  runs = [folder_lib.read(path, rollout_bytes=0) for path in options.runs]
  options.out.write_text(page.shell('Transfer', render(runs)))
  for c in compare([row(run) for run in runs]):
    print(
      f'{c.harness}: alone {c.difference.before:.3f}, mixed'
      f' {c.difference.after:.3f}: {c.verdict}'
    )
  print(options.out)
  return 0


if __name__ == '__main__':
  sys.exit(main())
