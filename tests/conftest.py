"""Shared set-up: slow tests run only when RUN_SLOW=1 (or -m slow)."""

import os
import pathlib

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

SHARED = pathlib.Path(__file__).resolve().parents[2] / 'shared'


def pytest_collection_modifyitems(config, items):
  if os.environ.get('RUN_SLOW') == '1' or 'slow' in config.option.markexpr:
    return
  skip = pytest.mark.skip(reason='slow; RUN_SLOW=1 runs it')
  for item in items:
    if 'slow' in item.keywords:
      item.add_marker(skip)


@pytest.fixture
def shared() -> pathlib.Path:
  """The folder of shared cases; the test is skipped where it is absent."""
  if not SHARED.is_dir():
    pytest.skip('no shared folder beside this checkout')
  return SHARED
