"""A sandbox stand-in: a plain temporary folder, no isolation, for graders."""

import asyncio
import os
import pathlib
import shutil
import tempfile
import time

import pytest

from clawjax.sandbox import base


class FolderSandbox:
  """Maps the inside folders to a temporary folder, and argv with them."""

  id = 'folder'

  def __init__(self):
    self.root = pathlib.Path(tempfile.mkdtemp(prefix='clawjax-test-'))
    for folder in base.FOLDERS:
      self._at(folder).mkdir(parents=True)

  def _at(self, path):
    path = path if path.startswith('/') else f'{base.WORKSPACE}/{path}'
    return self.root / path.lstrip('/')

  async def write(self, path, content, mode=0o644):
    base.inside_path(path)
    self._at(path).parent.mkdir(parents=True, exist_ok=True)
    self._at(path).write_bytes(content)
    self._at(path).chmod(mode)

  async def read(self, path, max_bytes=1 << 20):
    return self._at(path).read_bytes()

  async def exec(
    self, argv, *, env=None, cwd=base.WORKSPACE, timeout_s=60.0, **_
  ):
    inside = [
      str(self._at(a)) if a.startswith(base.FOLDERS) else a for a in argv
    ]
    start = time.monotonic()
    process = await asyncio.create_subprocess_exec(
      *inside,
      cwd=self._at(cwd),
      env={'PATH': os.environ['PATH'], 'LC_ALL': 'C', **(env or {})},
      stdout=asyncio.subprocess.PIPE,
      stderr=asyncio.subprocess.PIPE,
    )
    try:
      out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
      process.kill()
      await process.communicate()
      return base.ExecResult(137, timed_out=True)
    seconds = time.monotonic() - start
    return base.ExecResult(process.returncode, out, err, seconds=seconds)

  async def export(self, **_):
    root = self._at(base.WORKSPACE)
    return {
      str(p.relative_to(root)): p.read_bytes()
      for p in root.rglob('*')
      if p.is_file() and not p.is_symlink()
    }

  async def destroy(self):
    shutil.rmtree(self.root, ignore_errors=True)


class FolderBackend:
  name = 'folder'

  async def create(self, spec):
    return FolderSandbox()


@pytest.fixture
def folder_backend():
  return FolderBackend()
