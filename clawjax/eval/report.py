"""Turns a run folder into report.html, one page a person can read.

  headline      Pass@1 before and after on unseen tasks, sampled beside greedy
  families      the same per family of tasks
  curves        reward, entropy, KL, delivered tokens over steps
  outcomes      how rollouts ended, and why those that failed did
  time          where the wall time went
  diagnostics   packing, and how far trainer and sampler disagree
  rollouts      some of them as trees of tokens
  everything    all metrics, the config

The page shows what the folder holds. A part that cannot be drawn says why or
is left out with a note at the top; a broken record never breaks the page.
"""

from __future__ import annotations

import collections
import math
import os
import pathlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clawjax.eval import folder as folder_lib
from clawjax.eval import page, plot, scores, transcript

FILE = 'report.html'
_ADVANTAGE_EPS = 1e-6
_PARTS = ('model', 'harness', 'sandbox', 'other')


def write_report(
  run_dir: str | os.PathLike[str], *, rollouts_shown: int = 8
) -> pathlib.Path:
  """Writes `report.html` into a run folder and returns its path.

  Args:
    run_dir: the folder; may be of a run that is going on or was cut short.
    rollouts_shown: how many rollouts to draw.
  """
  path = pathlib.Path(run_dir)
  run = folder_lib.read(path)
  target = path / FILE
  text = render(run, rollouts_shown=rollouts_shown)
  with tempfile.NamedTemporaryFile(
    'w', encoding='utf-8', dir=path, suffix='.tmp', delete=False
  ) as file:
    file.write(text)
  os.chmod(file.name, 0o644)
  os.replace(file.name, target)
  return target


def render(run: folder_lib.RunFolder, *, rollouts_shown: int = 8) -> str:
  """The page of a run as HTML text."""
  notes = list(run.notes)
  tokenizer = _tokenizer(run, notes)
  used: set[str] = set()
  body = [
    _headline(run),
    _families(run),
    _curves(run, used),
    _outcomes(run),
    _time(run, used),
    _diagnostics(run, used),
    _rollouts(run, tokenizer, rollouts_shown),
    _everything(run),
  ]
  title = str(folder_lib.find(run.config, 'name') or run.path.resolve().name)
  return page.shell(
    f'{title} \u00b7 clawjax', _masthead(run, title, notes) + ''.join(body)
  )


# ---- top of the page -------------------------------------------------------


def _masthead(
  run: folder_lib.RunFolder, title: str, notes: Sequence[str]
) -> str:
  facts = []
  for label, keys in (
    ('harness', ('harness', 'harnesses')),
    ('tokenizer', ('tokenizer',)),
    ('algorithm', ('algorithm', 'loss')),
    ('group size', ('group_size', 'rollouts_per_task')),
    ('seed', ('seed',)),
  ):
    value = next(
      (v for k in keys if (v := folder_lib.find(run.config, k)) is not None),
      None,
    )
    text = _plain(value)
    if text:
      facts.append(f'<li>{label} <b>{page.escape(text)}</b></li>')
  trained = [r['step'] for r in run.rows if _has_section(r, 'train/')]
  if trained:
    facts.append(f'<li>steps <b>{len(set(trained))}</b></li>')
  wall = [r['wall_time'] for r in run.rows if _is_number(r.get('wall_time'))]
  if len(wall) > 1:
    facts.append(
      f'<li>wall time <b>{_duration(max(wall) - min(wall))}</b></li>'
    )
  if run.rollouts_seen:
    facts.append(f'<li>rollouts <b>{run.rollouts_seen:,}</b></li>')
  listed = ''.join(f'<li>{page.escape(n)}</li>' for n in notes)
  return (
    f'<h1>{page.escape(title)}</h1><ul class="facts">{"".join(facts)}</ul>'
    + (f'<ul class="notes">{listed}</ul>' if listed else '')
  )


def _plain(value: Any) -> str:
  if isinstance(value, (list, tuple)):
    return ', '.join(str(v) for v in value)
  if isinstance(value, Mapping):
    return str(value.get('name', ''))
  return '' if value is None else str(value)


def _headline(run: folder_lib.RunFolder) -> str:
  before, after = run.trials.get('before'), run.trials.get('after')
  if before is None and after is None:
    return page.section('Result', _result_from_metrics(run))
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


def _result_from_metrics(run: folder_lib.RunFolder) -> str:
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


def _families(run: folder_lib.RunFolder) -> str:
  """Before and after per family, with a small picture of the move."""
  before, after = run.trials.get('before'), run.trials.get('after')
  parts_a = scores.split(_of(before, False) or before or ())
  parts_b = scores.split(_of(after, False) or after or ())
  names = sorted(parts_a.keys() | parts_b.keys())
  if not [n for n in names if n]:
    return ''
  greedy_a, greedy_b = (scores.split(_of(t, True)) for t in (before, after))
  rows = []
  for name in names:
    a, b = parts_a.get(name, []), parts_b.get(name, [])
    ea, eb = scores.pass1(a), scores.pass1(b)
    row = [
      page.escape(name or '(none)'),
      str(max(ea.tasks, eb.tasks)),
      page.number(ea.value),
      page.number(eb.value),
      _change(scores.difference(a, b).change),
      _dumbbell(ea.value, eb.value),
    ]
    if greedy_a or greedy_b:
      ga, gb = (scores.pass1(g.get(name, [])) for g in (greedy_a, greedy_b))
      row[5:5] = [page.number(ga.value), page.number(gb.value)]
    rows.append(row)
  head = ['family', 'tasks', 'before', 'after', 'change', '0 to 1']
  if greedy_a or greedy_b:
    head[5:5] = ['greedy before', 'after']
  table = page.table(head, rows, text_columns=(0, len(head) - 1))
  return page.section('By family', table)


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


# ---- curves ----------------------------------------------------------------

# title, metric, natural bounds of the axis, note
_CURVES = (
  ('Reward', 'train/reward_mean', (0.0, 1.0), ''),
  ('Entropy', 'train/entropy', (0.0, None), 'nats per sampled token'),
  (
    'KL to the reference',
    'train/kl_k3',
    (0.0, None),
    'k3 estimate, nats per token',
  ),
  (
    'Delivered tokens',
    'train/delivered_fraction',
    (0.0, 1.0),
    'trained / sampled tokens',
  ),
)


def _curves(run: folder_lib.RunFolder, used: set[str]) -> str:
  figures = []
  for title, name, (low, high), note in _CURVES:
    key = _metric(run, name)
    if key is None:
      continue
    used.add(key)
    steps, values = run.series(key)
    lines = [plot.Series('each step', steps, values)]
    if name == 'train/reward_mean':
      lines = [plot.Series('training batch', steps, values)]
      if len(values) >= 12:
        window = max(3, len(values) // 8)
        lines.append(
          plot.Series(f'mean of {window}', steps, plot.smooth(values, window))
        )
      for key, label in (
        ('eval/pass1', 'unseen tasks, sampled'),
        ('eval/pass1_greedy', 'unseen tasks, greedy'),
      ):
        used.add(key)
        lines.append(plot.Series(label, *run.series(key), marks=True))
    figures.append(plot.chart(title, lines, low=low, high=high, note=note))
  if not any(figures):
    return page.section(
      'Curves', '<p class="cap">No training step was logged.</p>'
    )
  return page.section('Curves', f'<div class="grid">{"".join(figures)}</div>')


def _metric(run: folder_lib.RunFolder, name: str) -> str | None:
  """The metric of that name, or of that last part in another section."""
  names = run.metric_names()
  if name in names:
    return name
  tail = name.split('/')[-1]
  return next((n for n in names if n.split('/')[-1] == tail), None)


# Words in a metric's name, in either group of diagnostics.
_MISMATCH = {
  *('mismatch', 'correction', 'tis', 'ratio', 'clip', 'clipped', 'gap'),
  *('rollout', 'staleness', 'grad', 'norm'),
}
_PACKING = {
  *('pack', 'packing', 'packed', 'pad', 'padding', 'rows', 'tokens'),
  *('terms', 'leaves', 'dropped'),
}


def _diagnostics(run: folder_lib.RunFolder, used: set[str]) -> str:
  """Charts of whatever was logged about packing and about mismatch."""
  groups: dict[str, list[str]] = {'mismatch': [], 'packing': []}
  for name in run.metric_names():
    if name in used or name.startswith(('eval/', 'time/')):
      continue
    words = re.split('[/_]', name.lower())
    if _PACKING.intersection(words):
      groups['packing'].append(name)
    elif _MISMATCH.intersection(words):
      groups['mismatch'].append(name)
  out = []
  for title, key in (
    ('Sampler against trainer, and the update', 'mismatch'),
    ('Packing and tokens', 'packing'),
  ):
    figures = [
      plot.chart(name, [plot.Series('each step', *run.series(name))])
      for name in groups[key]
    ]
    if figures:
      grid = f'<div class="grid">{"".join(figures)}</div>'
      out.append(page.section(title, grid))
  return ''.join(out)


# ---- outcomes and time -----------------------------------------------------


def _outcomes(run: folder_lib.RunFolder) -> str:
  if not run.rollouts:
    return ''
  phases = sorted({r.phase for r in run.rollouts}, reverse=True)
  table: dict[str, collections.Counter] = {}
  reasons: collections.Counter = collections.Counter()
  for item in run.rollouts:
    outcome = item.rollout.outcome
    table.setdefault(outcome, collections.Counter())[item.phase] += 1
    if outcome != 'ok':
      reasons[outcome, item.rollout.reason or '(no reason given)'] += 1
  order = sorted(table, key=lambda k: (k != 'ok', -sum(table[k].values())))
  totals = collections.Counter(r.phase for r in run.rollouts)
  rows = [
    [page.escape(k)]
    + [
      f'{table[k][p]:,} <span class="ci">{table[k][p] / totals[p]:.1%}</span>'
      for p in phases
    ]
    + ['scored' if k in scores.types.SCORED_OUTCOMES else 'left out']
    for k in order
  ]
  body = page.table(
    ['outcome', *map(page.escape, phases), 'its reward'],
    rows,
    text_columns=(0, len(phases) + 1),
  )
  if reasons:
    body += page.table(
      ['outcome', 'reason', 'rollouts'],
      [
        [page.escape(k), page.escape(_one_line(why)), f'{n:,}']
        for (k, why), n in reasons.most_common(12)
      ],
      text_columns=(0, 1),
      caption='Why, most common first',
    )
  body += _call_table(run)
  return page.section('How rollouts ended', body)


def _call_table(run: folder_lib.RunFolder) -> str:
  """Answers that ended early, broke or were malformed, over all calls."""
  seen: collections.Counter = collections.Counter()
  total = 0
  for item in run.rollouts:
    for call in item.rollout.calls:
      total += 1
      if call.sample is not None and call.sample.finish != 'stop':
        seen[f'answer ended by {call.sample.finish}'] += 1
      if call.status != 'ok':
        seen[f'call {call.status}'] += 1
      if call.malformed:
        seen['malformed tool call'] += 1
      if call.retry_of:
        seen['retry of an earlier call'] += 1
      if call.role != 'main':
        seen[f'role {call.role}'] += 1
      if call.break_cause:
        seen[f'branched: {call.break_cause}'] += 1
  if not seen:
    return ''
  return page.table(
    ['among the calls', 'calls', 'share'],
    [
      [page.escape(_one_line(k)), f'{n:,}', f'{n / total:.1%}']
      for k, n in seen.most_common(12)
    ],
    caption=f'{total:,} calls in all',
  )


def _one_line(text: str, limit: int = 160) -> str:
  text = ' '.join(str(text).split())
  return text if len(text) <= limit else text[: limit - 1] + '\u2026'


_COLOURS = dict(zip(_PARTS, plot.COLOURS, strict=True))


def _time(run: folder_lib.RunFolder, used: set[str]) -> str:
  """Shares of wall time from the metrics; stages from the rollouts."""
  names = [n for n in run.metric_names() if n.startswith('time/')]
  used.update(names)
  sums: dict[str, float] = {}
  for part in _PARTS:
    for suffix in ('', '_s', '_share', '_fraction', '_seconds'):
      key = f'time/{part}{suffix}'
      if key in names:
        sums[part] = math.fsum(run.series(key)[1])
        break
  body = ''
  total = math.fsum(sums.values())
  if total > 0:
    body += '<div class="bar">' + ''.join(
      f'<i style="width:{v / total:.2%};background:{_COLOURS[k]}" '
      f'data-t="{k} {v / total:.1%}"></i>'
      for k, v in sums.items()
    )
    body += '</div><div class="keys">' + ''.join(
      f'<span><span class="key" style="background:{_COLOURS[k]}"></span>'
      f'{k} <b>{v / total:.0%}</b></span>'
      for k, v in sums.items()
    )
    body += '</div>'
  others = [n for n in names if n.split('/')[-1].split('_')[0] not in sums]
  rows = []
  for name in others:
    values = run.series(name)[1]
    rows.append(
      [
        page.escape(name),
        page.short(float(np.mean(values))),
        page.short(max(values)),
        page.short(math.fsum(values)),
      ]
    )
  if rows:
    body += page.table(['per step', 'mean', 'largest', 'sum'], rows)
  body += _stages(run)
  return page.section('Where the time went', body)


def _stages(run: folder_lib.RunFolder) -> str:
  stages: dict[str, list[float]] = {}
  for item in run.rollouts:
    for stage, seconds in item.rollout.timings.items():
      if _is_number(seconds):
        stages.setdefault(stage, []).append(float(seconds))
  rows = [
    [
      page.escape(stage),
      page.short(float(np.median(values))),
      page.short(float(np.percentile(values, 95))),
      page.short(max(values)),
    ]
    for stage, values in stages.items()
  ]
  if not rows:
    return ''
  return page.table(
    ['stage of a rollout', 'median s', '95th percentile s', 'longest s'],
    rows,
    caption='<em>model</em> is time inside the engine, part of harness',
  )


# ---- rollouts --------------------------------------------------------------


def advantages(
  rollouts: Sequence[folder_lib.Recorded],
) -> dict[int, float]:
  """Position in `rollouts` -> advantage within its group of its step.

  What the trainer stored in `extra['advantage']`, else (R - mean) / (std + eps)
  with the population deviation over the valid rollouts of the group.
  """
  groups: dict[tuple, list[int]] = {}
  for i, item in enumerate(rollouts):
    if item.phase == 'train' and item.rollout.valid:
      key = (item.step, *item.rollout.group)
      groups.setdefault(key, []).append(i)
  found = {}
  for members in groups.values():
    rewards = np.array([rollouts[i].rollout.reward for i in members])
    for i, reward in zip(members, rewards, strict=True):
      stored = rollouts[i].rollout.extra.get('advantage')
      if _is_number(stored):
        found[i] = float(stored)
      elif len(members) > 1:
        spread = rewards.std() + _ADVANTAGE_EPS
        found[i] = float((reward - rewards.mean()) / spread)
  return found


def _rollouts(run: folder_lib.RunFolder, tokenizer, shown: int) -> str:
  if not run.rollouts:
    return ''
  known = advantages(run.rollouts)
  blocks = []
  for number, (index, why) in enumerate(_choose(run.rollouts, known, shown)):
    item = run.rollouts[index]
    try:
      blocks.append(
        transcript.draw(
          item.rollout,
          tokenizer=tokenizer,
          advantage=known.get(index),
          why=f'{item.phase} step {item.step.lstrip("0") or "0"}: {why}',
          opened=number == 0,
        )
      )
    except Exception as error:  # a broken record must not cost the page
      name = page.escape(item.rollout.rollout_id)
      blocks.append(
        f'<p class="cap">{name} could not be drawn: {page.escape(error)}</p>'
      )
  lead = (
    'Each stretch of tokens stands once; where calls part ways the branches are '
    'indented. Grey text came from the harness or the environment. Tinted '
    'tokens were sampled by the model: <span class="sw">likely</span> '
    '<span class="sw q3">below 0.1</span>; point at one for its log-prob.'
  )
  return page.section('Rollouts', ''.join(blocks), lead=lead)


def _choose(
  rollouts: Sequence[folder_lib.Recorded],
  known: Mapping[int, float],
  shown: int,
) -> list[tuple[int, str]]:
  """Which rollouts to draw, each with the reason: few, and unlike each other."""
  with_calls = [i for i, r in enumerate(rollouts) if r.rollout.calls]
  train = [i for i in with_calls if rollouts[i].phase == 'train']
  held_out = [i for i in with_calls if rollouts[i].phase != 'train']

  def reward(i: int) -> float:
    value = rollouts[i].rollout.reward
    return -1.0 if value is None else value

  def last(items: list[int]) -> list[int]:
    step = max((rollouts[i].step for i in items), default='')
    return [i for i in items if rollouts[i].step == step]

  def first(items: list[int]) -> list[int]:
    step = min((rollouts[i].step for i in items), default='')
    return [i for i in items if rollouts[i].step == step]

  def best(items, score, why):
    return (max(items, key=score), why) if items else None

  scored = [i for i in held_out if rollouts[i].rollout.valid]
  pushed = [i for i in train if i in known]
  odd = [i for i in with_calls if rollouts[i].rollout.outcome != 'ok']
  wanted = [
    best(last(scored), reward, 'highest reward of the last evaluation'),
    best(
      last(scored), lambda i: -reward(i), 'lowest reward of the last evaluation'
    ),
    best(
      last(pushed), lambda i: known[i], 'largest advantage of the last step'
    ),
    best(
      last(pushed), lambda i: -known[i], 'smallest advantage of the last step'
    ),
    best(
      first(pushed), lambda i: known[i], 'largest advantage of the first step'
    ),
    best(
      first(pushed), lambda i: -known[i], 'smallest advantage of the first step'
    ),
    best(with_calls, lambda i: len(rollouts[i].rollout.calls), 'most calls'),
    best(odd, lambda i: i, 'did not end well'),
    best(first(with_calls), lambda i: -i, 'the first one recorded'),
  ]
  chosen: dict[int, str] = {}
  for pick in wanted:
    if pick and pick[0] not in chosen and len(chosen) < shown:
      chosen[pick[0]] = pick[1]
  return list(chosen.items())


def _tokenizer(run: folder_lib.RunFolder, notes: list[str]):
  """The run's tokenizer, or None with a note."""
  if not run.rollouts:
    return None
  name = _plain(folder_lib.find(run.config, 'tokenizer'))
  if not name:
    notes.append('The config names no tokenizer: transcripts show no tokens.')
    return None
  try:
    from clawjax.chat import tokenizers

    return tokenizers.load(name)
  except Exception as error:  # whatever it is, the page can do without
    notes.append(
      f'Tokenizer {name!r} cannot be loaded ({error}): transcripts show no '
      'tokens.'
    )
    return None


# ---- the rest --------------------------------------------------------------


def _everything(run: folder_lib.RunFolder) -> str:
  rows = []
  for name in run.metric_names():
    values = run.series(name)[1]
    rows.append(
      [
        page.escape(name),
        f'{len(values)}',
        page.short(values[0]),
        page.short(values[-1]),
        page.short(min(values)),
        page.short(max(values)),
      ]
    )
  body = ''
  if rows:
    body += page.fold(
      f'All {len(rows)} metrics',
      page.table(['metric', 'points', 'first', 'last', 'min', 'max'], rows),
    )
  flat = _flatten(run.config)
  if flat:
    table = page.table(
      ['key', 'value'],
      [[page.escape(k), page.escape(_one_line(v, 300))] for k, v in flat],
      text_columns=(0, 1),
    )
    body += page.fold(f'Config ({len(flat)} values)', table)
  return page.section('Everything logged', body)


def _flatten(config: Any, prefix: str = '') -> list[tuple[str, Any]]:
  out = []
  for key, value in config.items():
    name = f'{prefix}.{key}' if prefix else str(key)
    if isinstance(value, Mapping) and value:
      out += _flatten(value, name)
    else:
      out.append((name, value))
  return out


def _has_section(row: Mapping[str, Any], prefix: str) -> bool:
  return any(k.startswith(prefix) for k in row)


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and math.isfinite(value)


def _duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours} h {minutes:02d} min'
  return f'{minutes} min {rest:02d} s' if minutes else f'{rest} s'
