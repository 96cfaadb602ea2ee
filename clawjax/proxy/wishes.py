"""How a call is sampled: our settings, the room that is left, what is asked.

A client's own temperature, top_p, top_k and min_p count only where a session
follows its client: otherwise the trainer must know the distribution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from clawjax import types

_BOUNDS = {'temperature': 2.0, 'top_p': 1.0, 'min_p': 1.0, 'top_k': 1e6}


def params(
  sampling: types.SamplingParams,
  wishes: Mapping[str, Any],
  *,
  follow: bool,
  limits: Iterable[int | None],
  **fixed: Any,
) -> types.SamplingParams:
  """Parameters of one call.

  Args:
    sampling: the session's own.
    wishes: what the client asks for, unchecked.
    follow: whether the wishes count.
    limits: bounds on the tokens sampled; None: none from there.
    **fixed: fields that are set whatever was asked.
  """
  if follow:
    sampling = _followed(sampling, wishes)
  known = [x for x in (*limits, sampling.max_tokens) if x is not None]
  return dataclasses.replace(
    sampling, max_tokens=min(known, default=None), **fixed
  )


def _followed(
  sampling: types.SamplingParams, wishes: Mapping[str, Any]
) -> types.SamplingParams:
  """Sampling with the client's own numbers, where they make sense."""
  chosen: dict[str, Any] = {}
  for name, bound in _BOUNDS.items():
    value = wishes.get(name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and 0 <= value <= bound:
      chosen[name] = int(value) if name == 'top_k' else float(value)
  return dataclasses.replace(sampling, **chosen)
