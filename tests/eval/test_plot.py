"""Charts: round ticks, gaps, hover texts."""

import json
import math
import re

import pytest

from clawjax.eval import page, plot


@pytest.mark.parametrize(
  'low, high, expected',
  [
    (0, 1, [0, 0.25, 0.5, 0.75, 1]),
    (0.03, 0.97, [0, 0.25, 0.5, 0.75, 1]),
    (0, 8, [0, 2, 4, 6, 8]),
    (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    (3, 3, [2.6, 2.8, 3, 3.2, 3.4]),
  ],
)
def test_ticks_are_round_and_enclose(low, high, expected):
  ticks = plot._ticks(low, high)
  assert ticks[0] <= low and ticks[-1] >= high
  assert ticks == pytest.approx(expected)


def test_rounding_of_float32_is_drawn_flat():
  # 1 - 6e-8 is the float32 below 1.
  assert plot._ticks(1 - 6e-8, 1)[0] < 0.95


@pytest.mark.parametrize('low, high', [(1, 1.0001), (5000.1, 5000.3), (-3, 2)])
def test_no_two_labels_of_an_axis_are_equal(low, high):
  line = plot.Series('a', [0, 1], [low, high])
  drawn = plot.chart('x', [line], low=low, high=high)
  labels = re.findall('text-anchor="end">([^<]*)<', drawn)
  assert len(labels) == len(plot._ticks(low, high)) == len(set(labels))


def test_smooth_by_hand():
  assert plot.smooth([1, 2, 3, 4], 2) == [1, 1.5, 2.5, 3.5]


def test_a_chart(parse):
  lines = [
    plot.Series('a <b>', [0, 1, 2], [0.1, math.nan, 0.3]),
    plot.Series('marks', [0, 2], [0.5, 0.7], marks=True),
  ]
  found = parse(plot.chart('Title & more', lines, low=0, high=1))
  svg = next(a for t, a in found.tags if t == 'svg')
  hover = json.loads(svg['data-c'])
  # Step 1 has no value: nothing to hover there.
  assert hover['t'] == [
    'step 0\na <b>  0.1\nmarks  0.5',
    'step 2\na <b>  0.3\nmarks  0.7',
  ]
  assert [t for t, _ in found.tags].count('circle') == 2
  assert 'Title & more' in found.text and 'a <b>' in found.text


def test_nothing_to_draw():
  assert plot.chart('x', []) == ''
  assert plot.chart('x', [plot.Series('a', [0], [math.inf])]) == ''


def test_one_point_is_a_dot(parse):
  found = parse(plot.chart('x', [plot.Series('a', [5], [2.0])]))
  assert [t for t, _ in found.tags].count('circle') == 1


@pytest.mark.parametrize(
  'value, text',
  [
    (0, '0'),
    (0.25, '0.25'),
    (-1.5, '\u22121.5'),
    (12345, '12,345'),
    (1e-7, '1.00e\u221207'),
    (math.nan, '\u2014'),
  ],
)
def test_short_numbers(value, text):
  assert page.short(value) == text
