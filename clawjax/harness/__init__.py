"""Agent harnesses: one small adapter each, mostly data."""

from __future__ import annotations

from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness.base import Harness, Plan

__all__ = ['Harness', 'Plan', 'load', 'NAMES']

NAMES = ('pi',)


def load(name: str, **options: Any) -> Harness:
  """A harness by name; see its class for the options."""
  try:
    if name == 'pi':
      from clawjax.harness.pi import Pi

      return Pi(**options)
  except TypeError as e:
    raise HarnessError(f'harness {name}: {e}') from e
  raise HarnessError(f'unknown harness {name!r}; there are {", ".join(NAMES)}')
