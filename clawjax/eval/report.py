"""Turns a run folder into report.html, one page a person can read.

  verdict.py   Pass@1 before and after on unseen tasks, sampled beside greedy,
               by family and by harness
  curves.py    reward, entropy, KL, delivered tokens; health and packing; time
  gallery.py   how rollouts ended and why; some of them as trees of tokens
  here         the top of the page, all metrics, the config

The page shows what the folder holds. A part that cannot be drawn says why or
is left out with a note at the top; a broken record never breaks the page.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.eval import curves, gallery, page, verdict
from clawjax.eval import folder as folder_lib

FILE = 'report.html'


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
  if folder_lib.find(run.config, 'shuffle_rewards') is True:
    notes.append('A control run: rewards were dealt out at random.')
  tokenizer = gallery.load_tokenizer(run, notes)
  body = [
    verdict.headline(run),
    verdict.parts(run),
    curves.curves(run),
    gallery.outcomes(run),
    curves.time_shares(run),
    curves.diagnostics(run),
    gallery.rollouts(run, tokenizer, rollouts_shown),
    _everything(run),
  ]
  title = str(folder_lib.find(run.config, 'name') or run.path.resolve().name)
  return page.shell(
    f'{title} \u00b7 clawjax', _masthead(run, title, notes) + ''.join(body)
  )


# ---- top of the page -------------------------------------------------------


# Label, key of the config (the outermost of that name counts).
_FACTS = (
  ('harness', 'harnesses'),
  ('harness', 'harness'),
  ('model', 'model'),
  ('tokenizer', 'tokenizer'),
  ('group size', 'group'),
  ('group size', 'group_size'),
  ('seed', 'seed'),
)


def _masthead(
  run: folder_lib.RunFolder, title: str, notes: Sequence[str]
) -> str:
  facts = []
  for label, key in _FACTS:
    text = folder_lib.plain(folder_lib.find(run.config, key))
    if text:
      facts.append(f'<li>{label} <b>{page.escape(text)}</b></li>')
  trained = [r['step'] for r in run.rows if _has_section(r, 'train/')]
  if trained:
    facts.append(f'<li>steps <b>{len(set(trained))}</b></li>')
  wall = [
    r['wall_time'] for r in run.rows if page.is_number(r.get('wall_time'))
  ]
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
      [[page.escape(k), page.escape(page.one_line(v, 300))] for k, v in flat],
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


def _duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours} h {minutes:02d} min'
  return f'{minutes} min {rest:02d} s' if minutes else f'{rest} s'


def main(argv: Sequence[str] | None = None) -> int:
  """Writes the page of a run folder again: `... report RUN_DIR`."""
  parser = argparse.ArgumentParser(
    prog='python -m clawjax.eval.report', description=main.__doc__
  )
  parser.add_argument('run_dir', type=pathlib.Path)
  parser.add_argument('--rollouts', type=int, default=8, help='to draw')
  args = parser.parse_args(argv)
  if not args.run_dir.is_dir():
    print(f'no folder {args.run_dir}', file=sys.stderr)
    return 2
  print(write_report(args.run_dir, rollouts_shown=args.rollouts))
  return 0


if __name__ == '__main__':
  sys.exit(main())
