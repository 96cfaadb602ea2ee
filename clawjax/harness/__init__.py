"""Agent harnesses: one small adapter each, mostly data."""

from __future__ import annotations

import importlib
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness.base import Harness, Plan

__all__ = ['Harness', 'Plan', 'load', 'NAMES']

NAMES = (
  'pi',
  'claude_code',
  'codex',
  'openclaw',
  'qwen_code',
  'opencode',
  'mini_swe',
  'agent_loop',
)


def load(name: str, /, **options: Any) -> Harness:
  """A harness by name.

  Args:
    name: one of `NAMES`, or 'template' for one given as data.
    **options: see `make` in the harness's module, or `Template`; and `mcp`,
      tool servers by name, see `clawjax.harness.mcp`.

  Raises:
    HarnessError: unknown name or option.
  """
  if servers := options.pop('mcp', None):
    from clawjax.harness import mcp

    return mcp.equip(name, mcp.read(servers), **options)
  if name == 'template':
    from clawjax.harness.template import Template as make
  elif name in NAMES:
    make = importlib.import_module(f'clawjax.harness.{name}').make
  else:
    raise HarnessError(
      f'unknown harness {name!r}; there are {", ".join(NAMES)}, and '
      "'template' for one of your own"
    )
  try:
    return make(**options)
  except TypeError as e:
    raise HarnessError(f'harness {name}: {e}') from e
