"""Charts of a run: what was learnt, how healthy it was, where the time went.

The names are those that the trainer logs; a metric that is not there costs its
line and nothing else. Everything that has no chart stands in the table of all
metrics at the end of the page.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from clawjax.eval import folder as folder_lib
from clawjax.eval import page, plot

_PARTS = ('model', 'harness', 'sandbox', 'other')
_COLOURS = dict(zip(_PARTS, plot.COLOURS, strict=True))


@dataclasses.dataclass(frozen=True)
class _Line:
  """A metric in a chart: its name, its label, and whether it is sparse."""

  name: str
  label: str = 'each step'
  marks: bool = False


@dataclasses.dataclass(frozen=True)
class _Chart:
  """A chart of some metrics.

  Attributes:
    title, note: plain text.
    lines: the metrics; a chart without its first one is left out.
    low, high: natural bounds of the axis.
    smoothed: the first line is also drawn as a running mean.
  """

  title: str
  lines: Sequence[_Line]
  note: str = ''
  low: float | None = None
  high: float | None = None
  smoothed: bool = False


_CURVES = (
  _Chart(
    'Reward',
    (
      _Line('train/reward_mean', 'training batch'),
      _Line('eval/pass1', 'unseen tasks, sampled', marks=True),
      _Line('eval/pass1_greedy', 'unseen tasks, greedy', marks=True),
    ),
    low=0.0,
    high=1.0,
    smoothed=True,
  ),
  _Chart(
    'Entropy',
    (_Line('train/entropy'),),
    'nats per sampled token',
    low=0.0,
  ),
  _Chart(
    'KL',
    (
      _Line('train/kl_k3', 'moved by the update'),
      _Line('train/kl_ref', 'from the reference'),
    ),
    'k3 estimate, nats per trained token',
    low=0.0,
  ),
  _Chart(
    'Delivered tokens',
    (_Line('train/delivered_fraction'),),
    'trained / sampled tokens',
    low=0.0,
    high=1.0,
  ),
)

_HEALTH = (
  _Chart(
    'Sampler against trainer',
    (_Line('train/mismatch_k3', 'k3'), _Line('train/mismatch_abs', 'mean |d|')),
    'of log-probs, sampling engine against training program, nats',
    low=0.0,
  ),
  _Chart(
    'Largest mismatch of a token',
    (_Line('train/max_mismatch', '|d|'),),
    'nats; one token of the step',
    low=0.0,
  ),
  _Chart(
    'Ratio at the first minibatch',
    (_Line('train/first_max_ratio', 'largest |ratio - 1|'),),
    '0 when old log-probs and the update agree',
    low=0.0,
  ),
  _Chart('Clipped terms', (_Line('train/clipped'),), 'share of terms', low=0.0),
  _Chart(
    'Importance weight',
    (_Line('train/importance', 'mean'),),
    'truncated importance sampling; 1 when sampler and trainer agree',
  ),
  _Chart('Truncated terms', (_Line('train/importance_cut'),), 'share', low=0.0),
  _Chart('Gradient norm', (_Line('train/grad_norm'),), low=0.0),
  _Chart(
    'Spread of rewards in a group',
    (_Line('train/reward_std', 'mean deviation'),),
    'groups without spread teach nothing',
    low=0.0,
  ),
)

_PACKING = (
  _Chart(
    'Tokens saved by the tree',
    (
      _Line('pack/call_ratio', 'calls one by one / tree'),
      _Line('pack/branch_ratio', 'branches one by one / tree'),
    ),
    'tokens computed without sharing over tokens computed',
    low=1.0,
  ),
  _Chart('Padding', (_Line('pack/padding'),), 'share of slots', low=0.0),
  _Chart(
    'Sampled tokens of a step',
    (
      _Line('train/sampled_tokens', 'sampled'),
      _Line('train/trained_tokens', 'trained'),
    ),
    low=0.0,
  ),
  _Chart('Calls of a rollout', (_Line('rollouts/calls_mean', 'mean'),), low=0),
)


def charted() -> set[str]:
  """Names of all metrics that have a chart."""
  return {
    line.name
    for chart in (*_CURVES, *_HEALTH, *_PACKING)
    for line in chart.lines
  }


def curves(run: folder_lib.RunFolder) -> str:
  """Reward, entropy, KL and delivered tokens; rewards by harness."""
  grid = _grid(run, (*_CURVES, *_by_harness(run)))
  return page.section(
    'Curves', grid or '<p class="cap">No training step was logged.</p>'
  )


def _by_harness(run: folder_lib.RunFolder) -> list[_Chart]:
  """Charts with a line per harness, where there are several."""
  charts = []
  for title, prefix, marks in (
    ('Reward by harness', 'reward/', False),
    ('Pass@1 by harness', 'eval/pass1/', True),
  ):
    lines = [
      _Line(name, name.removeprefix(prefix), marks)
      for name in sorted(run.metric_names())
      if name.startswith(prefix)
    ]
    if len(lines) > 1:
      note = 'unseen tasks, sampled' if marks else 'training batch'
      charts.append(_Chart(title, lines, note, low=0.0, high=1.0))
  return charts


def diagnostics(run: folder_lib.RunFolder) -> str:
  """Mismatch and packing, and charts of metrics that nobody foresaw there."""
  known = charted()
  more = [
    _Chart(name, (_Line(name),))
    for name in run.metric_names()
    if name not in known and name.startswith(('mismatch/', 'correction/'))
  ]
  return page.section(
    'Health of the update',
    _grid(run, (*_HEALTH, *more)),
    lead='What the sampling engine said of its tokens against what the '
    'training program says, and what the update did with the difference.',
  ) + page.section('Packing', _grid(run, _PACKING) + _undelivered(run))


def _grid(run: folder_lib.RunFolder, charts: Sequence[_Chart]) -> str:
  figures = [figure for c in charts if (figure := _draw(run, c))]
  return f'<div class="grid">{"".join(figures)}</div>' if figures else ''


def _draw(run: folder_lib.RunFolder, chart: _Chart) -> str:
  lines = []
  for i, line in enumerate(chart.lines):
    steps, values = run.series(line.name)
    if not steps:
      if i == 0:
        return ''
      continue
    smoothed = chart.smoothed and i == 0 and len(values) >= 12
    lines.append(
      plot.Series(line.label, steps, values, line.marks, faint=smoothed)
    )
    if smoothed:
      window = max(3, len(values) // 8)
      mean = plot.smooth(values, window)
      lines.append(plot.Series(f'mean of {window} steps', steps, mean))
  return plot.chart(
    chart.title, lines, low=chart.low, high=chart.high, note=chart.note
  )


def _undelivered(run: folder_lib.RunFolder) -> str:
  """Why sampled tokens were not trained, over the whole run."""
  total = dict(zip(*run.series('train/sampled_tokens'), strict=True))
  rows = []
  for name in run.metric_names():
    prefix, _, reason = name.partition('train/undelivered_')
    if prefix or not reason:
      continue
    steps, shares = run.series(name)
    lost = math.fsum(
      share * total.get(step, 0.0)
      for step, share in zip(steps, shares, strict=True)
    )
    whole = math.fsum(total.values())
    if lost:
      rows.append([page.escape(reason), f'{lost:,.0f}', f'{lost / whole:.2%}'])
  if not rows:
    return ''
  return page.table(
    ['not trained because', 'sampled tokens', 'share'],
    rows,
    caption='Sampled tokens that were not trained, whole run',
  )


# ---- time ------------------------------------------------------------------


def time_shares(run: folder_lib.RunFolder) -> str:
  """Shares of wall time from the metrics; stages from the rollouts."""
  parts = _shares(run)
  body = ''
  total = math.fsum(parts.values())
  if total > 0:
    body += '<div class="bar">' + ''.join(
      f'<i style="width:{v / total:.2%};background:{_COLOURS[k]}" '
      f'data-t="{k} {v / total:.1%}"></i>'
      for k, v in parts.items()
    )
    body += '</div><div class="keys">' + ''.join(
      f'<span><span class="key" style="background:{_COLOURS[k]}"></span>'
      f'{k} <b>{v / total:.0%}</b></span>'
      for k, v in parts.items()
    )
    body += '</div>'
  rows = []
  for name in run.metric_names():
    prefix, _, rest = name.partition('time/')
    if prefix or not rest.endswith('_s'):
      continue
    values = run.series(name)[1]
    rows.append(
      [
        page.escape(rest[:-2].replace('_', ' ')),
        page.short(float(np.mean(values))),
        page.short(max(values)),
        page.short(math.fsum(values)),
      ]
    )
  tables = ''
  if rows:
    tables += page.table(
      ['phase of a step', 'mean s', 'longest s', 'sum s'], rows
    )
  tables += _stages(run)
  body += f'<div class="grid">{tables}</div>' if tables else ''
  return page.section('Where the time went', body)


def _shares(run: folder_lib.RunFolder) -> dict[str, float]:
  """Seconds (or shares, weighted by the step's seconds) per part."""
  wall = dict(zip(*run.series('time/step_s'), strict=True))
  out = {}
  for part in _PARTS:
    steps, shares = run.series(f'time/share_{part}')
    if steps:
      out[part] = math.fsum(
        max(v, 0.0) * wall.get(s, 1.0)
        for s, v in zip(steps, shares, strict=True)
      )
      continue
    for name in (f'time/{part}', f'time/{part}_s'):
      steps, seconds = run.series(name)
      if steps:
        out[part] = math.fsum(seconds)
  return out


def _stages(run: folder_lib.RunFolder) -> str:
  stages: dict[str, list[float]] = {}
  for item in run.rollouts:
    for stage, seconds in item.rollout.timings.items():
      if page.is_number(seconds):
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
    ['stage of a rollout', 'median s', '95th pct s', 'longest s'],
    rows,
    caption='<em>model</em> is time inside the engine, part of harness',
  )
