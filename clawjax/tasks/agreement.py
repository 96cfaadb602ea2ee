"""How far judges agree: Cohen's kappa, Krippendorff's alpha, means per judge.

Ratings are rows of units (a rollout, a criterion) and columns of judges; None is
"not rated". Both statistics are 1 for full agreement and 0 for what chance
gives. They need no library and are short enough to be checked by hand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

Rating = float | None
Distance = Callable[[float, float], float]


def nominal(a: float, b: float) -> float:
  """0 for equal values, 1 for any others."""
  return float(a != b)


def interval(a: float, b: float) -> float:
  """Squared difference."""
  return (a - b) ** 2


def cohen_kappa(
  first: Sequence[float],
  second: Sequence[float],
  *,
  distance: Distance = nominal,
) -> float:
  """Cohen's kappa of two judges; weighted when `distance` is not nominal.

  Args:
    first, second: ratings of the same units in the same order.
    distance: `nominal` (unweighted) or `interval` (quadratic weights).

  Returns:
    1 - observed / expected disagreement; nan when nothing could differ.

  Raises:
    ValueError: lengths differ or there is no unit.
  """
  if len(first) != len(second) or not first:
    raise ValueError('wanted two lists of ratings of the same, non-zero length')
  count = len(first)
  observed = (
    sum(distance(a, b) for a, b in zip(first, second, strict=True)) / count
  )
  margin_a, margin_b = Counter(first), Counter(second)
  expected = sum(
    n * m * distance(a, b)
    for a, n in margin_a.items()
    for b, m in margin_b.items()
  ) / (count * count)
  return 1.0 - observed / expected if expected else math.nan


def krippendorff_alpha(
  units: Sequence[Sequence[Rating]], *, distance: Distance = interval
) -> float:
  """Krippendorff's alpha of any number of judges, gaps allowed.

  Args:
    units: per unit the ratings of the judges, None where one is missing.
    distance: `nominal` or `interval`.

  Returns:
    1 - observed / expected disagreement over pairable values; nan when there
    are fewer than two or all are equal.
  """
  rated = [[v for v in unit if v is not None] for unit in units]
  rated = [values for values in rated if len(values) > 1]
  total = sum(map(len, rated))
  if total < 2:
    return math.nan
  observed = (
    sum(
      sum(distance(a, b) for a in values for b in values) / (len(values) - 1)
      for values in rated
    )
    / total
  )
  counts = Counter(v for values in rated for v in values)
  expected = sum(
    n * m * distance(a, b) for a, n in counts.items() for b, m in counts.items()
  ) / (total * (total - 1))
  return 1.0 - observed / expected if expected else math.nan


def report(by_unit: Sequence[Mapping[str, float]]) -> dict[str, object]:
  """Means and agreement of the judges that scored a set of rollouts.

  Args:
    by_unit: per rollout the value of each judge (`Score.by_judge`).

  Returns:
    'judges': name -> {'mean', 'units'}; 'alpha': Krippendorff's, interval;
    'kappa': 'a / b' -> Cohen's with quadratic weights over shared units.
  """
  names = sorted({name for unit in by_unit for name in unit})
  judges = {}
  for name in names:
    values = [unit[name] for unit in by_unit if name in unit]
    judges[name] = {'mean': sum(values) / len(values), 'units': len(values)}
  kappa = {}
  for index, one in enumerate(names):
    for other in names[index + 1 :]:
      shared = [u for u in by_unit if one in u and other in u]
      if shared:
        kappa[f'{one} / {other}'] = cohen_kappa(
          [u[one] for u in shared],
          [u[other] for u in shared],
          distance=interval,
        )
  rows = [[unit.get(name) for name in names] for unit in by_unit]
  return {'judges': judges, 'alpha': krippendorff_alpha(rows), 'kappa': kappa}
