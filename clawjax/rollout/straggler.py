"""What to do about the slowest rollouts of a step.

  wait            for all of them (the default)
  over_provision  start more than a group needs; the first that are valid make
                  the group, the rest are stopped and not recorded
  quantile        once a share of the step's rollouts has ended, the others get
                  so many times the longest of these, then are cut; a cut one
                  is scored as it stands, like any other time-out

Both savers of time lean on fast rollouts: the first drops slow ones from the
statistics, the second shortens them. On tasks whose right answers take longer
that is a bias, so waiting is the default.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal


@dataclasses.dataclass(frozen=True)
class StragglerConfig:
  """How to treat stragglers.

  Attributes:
    policy: see above.
    extra: over_provision: further rollouts, as a share of a group's size.
    quantile: quantile: share of a step's rollouts that must have ended.
    patience: quantile: times the longest of these that a harness may run.
  """

  policy: Literal['wait', 'over_provision', 'quantile'] = 'wait'
  extra: float = 0.25
  quantile: float = 0.9
  patience: float = 1.5

  def __post_init__(self):
    if self.policy not in ('wait', 'over_provision', 'quantile'):
      raise ValueError(
        "straggler.policy: wanted 'wait', 'over_provision' or 'quantile',"
        f' got {self.policy!r}'
      )
    if self.extra <= 0:
      raise ValueError(f'straggler.extra: wanted more than 0, got {self.extra}')
    if not 0 < self.quantile < 1 or self.patience < 1:
      raise ValueError(
        'wanted 0 < straggler.quantile < 1 and straggler.patience >= 1, got'
        f' {self.quantile} and {self.patience}'
      )

  def planned(self, size: int) -> int:
    """Rollouts to start for a group that needs `size`."""
    if self.policy != 'over_provision':
      return size
    return size + math.ceil(self.extra * size)


class Quantile:
  """When the line is drawn in one step, and where."""

  def __init__(self, config: StragglerConfig, total: int):
    """Args:
    config: see there.
    total: rollouts of the step.
    """
    self._on = config.policy == 'quantile'
    self._needed = math.ceil(config.quantile * total)
    self._patience = config.patience
    self._seconds: list[float] = []
    self.limit_s: float | None = None

  def add(self, seconds: float) -> float | None:
    """A harness ran so long; the limit for the others, once it is known."""
    if not self._on or self.limit_s is not None:
      return None
    self._seconds.append(seconds)
    if len(self._seconds) < self._needed:
      return None
    self.limit_s = self._patience * max(self._seconds)
    return self.limit_s
