"""Rubrics as data: what a judge is asked, and how its answers add up.

`task.metadata['judge']` says what a judge is asked, by `kind`:

  anchors    {items: [{text, anchors: [[value, description], ...]}, ...]}: every
             item gets one of *its* anchors; the score is the sum over items by
             the sum of the highest anchors.
  free       {text, checklist}: a rubric in prose; the judge names its criteria
             and gives each a number in [0, 1], and a total.
  checklist  {rubrics: [{rubric, weight, criteria: [text, ...]}, ...], output}:
             a rubric passes when all its criteria pass; the score is the share
             of the passed weight.

`task.metadata['weights']`, {'code': w, 'rubric': w}, mixes it with the grader:
0.7 and 0.3 unless the task says otherwise (ClawGym II, section 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clawjax.tasks.formats.report import Broken

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
CODE, RUBRIC = 0.7, 0.3


def items_of(rules: Any, what: str = 'rules') -> list[dict[str, Any]]:
  """Items in our form from ClawGym's two forms.

  Current: {name, file_path, scores: {'0': text, ...}}; legacy: {name,
  target_file, rule}, with quarter anchors.

  Raises:
    Broken: an item has no usable anchors or text.
  """
  if isinstance(rules, Mapping):
    rules = rules.get('rubrics') or rules.get('rules') or rules.get('items')
  if not isinstance(rules, list) or not rules:
    raise Broken('bad_rubric', f'{what}: wanted a list of items')
  return [_item(r, f'{what}[{n}]') for n, r in enumerate(rules, 1)]


def _item(rule: Any, what: str) -> dict[str, Any]:
  if not isinstance(rule, Mapping):
    raise Broken('bad_rubric', f'{what}: wanted an object, got {rule!r:.60}')
  name = str(rule.get('name') or '').strip()
  target = str(rule.get('file_path') or rule.get('target_file') or '').strip()
  scores = rule.get('scores')
  if isinstance(scores, Mapping) and scores:
    anchors: dict[float, str] = {}
    for key, text in scores.items():
      try:
        value = float(key)
      except (TypeError, ValueError):
        raise Broken('bad_rubric', f'{what}: anchor {key!r}') from None
      if not 0.0 <= value <= 1.0 or value in anchors:
        raise Broken('bad_rubric', f'{what}: anchor {key!r} out of place')
      anchors[value] = str(text)
    if max(anchors) <= 0:
      raise Broken('bad_rubric', f'{what}: no anchor above 0')
    text = name
  elif isinstance(rule.get('rule'), str) and rule['rule'].strip():
    anchors = dict.fromkeys(QUARTERS, '')
    text = f'{name}: {rule["rule"].strip()}' if name else rule['rule'].strip()
  else:
    raise Broken('bad_rubric', f'{what}: neither scores nor a rule')
  if target:
    text = f'{text} (file: {target})'
  if not text:
    raise Broken('bad_rubric', f'{what}: no text')
  return {'text': text, 'anchors': sorted([v, t] for v, t in anchors.items())}


def metadata(
  rules: Any,
  entry: Mapping[str, Any],
  *,
  default_mode: str,
  warn: Callable[[str, str], None],
) -> dict[str, Any]:
  """`judge` and `weights` of a ClawGym entry; {} for code alone."""
  mode = entry.get('validation_mode') or default_mode
  if not rules:
    if mode in ('rubric', 'code_and_rubric'):
      raise Broken('bad_rubric', f'validation_mode is {mode}, no rules')
    return {}
  if mode == 'code' and entry.get('validation_mode'):
    warn('rubric_unused', 'validation_mode is code; the rubric is left out')
    return {}
  if mode == 'rubric':
    weights = {'code': 0.0, 'rubric': 1.0}
  elif entry.get('reward_aggregation') == 'average_code_and_rubric':
    weights = {'code': 0.5, 'rubric': 0.5}
  else:
    weights = {'code': CODE, 'rubric': RUBRIC}
  items = items_of(rules)
  return {'judge': {'kind': 'anchors', 'items': items}, 'weights': weights}


def total(items: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> float:
  """Sum of scores by the sum of the highest anchors.

  Raises:
    ValueError: lengths differ, or a score is not an anchor of its item.
  """
  if len(items) != len(scores):
    raise ValueError(f'wanted {len(items)} scores, got {len(scores)}')
  for number, (item, score) in enumerate(zip(items, scores, strict=True), 1):
    allowed = [a[0] for a in item['anchors']]
    if not any(abs(score - value) < 1e-9 for value in allowed):
      raise ValueError(
        f'criterion_{number} is {score}, wanted one of {allowed}'
      )
  top = sum(max(a[0] for a in item['anchors']) for item in items)
  return sum(scores) / top


def mix(
  code: float | None, judged: float | None, weights: Mapping[str, float]
) -> float:
  """Weighted mean of the two sides; a missing side is an error, not 0.

  Raises:
    ValueError: a side with weight has no number, or no side has weight.
  """
  sides = [
    (code, weights.get('code', 0.0)),
    (judged, weights.get('rubric', 0.0)),
  ]
  if any(w < 0 for _, w in sides) or not sum(w for _, w in sides) > 0:
    raise ValueError(f'wanted weights >= 0 with a positive sum, got {weights}')
  if any(w > 0 and value is None for value, w in sides):
    raise ValueError('a side of the hybrid score is missing')
  used = [(v, w) for v, w in sides if w > 0]
  return sum(v * w for v, w in used) / sum(w for _, w in used)
