"""What an evaluation before and after training says, in tables and a sentence.

Sampled and greedy scores stand side by side: a policy that only became surer of
what it already did gains when sampled and gains nothing when greedy, and the
sentence at the top says which of the two was seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from clawjax.eval import folder as folder_lib
from clawjax.eval import page, scores


def headline(run: folder_lib.RunFolder) -> str:
  before, after = run.trials.get('before'), run.trials.get('after')
  if before is None and after is None:
    return page.section('Result', _from_metrics(run))
  rows = []
  facts = {}
  for greedy in (False, True):
    for label, threshold in (('Pass@1', None), ('solved', scores.SUCCESS)):
      row, fact = _compare(before, after, greedy, threshold)
      if row:
        kind = 'greedy' if greedy else 'sampled'
        rows.append([f'{label}, {kind}', *row])
        facts[label, greedy] = fact
  body = _sentence(facts) + page.table(
    ['', 'before', 'after', 'change', 'tasks better / worse', 'p'],
    rows,
    strong_rows=[0],
  )
  body += (
    '<p class="cap">Pass@1 is the mean score: over the samples of a task, then '
    'over tasks; <em>solved</em> counts full scores only. Small figures are 95% '
    'intervals from a bootstrap over tasks; the change is paired by task, p from '
    'sign flips. ' + _counted(before, after) + '</p>'
  )
  return page.section('Result on tasks not seen in training', body)


def _counted(before, after) -> str:
  out = []
  for when, trials in (('before', before), ('after', after)):
    if trials is None:
      continue
    s = scores.summarise(trials, ks=())
    text = f'{when}: {s.trials} rollouts of {s.tasks} tasks, {s.zeros} zeros'
    if s.errors:
      text += ', left out ' + ', '.join(
        f'{n} {page.escape(k)}' for k, n in s.errors.items()
      )
    out.append(text)
  return '; '.join(out).capitalize() + '.'


def _of(trials, greedy: bool) -> list[scores.Trial]:
  return [t for t in trials or () if t.greedy == greedy]


def _compare(before, after, greedy, threshold):
  """Cells of one row of the headline table, and its numbers."""
  a, b = _of(before, greedy), _of(after, greedy)
  if not a and not b:
    return None, None

  def one(trials):
    if threshold is None:
      return scores.pass1(trials)
    return scores.success(trials, threshold=threshold)

  ea, eb = one(a), one(b)
  d = scores.difference(a, b, threshold=threshold)
  cells = [_estimate(ea), _estimate(eb), _change(d.change)]
  if d.change.tasks:
    cells += [f'{d.better} / {d.worse}', _p_value(d.p_value)]
  else:
    cells += [page.NONE, page.NONE]
  return cells, (ea, eb, d)


def _estimate(e: scores.Estimate) -> str:
  return page.number(e.value) + page.span(e.low, e.high)


def _change(e: scores.Estimate) -> str:
  if not e.tasks:
    return page.NONE
  tone = ' class="up"' if e.low > 0 else ' class="down"' if e.high < 0 else ''
  return f'<span{tone}>{page.signed(e.value)}</span>' + page.span(e.low, e.high)


def _p_value(p: float) -> str:
  if not math.isfinite(p):
    return page.NONE
  return '&lt; 0.001' if p < 0.001 else f'{p:.3f}'


def _sentence(facts: Mapping) -> str:
  """The result in words, with what greedy decoding says about it."""
  fact = facts.get(('Pass@1', False)) or facts.get(('Pass@1', True))
  if fact is None:
    return ''
  before, after, change = fact
  if not before.tasks or not after.tasks:
    known = before if before.tasks else after
    when = 'before' if before.tasks else 'after'
    if not known.tasks:
      return '<p class="headline">No evaluation rollout could be scored.</p>'
    return (
      f'<p class="headline">Pass@1 is <b>{page.number(known.value)}</b> {when} '
      'training; the other side is missing.</p>'
    )
  delta = change.change
  verb = 'rose' if delta.low > 0 else 'fell' if delta.high < 0 else 'moved'
  text = (
    f'Pass@1 {verb} from <b>{page.number(before.value)}</b> to '
    f'<b>{page.number(after.value)}</b>'
  )
  if delta.tasks:
    text += (
      f' ({page.signed(delta.value)}, 95% interval {page.signed(delta.low, 2)} '
      f'to {page.signed(delta.high, 2)}, {delta.tasks} tasks)'
    )
    if delta.low <= 0 <= delta.high:
      text += ': not distinguishable from no change'
  text += '.'
  greedy = facts.get(('Pass@1', True))
  if greedy and ('Pass@1', False) in facts and greedy[2].change.tasks:
    g = greedy[2].change
    if delta.low > 0:
      text += (
        f' Greedy decoding gained {page.signed(g.value)} as well, so this is '
        'more than mere sharpening.'
        if g.low > 0
        else f' Greedy decoding changed by {page.signed(g.value)} only: the '
        'gain may be sharpening of what the model already knew.'
      )
  return f'<p class="headline">{text}</p>'


def _from_metrics(run: folder_lib.RunFolder) -> str:
  """Eval metrics when there are no trials: numbers without intervals."""
  rows = []
  for key in run.metric_names():
    if key.startswith('eval/'):
      steps, values = run.series(key)
      rows.append(
        [page.escape(key), page.number(values[0]), page.number(values[-1])]
        + [f'{steps[0]:g} {page.DASH} {steps[-1]:g}']
      )
  if not rows:
    return '<p class="headline">This run has no evaluation yet.</p>'
  return page.table(['metric', 'first', 'last', 'steps'], rows)


def parts(run: folder_lib.RunFolder) -> str:
  """Before and after by family, and by harness where there are several."""
  body = _split_table(run, 'family')
  if len(_names(run, 'harness')) > 1:
    body += _split_table(run, 'harness')
  if len(_names(run, 'domain')) > 1:
    body += _split_table(run, 'domain')
  return page.section('By part', body)


def _names(run: folder_lib.RunFolder, key: str) -> set[str]:
  return {
    getattr(t, key)
    for when in ('before', 'after')
    for t in run.trials.get(when, ())
  } - {''}


def _split_table(run: folder_lib.RunFolder, key: str) -> str:
  """One row per value of a field, with a small picture of the move."""
  before, after = run.trials.get('before'), run.trials.get('after')
  parts_a = scores.split(_of(before, False) or before or (), key)
  parts_b = scores.split(_of(after, False) or after or (), key)
  names = sorted(parts_a.keys() | parts_b.keys())
  if not any(names):
    return ''
  greedy_a, greedy_b = (
    scores.split(_of(t, True), key) for t in (before, after)
  )
  both = bool(greedy_a or greedy_b)
  rows = []
  for name in names:
    a, b = parts_a.get(name, []), parts_b.get(name, [])
    ea, eb = scores.pass1(a), scores.pass1(b)
    greedy = []
    if both:
      ga, gb = (scores.pass1(g.get(name, [])) for g in (greedy_a, greedy_b))
      greedy = [page.number(ga.value), page.number(gb.value)]
    rows.append(
      [
        page.escape(name or '(none)'),
        str(max(ea.tasks, eb.tasks)),
        page.number(ea.value),
        page.number(eb.value),
        _change(scores.difference(a, b).change),
        *greedy,
        _dumbbell(ea.value, eb.value),
      ]
    )
  head = [
    *(key, 'tasks', 'before', 'after', 'change'),
    *(('greedy before', 'after') if both else ()),
    '0 to 1',
  ]
  return page.table(head, rows, text_columns=(0, len(head) - 1))


def _dumbbell(a: float, b: float) -> str:
  def x(v: float) -> float:
    return 6 + 128 * min(max(v, 0.0), 1.0)

  marks = ''
  if math.isfinite(a) and math.isfinite(b):
    marks += (
      f'<line x1="{x(a):.1f}" x2="{x(b):.1f}" y1="8" y2="8" '
      'stroke="var(--s1)" stroke-width="2"/>'
    )
  if math.isfinite(a):
    marks += (
      f'<circle cx="{x(a):.1f}" cy="8" r="4" fill="var(--card)" '
      'stroke="var(--s1)" stroke-width="1.6"><title>before</title></circle>'
    )
  if math.isfinite(b):
    marks += (
      f'<circle cx="{x(b):.1f}" cy="8" r="4.4" fill="var(--s1)">'
      '<title>after</title></circle>'
    )
  return (
    '<svg viewBox="0 0 140 16" style="width:140px;display:inline-block" '
    f'role="img" aria-label="{page.short(a)} to {page.short(b)}">'
    '<line x1="6" x2="134" y1="8" y2="8" stroke="var(--grid)"/>'
    f'{marks}</svg>'
  )
