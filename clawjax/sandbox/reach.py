"""What a sandbox's uid can read of the host.

Root gives every sandbox a uid of its own, and that uid stands before the same
closed doors as any user: a checkout in /root cannot be mounted. `Reach` names a
path that can be, a copy where it must.
"""

from __future__ import annotations

import pathlib
import shutil
import threading

from clawjax.errors import SandboxError

_COPY_BYTES = 2**30


def searchable(path: pathlib.Path) -> bool:
  """Whether any uid can reach `path` and read it."""
  for folder in path.resolve().parents:
    if not folder.stat().st_mode & 0o001:
      return False
  mode = path.stat().st_mode
  return bool(mode & 0o004) and (not path.is_dir() or bool(mode & 0o001))


class Reach:
  """Paths that any uid can read, made once each.

  Args:
    folder: for the copies; its parents are searchable by all.
    any_uid: whether sandboxes have uids other than ours; if not, every path
      stands for itself.
  """

  def __init__(self, folder: pathlib.Path, *, any_uid: bool):
    self._folder = folder
    self._any_uid = any_uid
    self._known: dict[str, str] = {}
    self._lock = threading.Lock()

  def path(self, host: str) -> str:
    """`host`, or a copy of it that stays as it is now.

    Raises:
      SandboxError: it is absent, or to be copied and larger than 1 GiB.
    """
    if not self._any_uid:
      return host
    with self._lock:
      if host not in self._known:
        try:
          open_ = searchable(pathlib.Path(host))
          self._known[host] = host if open_ else self._copy(pathlib.Path(host))
        except OSError as e:
          raise SandboxError(f'cannot mount {host}: {e}') from e
      return self._known[host]

  def _copy(self, path: pathlib.Path) -> str:
    size = sum(p.lstat().st_size for p in (path, *path.rglob('*')))
    if size > _COPY_BYTES:
      raise SandboxError(
        f'{path} cannot be read by other users, and {size / 2**30:.1f} GiB are'
        ' too much to copy: put it where all may read it'
      )
    folder = self._folder / str(len(self._known))
    folder.mkdir(parents=True)
    for made in (folder, self._folder):
      made.chmod(0o755)
    copy = folder / path.name
    if path.is_dir():
      shutil.copytree(path, copy, symlinks=True)
    else:
      shutil.copy2(path, copy)
    for made in (copy, *copy.rglob('*')):
      if not made.is_symlink():
        made.chmod(made.stat().st_mode | (0o555 if made.is_dir() else 0o444))
    return str(copy)
