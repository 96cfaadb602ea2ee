"""Images of the docker backend: found, pulled, built or made on the spot.

  ''            the host's own: almost empty, for its /usr bound read-only
  build:FOLDER  of a folder with a Dockerfile, built once per content
  anything else a name; pulled when it is not there

An image may hold what harnesses would mount, and says so in its label
`clawjax.bundle` (see `launch/docker` and `clawjax.harness.bundle`).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import tarfile
import threading
from collections.abc import Mapping
from typing import Any

from clawjax.errors import SandboxError
from clawjax.sandbox import base

LOCAL = 'clawjax-local:1'
# Of an image: JSON {path inside: name of the folder that it stands in for}.
BUNDLE = 'clawjax.bundle'
_building = threading.Lock()


def local_tar() -> bytes:
  """An almost empty root for a bound `/usr`, as a tar archive."""
  out = io.BytesIO()
  with tarfile.open(fileobj=out, mode='w') as tar:

    def folder(name: str, mode: int = 0o755) -> None:
      info = tarfile.TarInfo(name)
      info.type, info.mode = tarfile.DIRTYPE, mode
      tar.addfile(info)

    for name in ('usr', 'etc', 'dev', 'proc', 'sys', 'run', 'opt', 'home'):
      folder(name)
    folder('tmp', 0o1777)
    for name in base.FOLDERS:
      folder(name.strip('/'))
    for name in ('bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'):
      path = pathlib.Path('/', name)
      if path.is_symlink():
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(info)
    for name, text in base.ETC.items():
      info = tarfile.TarInfo(f'etc/{name}')
      info.size = len(text)
      tar.addfile(info, io.BytesIO(text.encode()))
    cache = pathlib.Path('/etc/ld.so.cache')
    if cache.exists():
      info = tarfile.TarInfo('etc/ld.so.cache')
      info.size = cache.stat().st_size
      tar.addfile(info, io.BytesIO(cache.read_bytes()))
  return out.getvalue()


def find(client: Any, name: str) -> tuple[str, dict[str, str]]:
  """An image by its name in a spec, made or fetched when it is missing.

  Args:
    client: of the daemon.
    name: see the top of the file.

  Returns:
    Its name there, and what it bundles.
  """
  import docker

  if name.startswith('build:'):
    name = _built(client, pathlib.Path(name.removeprefix('build:')))
  name = name or LOCAL
  try:
    found = client.images.get(name)
  except docker.errors.ImageNotFound:
    if name == LOCAL:
      repository, tag = LOCAL.split(':')
      client.api.import_image_from_data(
        local_tar(), repository=repository, tag=tag
      )
      return name, {}
    found = client.images.pull(name)
  return name, json.loads(found.labels.get(BUNDLE, '{}'))


def _built(client: Any, folder: pathlib.Path) -> str:
  """The image of a folder with a Dockerfile."""
  import docker

  content = hashlib.blake2b(digest_size=16)
  for path in sorted(folder.rglob('*')):
    if path.is_file():
      content.update(f'{path.relative_to(folder)}\0'.encode())
      content.update(hashlib.blake2b(path.read_bytes()).digest())
  name = f'clawjax-build:{content.hexdigest()}'
  with _building:  # the rollouts of one task come together
    try:
      client.images.get(name)
    except docker.errors.ImageNotFound:
      # Read to its end, also a failed one: the SDK's own way leaves it open.
      said = list(
        client.api.build(
          path=str(folder), tag=name, rm=True, forcerm=True, decode=True
        )
      )
      if faults := [line['error'] for line in said if 'error' in line]:
        raise SandboxError(
          f'building the image of {folder}: {faults[-1].strip()}'
        ) from None
  return name


def stands_in(
  image: str, bundled: Mapping[str, str], host: str, inside: str
) -> bool:
  """Whether an image holds what would be mounted; the same version of it.

  Raises:
    SandboxError: another version.
  """
  if (held := bundled.get(inside)) is None:
    return False
  wanted = pathlib.Path(host).name
  if held not in ('', wanted):
    raise SandboxError(
      f'the image {image} holds {held} at {inside}, wanted {wanted}: build it'
      ' anew (launch/docker/build.sh sandbox)'
    )
  return True
