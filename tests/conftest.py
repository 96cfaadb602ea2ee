"""Shared set-up: slow tests run only when RUN_SLOW=1 (or -m slow)."""

import os
import pathlib
import tempfile

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Compiled programs are kept between tests, processes and runs of the suite.
os.environ.setdefault(
  'JAX_COMPILATION_CACHE_DIR',
  os.path.join(tempfile.gettempdir(), f'clawjax-test-cache-{os.getuid()}'),
)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.5')

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
