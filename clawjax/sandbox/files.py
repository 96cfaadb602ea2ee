"""Host-side reads and writes in a folder that an agent has owned.

Every step from the folder's own descriptor down opens one component with
O_NOFOLLOW, so neither a symlink nor '..' leads out, whoever plants it and
whenever. Only regular files are opened for content, non-blocking (a FIFO would
hang an ordinary open). All walks are iterative and capped in depth.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
from collections.abc import Iterator

from clawjax.errors import SandboxError
from clawjax.sandbox import base

_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_DEPTH = 64


@contextlib.contextmanager
def _folder(root: pathlib.Path, parts: list[str]) -> Iterator[int]:
  """A descriptor of root/parts, reached without following any link."""
  fd = os.open(root, _DIR)
  try:
    for part in parts:
      below = os.open(part, _DIR, dir_fd=fd)
      os.close(fd)
      fd = below
    yield fd
  finally:
    os.close(fd)


def write(
  root: pathlib.Path,
  relative: str,
  content: bytes,
  *,
  mode: int,
  owner: int | None,
) -> None:
  """Writes root/relative, making folders; what was there is replaced.

  Args:
    owner: uid and gid that new files and folders get, or None for ours.
  """
  *parents, name = relative.split('/')
  for depth in range(len(parts := parents)):
    with _folder(root, parts[:depth]) as fd:
      try:
        os.mkdir(parts[depth], 0o755, dir_fd=fd)
      except FileExistsError:
        continue
      if owner is not None:
        os.chown(parts[depth], owner, owner, dir_fd=fd, follow_symlinks=False)
  with _folder(root, parents) as fd:
    with contextlib.suppress(FileNotFoundError):
      os.unlink(name, dir_fd=fd)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, mode, dir_fd=fd)
    with os.fdopen(file, 'wb') as out:
      out.write(content)
      os.fchmod(file, mode)
      if owner is not None:
        os.fchown(file, owner, owner)


def read(root: pathlib.Path, relative: str, max_bytes: int) -> bytes:
  """Content of the regular file root/relative, at most `max_bytes`."""
  *parents, name = relative.split('/')
  try:
    with _folder(root, parents) as fd:
      content = _content(name, fd, max_bytes)
  except OSError as e:
    raise FileNotFoundError(f'no regular file {relative!r}') from e
  if content is None:
    raise FileNotFoundError(f'{relative!r} is not a regular file')
  return content


def _content(name: str, folder: int, max_bytes: int) -> bytes | None:
  try:
    fd = os.open(name, _FILE, dir_fd=folder)
  except PermissionError:
    # An agent that took its own read bit away; we own the file or are root.
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode):
      return None
    os.chmod(name, 0o600, dir_fd=folder)
    fd = os.open(name, _FILE, dir_fd=folder)
  with os.fdopen(fd, 'rb') as file:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
      return None
    return file.read(max_bytes)


def _walk(root: pathlib.Path) -> Iterator[tuple[str, str, os.stat_result, int]]:
  """Yields (relative path, name, lstat, folder descriptor), sorted."""
  pending = ['']
  while pending:
    relative = pending.pop()
    parts = relative.split('/') if relative else []
    if len(parts) > MAX_DEPTH:
      raise SandboxError(
        f'reading a workspace back: folders are deeper than {MAX_DEPTH}'
      )
    if parts:
      _let_in(root, parts)
    with _folder(root, parts) as fd:
      folders = []
      for name in sorted(os.listdir(fd)):
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        path = f'{relative}/{name}' if relative else name
        yield path, name, info, fd
        if stat.S_ISDIR(info.st_mode):
          folders.append(path)
    pending.extend(reversed(folders))


def _let_in(root: pathlib.Path, parts: list[str]) -> None:
  """Gives an ordinary user back the bits that the agent took from a folder."""
  if os.geteuid() == 0:
    return
  with _folder(root, parts[:-1]) as fd:
    mode = os.stat(parts[-1], dir_fd=fd, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) and mode & 0o500 != 0o500:
      os.chmod(parts[-1], 0o700, dir_fd=fd)


def _text(path: str) -> str:
  """A path that any JSON or log can hold (undecodable bytes escaped)."""
  return path.encode('utf-8', 'surrogateescape').decode('utf-8', 'replace')


def snapshot(
  root: pathlib.Path, *, max_bytes: int, max_entries: int
) -> dict[str, base.FileInfo]:
  """All entries below root; contents are read up to `max_bytes` in total."""
  result: dict[str, base.FileInfo] = {}
  left = max_bytes
  for path, name, info, fd in _walk(root):
    if len(result) >= max_entries:
      raise SandboxError(
        f'reading a workspace back: more than {max_entries} entries'
      )
    kind = base.kind_of(info.st_mode)
    digest = ''
    if kind == 'link':
      digest = _text(os.readlink(name, dir_fd=fd))
    elif kind == 'file' and info.st_size <= left:
      content = _content(name, fd, left + 1)
      if content is not None and len(content) <= left:
        left -= len(content)
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    result[_text(path)] = base.FileInfo(
      kind,
      info.st_size if kind == 'file' else 0,
      stat.S_IMODE(info.st_mode),
      digest,
    )
  return result


def export(
  root: pathlib.Path, *, max_bytes: int, max_files: int
) -> dict[str, bytes]:
  """Contents of the regular files below root."""
  result: dict[str, bytes] = {}
  left = max_bytes
  for path, name, info, fd in _walk(root):
    if not stat.S_ISREG(info.st_mode):
      continue
    content = _content(name, fd, left + 1) if info.st_size <= left else None
    if content is None and base.kind_of(info.st_mode) != 'file':
      continue
    if content is None or len(content) > left:
      raise SandboxError(
        f'reading a workspace back: more than {max_bytes} bytes'
      )
    if len(result) >= max_files:
      raise SandboxError(
        f'reading a workspace back: more than {max_files} files'
      )
    left -= len(content)
    result[_text(path)] = content
  return result


def used_bytes(root: pathlib.Path) -> tuple[int, int]:
  """(bytes on disk, entries) below root; for limits without a quota."""
  total = count = 0
  pending = [str(root)]
  while pending:
    try:
      with os.scandir(pending.pop()) as entries:
        for entry in entries:
          count += 1
          info = entry.stat(follow_symlinks=False)
          total += info.st_blocks * 512
          if stat.S_ISDIR(info.st_mode):
            pending.append(entry.path)
    except OSError:
      continue
  return total, count


def remove(root: pathlib.Path) -> None:
  """Removes a whole folder, whatever was done to modes and depth in it."""
  if not root.exists():
    return
  with contextlib.suppress(RecursionError, OSError):
    shutil.rmtree(root)
    return
  # Modes taken away, or too deep for a path or for recursion.
  for argv in (
    ['chmod', '-R', 'u+rwx', '--', str(root)],
    ['rm', '-rf', '--one-file-system', '--', str(root)],
  ):
    subprocess.run(argv, check=False, capture_output=True)
