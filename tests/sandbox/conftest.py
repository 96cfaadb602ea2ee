"""Backends that work here; the shared suite runs on each of them."""

import asyncio
import contextlib
import os
import pathlib
import tempfile

import pytest

from clawjax import sandbox


@pytest.fixture
def socket_dir():
  """A short path that any uid can pass through."""
  with tempfile.TemporaryDirectory(prefix='cj') as folder:
    os.chmod(folder, 0o711)
    yield pathlib.Path(folder)


@pytest.fixture
async def bwrap(tmp_path):
  """A bubblewrap backend; at its end nothing may be left."""
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(f'bwrap: {probe.text}')
  yield backend
  run = backend._run.path
  await backend.close()
  assert not run.exists()
  assert str(run) not in pathlib.Path('/proc/self/mounts').read_text()


@contextlib.asynccontextmanager
async def serving(path, handle):
  """A Unix server for the length of a `with`."""
  server = await asyncio.start_unix_server(handle, path)
  os.chmod(path, 0o666)
  try:
    yield server
  finally:
    server.close()
    await server.wait_closed()


@pytest.fixture
def serve():
  """`serving` as a fixture."""
  return serving
