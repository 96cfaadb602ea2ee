"""Line charts as inline SVG: a few series over steps, axes, hover values.

Deliberately small: one x axis (steps), one y axis, lines that break where a
value is missing, and optional marks for series with few points. The picture is
drawn once in user units of a fixed box and scales with the page; the hover
texts are made here too, so that the page's script only has to look them up.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence

from clawjax.eval import page

_W, _H = 420, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 24
COLOURS = ('var(--s1)', 'var(--s2)', 'var(--s3)', 'var(--s4)')


@dataclasses.dataclass(frozen=True)
class Series:
  """Points of one line.

  Attributes:
    label: its name in the legend and the hover text.
    steps, values: the points, in order of steps; a value may be NaN.
    marks: draw points joined by a dashed line (for sparse series).
    faint: draw it in the background (raw values behind their mean).
  """

  label: str
  steps: Sequence[float]
  values: Sequence[float]
  marks: bool = False
  faint: bool = False


def chart(
  title: str,
  series: Sequence[Series],
  *,
  low: float | None = None,
  high: float | None = None,
  note: str = '',
) -> str:
  """A figure with its title, last value, lines and legend.

  Args:
    title: plain text.
    series: the lines; those without a finite value are left out.
    low, high: bounds of the y axis where they are natural, e.g. 0 and 1.
    note: a line below the title, plain text.

  Returns:
    HTML, or '' when there is nothing to draw.
  """
  lines = [s for s in map(_finite, series) if s.steps]
  if not lines:
    return ''
  first = min(s.steps[0] for s in lines)
  last = max(s.steps[-1] for s in lines)
  values = [v for s in lines for v in s.values]
  ticks = _ticks(
    min(values) if low is None else min(low, *values),
    max(values) if high is None else max(high, *values),
  )
  bottom, top = ticks[0], ticks[-1]
  width = last - first or 1.0

  def x_of(step: float) -> float:
    return _LEFT + (step - first) / width * (_W - _LEFT - _RIGHT)

  def y_of(value: float) -> float:
    return _TOP + (top - value) / (top - bottom) * (_H - _TOP - _BOTTOM)

  parts = [_axes(ticks, y_of, first, last, x_of)]
  colours = _colours(lines)
  for colour, line in zip(colours, lines, strict=True):
    parts.append(_line(line, colour, x_of, y_of))
  hover = _hover(lines, x_of)
  now = ' \u00b7 '.join(page.short(s.values[-1]) for s in lines[:1])
  legend = ''
  if len(lines) > 1:
    legend = '<div class="keys">' + ''.join(
      f'<span><span class="key" style="background:{colour}'
      f'{";opacity:.4" if s.faint else ""}"></span>{page.escape(s.label)}</span>'
      for colour, s in zip(colours, lines, strict=True)
    )
    legend += '</div>'
  text = f'<div class="cap">{page.escape(note)}</div>' if note else ''
  return (
    f'<figure><figcaption><h3>{page.escape(title)}</h3>'
    f'<span class="now">last {now}</span></figcaption>{legend}'
    f'<svg viewBox="0 0 {_W} {_H}" role="img" '
    f'aria-label="{page.escape(title)}" data-c="{page.escape(hover)}">'
    f'{"".join(parts)}<line class="cross" y1="{_TOP}" y2="{_H - _BOTTOM}" '
    'stroke="var(--faint)" stroke-width="1" style="display:none"/>'
    f'<rect x="{_LEFT}" y="0" width="{_W - _LEFT}" height="{_H}" '
    f'fill="transparent"/></svg>{text}</figure>'
  )


def _colours(lines: Sequence[Series]) -> list[str]:
  """A colour per line; a faint one shares that of the line after it."""
  out, number = [], 0
  for line in lines:
    out.append(COLOURS[number % len(COLOURS)])
    number += not line.faint
  return out


def smooth(values: Sequence[float], window: int) -> list[float]:
  """Mean of the last `window` values (fewer at the start)."""
  return [
    math.fsum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window)
    for i in range(len(values))
  ]


def _finite(line: Series) -> Series:
  """The line without its missing values."""
  kept = [
    (s, v)
    for s, v in zip(line.steps, line.values, strict=True)
    if math.isfinite(v)
  ]
  return dataclasses.replace(
    line, steps=[s for s, _ in kept], values=[v for _, v in kept]
  )


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
  """About `count` round values whose first and last enclose the data."""
  if high - low < 1e-6 * max(abs(low), abs(high)) or high - low < 1e-12:
    # Rounding of float32, or nothing at all.
    pad = abs(high) * 0.1 or 0.5
    low, high = low - pad, high + pad
  raw = (high - low) / count
  power = 10.0 ** math.floor(math.log10(raw))
  step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
  start = math.floor(low / step + 1e-9)
  stop = math.ceil(high / step - 1e-9)
  return [round(i * step, 12) for i in range(start, stop + 1)]


def _axes(ticks, y_of, first, last, x_of) -> str:
  out = []
  size = max(abs(ticks[0]), abs(ticks[-1]))
  digits = max(4, 2 + math.ceil(math.log10(size / (ticks[1] - ticks[0]))))
  for tick in ticks:
    y = y_of(tick)
    out.append(
      f'<line x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
      f'stroke="var(--grid)"/><text x="{_LEFT - 7}" y="{y + 4:.1f}" '
      f'text-anchor="end">{page.short(tick, digits)}</text>'
    )
  marks = [t for t in _ticks(first, last, 5) if first <= t <= last]
  marks = [t for t in marks if t == int(t)] if last > first else [first]
  for tick in marks:
    out.append(
      f'<text x="{x_of(tick):.1f}" y="{_H - 6}" text-anchor="middle">'
      f'{page.short(tick)}</text>'
    )
  return ''.join(out)


def _line(line: Series, colour: str, x_of, y_of) -> str:
  points = [
    (x_of(s), y_of(v)) for s, v in zip(line.steps, line.values, strict=True)
  ]
  path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in points)
  dash = ' stroke-dasharray="3 3"' if line.marks else ''
  dash += ' opacity="0.4"' if line.faint else ''
  out = (
    f'<polyline points="{path}" fill="none" stroke="{colour}" '
    f'stroke-width="{1.2 if line.marks else 1.8}" stroke-linejoin="round"'
    f'{dash}/>'
  )
  if line.marks or len(points) == 1:
    out += ''.join(
      f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" '
      'stroke="var(--card)" stroke-width="1.5"/>'
      for x, y in points
    )
  return out


def _hover(lines: Sequence[Series], x_of) -> str:
  """JSON: x of every step with a value, and the text to show there."""
  texts: dict[float, list[str]] = {}
  for line in lines:
    for step, value in zip(line.steps, line.values, strict=True):
      texts.setdefault(step, []).append(f'{line.label}  {page.short(value)}')
  steps = sorted(texts)
  return json.dumps(
    {
      'x': [round(x_of(s), 1) for s in steps],
      't': ['\n'.join([f'step {s:g}', *texts[s]]) for s in steps],
    }
  )
