"""The proxy without a socket; a check asks for one with `served=True`."""

import functools

import pytest

from tests.proxy.conftest import bench as served_bench

assert served_bench


@pytest.fixture
def bench(served_bench):
  """`bench` of the proxy's tests, called in process."""
  return functools.partial(served_bench, served=False)
