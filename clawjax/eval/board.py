"""Results of a matrix of evaluations as JSON and as a page.

`results` gives one entry per cell: Pass@1, success, Pass@k and Pass^k with
intervals, by domain and family, errors apart from zeros, and what did not load
from the task set. `render` puts the same on a page, with every rollout's
transcript behind its score. Cells on the same tasks are compared pairwise, and
a set with the six domains of ClawGym-Bench gets the paper's table, the
published numbers below ours and marked as theirs.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.eval import bench, judges, page, published, scores
from clawjax.eval import run as run_lib


@dataclasses.dataclass(frozen=True)
class BoardConfig:
  """How to score.

  Attributes:
    threshold: score that counts as a success.
    weights: domain -> weight of the benchmark's own average; empty: every
      task weighs the same.
    listed: most tasks listed with their scores per set.
  """

  threshold: float = scores.SUCCESS
  weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
  listed: int = 500


# ---- JSON ------------------------------------------------------------------


def results(cells: Sequence[bench.Cell], config: BoardConfig) -> dict[str, Any]:
  """All numbers, JSON-ready; what is not known is null."""
  return {
    'threshold': config.threshold,
    'cells': [_cell_json(cell, config) for cell in cells],
    'differences': [
      {
        'tasks': a.tasks,
        'from': f'{a.model} through {a.harness}',
        'to': f'{b.model} through {b.harness}',
        **_plain(dataclasses.asdict(d)),
        'solved': _plain(
          dataclasses.asdict(
            scores.difference(a.trials, b.trials, threshold=config.threshold)
          )
        ),
      }
      for a, b, d in pairs(cells)
    ],
  }


def _cell_json(cell: bench.Cell, config: BoardConfig) -> dict[str, Any]:
  summary = scores.summarise(cell.trials, threshold=config.threshold)
  entry: dict[str, Any] = {
    'model': cell.model,
    'harness': cell.harness,
    'harness_version': cell.harness_version,
    'tasks': cell.tasks,
    'facts': dict(cell.facts),
    'scores': _plain(dataclasses.asdict(summary)),
    'weighted_pass1': _weighted(cell.trials, config),
    **judges.facts(cell.trials),
  }
  for key in ('domain', 'family'):
    parts = scores.split(cell.trials, key)
    if any(parts):
      entry[f'by_{key}'] = {
        name: _plain(dataclasses.asdict(scores.pass1(part)))
        for name, part in parts.items()
      }
  return _plain(entry)


def _plain(value: Any) -> Any:
  """JSON values; NaN becomes null."""
  if isinstance(value, Mapping):
    return {str(k): _plain(v) for k, v in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def _weighted(
  trials: Sequence[scores.Trial], config: BoardConfig
) -> float | None:
  if not config.weights:
    return None
  return scores.weighted(trials, config.weights)


def pairs(
  cells: Sequence[bench.Cell],
) -> list[tuple[bench.Cell, bench.Cell, scores.Difference]]:
  """Every two cells on one task set that share scored tasks."""
  found = []
  for i, a in enumerate(cells):
    for b in cells[i + 1 :]:
      if a.tasks == b.tasks:
        d = scores.difference(a.trials, b.trials)
        if d.change.tasks:
          found.append((a, b, d))
  return found


# ---- the page --------------------------------------------------------------


def render(
  cells: Sequence[bench.Cell],
  config: BoardConfig,
  *,
  title: str = 'Evaluation',
  baseline: Sequence[bench.Cell] = (),
) -> str:
  """The page as HTML text.

  Args:
    cells: those of this evaluation.
    config: see `BoardConfig`.
    title: plain text.
    baseline: cells of another evaluation to compare with, by model, harness
      and tasks, else by harness and tasks.
  """
  names = list(dict.fromkeys(c.tasks for c in cells))
  body = [_overview(cells, config)]
  for name in names:
    here = [c for c in cells if c.tasks == name]
    body.append(_task_set(name, here, config))
  body.append(_differences(cells, baseline, config))
  body.append(judges.section(cells))
  body.append(_errors(cells))
  body.append(_what_ran(cells))
  facts = (
    f'<ul class="facts"><li>models <b>{len({c.model for c in cells})}</b></li>'
    f'<li>harnesses <b>{len({c.harness for c in cells})}</b></li>'
    f'<li>task sets <b>{len(names)}</b></li>'
    f'<li>rollouts <b>{sum(len(c.trials) for c in cells):,}</b></li></ul>'
  )
  return page.shell(
    title, f'<h1>{page.escape(title)}</h1>{facts}{"".join(body)}'
  )


def _overview(cells: Sequence[bench.Cell], config: BoardConfig) -> str:
  rows = []
  several = len({c.tasks for c in cells}) > 1
  most = max(
    (len(r) for c in cells for r in scores.by_task(c.trials).values()),
    default=0,
  )
  for cell in cells:
    s = scores.summarise(cell.trials, threshold=config.threshold, ks=())
    row = [page.escape(cell.model), page.escape(cell.harness)]
    if several:
      row.append(page.escape(cell.tasks))
    row += [
      page.number(s.pass1.value) + page.span(s.pass1.low, s.pass1.high),
      _bar(s.pass1),
      page.number(s.success.value) + page.span(s.success.low, s.success.high),
    ]
    if most > 1:
      row += [
        page.number(scores.pass_at(cell.trials, most).value),
        page.number(scores.pass_hat(cell.trials, most).value),
      ]
    row += [f'{s.scored:,}', f'{s.zeros:,}', _error_count(s)]
    rows.append(row)
  head = ['model', 'harness', *(['tasks'] if several else [])]
  left = len(head)
  head += ['Pass@1', '', f'solved (score \u2265 {config.threshold:g})']
  if most > 1:
    head += [f'Pass@{most}', f'Pass^{most}']
  head += ['scored', 'zeros', 'errors']
  return page.section(
    'Scores',
    page.table(head, rows, text_columns=(*range(left), left + 1))
    + '<p class="cap">Pass@1 is the mean score: over the samples of a task, '
    'then over tasks. Small figures are 95% intervals from a bootstrap over '
    'tasks. Errors are rollouts without a reward for a fault that was not the '
    "model's; they are in no mean.</p>",
  )


def _error_count(s: scores.Summary) -> str:
  count = s.trials - s.scored
  if not count:
    return '0'
  return f'<span class="down">{count:,}</span>'


def _bar(e: scores.Estimate) -> str:
  """Mean and interval on a line from 0 to 1."""
  if not e.tasks:
    return ''

  def x(v: float) -> float:
    return 4 + 132 * min(max(v, 0.0), 1.0)

  return (
    '<svg viewBox="0 0 140 16" style="width:140px;display:inline-block" '
    f'role="img" aria-label="{page.short(e.value)}">'
    '<line x1="4" x2="136" y1="8" y2="8" stroke="var(--grid)"/>'
    f'<line x1="{x(e.low):.1f}" x2="{x(e.high):.1f}" y1="8" y2="8" '
    'stroke="var(--s1)" stroke-width="3" opacity="0.45"/>'
    f'<circle cx="{x(e.value):.1f}" cy="8" r="4.4" fill="var(--s1)"/></svg>'
  )


def _task_set(
  name: str, cells: Sequence[bench.Cell], config: BoardConfig
) -> str:
  body = _loaded(cells[0])
  domains = {t.domain for c in cells for t in c.trials} - {''}
  matched = published.match(domains)
  if matched:
    body += _paper_table(cells, matched)
  elif len(domains) > 1:
    body += _split(cells, 'domain', config)
  families = {t.family for c in cells for t in c.trials} - {''}
  if len(families) > 1:
    body += _split(cells, 'family', config)
  body += _listing(cells, config)
  return page.section(page.escape(name), body)


def _loaded(cell: bench.Cell) -> str:
  """What the set held and what of it could not be run here."""
  facts = cell.facts.get('tasks') or {}
  parts = []
  for key in ('path', 'format', 'loaded', 'run', 'unsupported', 'broken'):
    if facts.get(key) not in (None, ''):
      label = 'tasks run' if key == 'run' else key
      parts.append(f'<li>{label} <b>{page.escape(facts[key])}</b></li>')
  if facts.get('commit'):
    parts.append(f'<li>commit <b>{page.escape(facts["commit"][:12])}</b></li>')
  out = f'<ul class="facts">{"".join(parts)}</ul>' if parts else ''
  reasons = facts.get('reasons') or {}
  if reasons:
    listed = ', '.join(f'{page.escape(k)} ({n})' for k, n in reasons.items())
    out += f'<p class="cap">Not run: {listed}.</p>'
  return out


def _split(cells: Sequence[bench.Cell], key: str, config: BoardConfig) -> str:
  """Pass@1 of each cell per domain or family."""
  names = sorted({getattr(t, key) for c in cells for t in c.trials})
  counts = collections.Counter(
    {
      n: len({t.task_id for t in cells[0].trials if getattr(t, key) == n})
      for n in names
    }
  )
  rows = []
  for cell in cells:
    parts = scores.split(cell.trials, key)
    row = [page.escape(cell.model), page.escape(cell.harness)]
    row += [page.number(scores.pass1(parts.get(n, [])).value) for n in names]
    row.append(page.number(scores.pass1(cell.trials).value))
    if key == 'domain' and config.weights:
      row.append(page.number(_weighted(cell.trials, config)))
    rows.append(row)
  head = ['model', 'harness']
  head += [
    f'{page.escape(n or "(none)")} <span class="ci">{counts[n]}</span>'
    for n in names
  ]
  head.append('all')
  if key == 'domain' and config.weights:
    head.append('weighted')
  return page.table(
    head, rows, text_columns=(0, 1), caption=f'Pass@1 by {key}, tasks beside it'
  )


def _paper_table(
  cells: Sequence[bench.Cell], matched: Mapping[str, str]
) -> str:
  """The paper's layout: ours first, then theirs, in percent."""
  weights = published.weights()

  def percent(value: float | None) -> str:
    return page.number(None if value is None else 100 * value, 2)

  rows = []
  for cell in cells:
    trials = [
      dataclasses.replace(t, domain=matched.get(t.domain, ''))
      for t in cell.trials
    ]
    parts = scores.split(trials, 'domain')
    row = ['ours', page.escape(cell.harness), page.escape(cell.model)]
    row += [
      percent(scores.pass1(parts.get(d, [])).value) for d in published.DOMAINS
    ]
    rows.append([*row, percent(scores.weighted(trials, weights))])
  ours = len(rows)
  harnesses = {c.harness for c in cells}
  theirs = published.rows(harnesses) or published.rows()
  for r in theirs:
    row = [
      '<span class="sub">published</span>',
      page.escape(r.harness),
      page.escape(r.model),
    ]
    row += [f'{r.domains[d]:.2f}' for d in published.DOMAINS]
    rows.append([*row, f'{r.average:.2f}'])
  head = ['', 'harness', 'model', *published.DOMAINS.values(), 'Avg']
  counted = '/'.join(str(w) for w in weights.values())
  return (
    page.table(
      head,
      rows,
      text_columns=(0, 1, 2),
      strong_rows=tuple(range(ours)),
      caption="ClawGym-Bench in the paper's layout, mean task score in percent",
    )
    + f'<p class="cap">Rows marked <em>published</em> are the authors\u2019 '
    f'({page.escape(published.source())}), with their models, judge and '
    f'sampling. Averages weigh domains {counted}. A checkout without rubrics '
    'gives code-only scores, which are not comparable with theirs.</p>'
  )


def _listing(cells: Sequence[bench.Cell], config: BoardConfig) -> str:
  """Every task with its scores, each leading to the transcript."""
  order = list(dict.fromkeys(t.task_id for c in cells for t in c.trials))
  by_cell = [_by_task(c) for c in cells]
  rows = []
  for task_id in order[: config.listed]:
    row = [page.escape(task_id)]
    for cell, trials in zip(cells, by_cell, strict=True):
      links = [
        _link(cell, t, config.threshold) for t in trials.get(task_id, ())
      ]
      row.append(' '.join(links) or page.NONE)
    rows.append(row)
  if not rows:
    return '<p class="cap">No task was run.</p>'
  head = ['task'] + [
    f'{page.escape(c.model)} \u00b7 {page.escape(c.harness)}' for c in cells
  ]
  more = len(order) - config.listed
  note = f'<p class="cap">{more:,} more tasks.</p>' if more > 0 else ''
  return page.fold(
    f'{len(order):,} tasks, each score leads to its transcript',
    page.table(head, rows, text_columns=range(len(head))) + note,
    opened=len(order) <= 40,
  )


def _by_task(cell: bench.Cell) -> dict[str, list[scores.Trial]]:
  found: dict[str, list[scores.Trial]] = {}
  for t in cell.trials:
    found.setdefault(t.task_id, []).append(t)
  return found


def _link(cell: bench.Cell, t: scores.Trial, threshold: float) -> str:
  name = f'{run_lib.slug(t.task_id)}.{t.sample_index}.html'
  path = urllib.parse.quote(f'transcripts/{cell.slug}/{name}')
  tone, text = '', t.outcome
  if t.scored and t.reward is not None:
    text = f'{t.reward:.2f}'
    tone = ' good' if scores.solved(t.reward, threshold) else ' bad'
  hint = page.escape(page.one_line(f'{t.outcome} {t.reason}'.strip(), 300))
  return f'<a class="pill{tone}" href="{path}" title="{hint}">{text}</a>'


def _differences(
  cells: Sequence[bench.Cell],
  baseline: Sequence[bench.Cell],
  config: BoardConfig,
) -> str:
  several = len({c.tasks for c in cells}) > 1
  rows = []
  for a, b, d in [*_against(cells, baseline), *pairs(cells)]:
    rows.append(
      [
        *([page.escape(a.tasks)] if several else []),
        f'{page.escape(a.model)} \u00b7 {page.escape(a.harness)}',
        f'{page.escape(b.model)} \u00b7 {page.escape(b.harness)}',
        page.number(d.before),
        page.number(d.after),
        page.signed(d.change.value) + page.span(d.change.low, d.change.high),
        page.signed(
          scores.difference(
            a.trials, b.trials, threshold=config.threshold
          ).change.value
        ),
        f'{d.better} / {d.worse} / {d.equal}',
        '&lt; 0.001' if d.p_value < 0.001 else f'{d.p_value:.3f}',
      ]
    )
  if not rows:
    return ''
  head = [
    *(['tasks'] if several else []),
    *('from', 'to', 'from', 'to', 'change', 'solved'),
    *('better / worse / equal', 'p'),
  ]
  return page.section(
    'Differences',
    page.table(head, rows, text_columns=range(2 + several)),
    lead='Paired by task, over the tasks that both sides scored: mean scores, '
    'and the change of the share solved.',
  )


def _against(cells, baseline):
  """Pairs (baseline cell, our cell) of the same task set."""
  for cell in cells:
    same = [
      b for b in baseline if b.tasks == cell.tasks and b.harness == cell.harness
    ]
    exact = [b for b in same if b.model == cell.model]
    for b in (exact or same)[:1]:
      marked = dataclasses.replace(b, model=f'{b.model} (baseline)')
      d = scores.difference(b.trials, cell.trials)
      if d.change.tasks:
        yield marked, cell, d


def _errors(cells: Sequence[bench.Cell]) -> str:
  """Outcomes other than ok, with their reasons."""
  seen: collections.Counter = collections.Counter()
  for cell in cells:
    for t in cell.trials:
      if t.outcome != 'ok' or not t.scored:
        kind = 'scored' if t.scored else 'left out'
        why = page.one_line(t.reason or '(no reason given)')
        seen[cell.model, cell.harness, t.outcome, kind, why] += 1
  if not seen:
    return ''
  return page.section(
    'Outcomes other than ok',
    page.table(
      ['model', 'harness', 'outcome', 'reward', 'rollouts', 'reason'],
      [
        [*map(page.escape, k[:-1]), f'{n:,}', page.escape(k[-1])]
        for k, n in seen.most_common(40)
      ],
      text_columns=range(4),
      wrap_columns=(5,),
    ),
  )


def _what_ran(cells: Sequence[bench.Cell]) -> str:
  body = ''
  for cell in cells:
    rows = [
      [page.escape(k), page.escape(page.one_line(v, 400))]
      for k, v in sorted(cell.facts.items())
    ]
    body += page.fold(
      page.escape(cell.label),
      page.table(['what', 'value'], rows, text_columns=(0,), wrap_columns=(1,)),
    )
  return page.section('What ran', body)
