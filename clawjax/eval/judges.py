"""What judges and guards said of an evaluation, as JSON and as tables.

Per cell: each judge's mean, how far several judges agree, what they took (calls,
tokens, seconds, dollars where prices are known), and how many rollouts carry a
flag (an edited test, a canary that was read). A flag does not change a score.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from clawjax.eval import bench, page, scores
from clawjax.tasks import agreement

_SUMMED = ('calls', 'cached', 'bad_replies', 'faults', 'disagreements')
_SUMMED += ('tokens_in', 'tokens_out', 'seconds')


def facts(trials: Sequence[scores.Trial]) -> dict[str, Any]:
  """Judges and flags of some trials; {} where there were none.

  Returns:
    'judges', 'alpha', 'kappa' (see `agreement.report`, over scored trials);
    'used': sums over all trials, 'cost' only when known for each;
    'flags': first word or two of a flag -> number of rollouts.
  """
  found: dict[str, Any] = {}
  by_unit = [t.by_judge for t in trials if t.scored and t.by_judge]
  if by_unit:
    found |= agreement.report(by_unit)
  used = [t.judge for t in trials if t.judge]
  if used:
    found['used'] = {n: sum(u.get(n, 0) for u in used) for n in _SUMMED}
    if all('cost' in u for u in used):
      found['used']['cost'] = sum(u['cost'] for u in used)
  flags: collections.Counter[str] = collections.Counter()
  for trial in trials:
    flags.update({kind(flag) for flag in trial.flags})
  if flags:
    found['flags'] = dict(flags)
  return found


def kind(flag: str) -> str:
  """'edited test a/b.py' -> 'edited test'."""
  return flag.rsplit(' ', 1)[0]


def section(cells: Sequence[bench.Cell]) -> str:
  """The part of the page; '' when no judge was asked and nothing flagged."""
  rows, agree, flagged = [], [], []
  for cell in cells:
    known = facts(cell.trials)
    for name, judge in known.get('judges', {}).items():
      rows.append(
        [
          page.escape(cell.label),
          page.escape(name),
          page.number(judge['mean']),
          f'{judge["units"]:,}',
        ]
      )
    if len(known.get('judges', {})) > 1:
      pairs = ', '.join(
        f'{page.escape(k)}: {page.number(v, 2)}'
        for k, v in known['kappa'].items()
      )
      agree.append(
        [page.escape(cell.label), page.number(known['alpha'], 2), pairs]
      )
    for name, count in known.get('flags', {}).items():
      flagged.append([page.escape(cell.label), page.escape(name), f'{count:,}'])
  body = ''
  if rows:
    head = ['cell', 'judge', 'mean', 'rollouts']
    body += page.table(head, rows, text_columns=(0, 1)) + _used(cells)
  if agree:
    head = ['cell', 'Krippendorff\u2019s \u03b1', 'Cohen\u2019s \u03ba']
    body += page.table(head, agree, text_columns=(0, 2))
    body += (
      '<p class="cap">Agreement on the value per rollout, quadratic '
      'weights; 1 is full agreement, 0 what chance gives.</p>'
    )
  if flagged:
    head = ['cell', 'flag', 'rollouts']
    body += page.table(head, flagged, text_columns=(0, 1))
    body += '<p class="cap">Flags do not change a score.</p>'
  return page.section('Judges and flags', body) if body else ''


def _used(cells: Sequence[bench.Cell]) -> str:
  """One line on what the judges took."""
  used = facts([t for c in cells for t in c.trials]).get('used')
  if not used:
    return ''
  waited = used['seconds'] / used['calls'] if used['calls'] else 0.0
  text = (
    f'{used["calls"]:,} requests ({used["cached"]:,} more from the cache), '
    f'{used["tokens_in"]:,} tokens in and {used["tokens_out"]:,} out, '
    f'{waited:.1f} s each, {used["bad_replies"]:,} bad replies, '
    f'{used["faults"]:,} failed'
  )
  if 'cost' in used:
    text += f', {used["cost"]:.2f} US dollars'
  return f'<p class="cap">Judges: {text}.</p>'
