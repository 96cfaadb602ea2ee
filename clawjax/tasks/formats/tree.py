"""Reading task folders of other people: plain paths, no escapes, no giants.

Every path that a task file names and every link that a folder holds is looked
at before a byte is read: absolute paths, `..` and links that leave the folder
are `Broken`, and so is more than `MAX_BYTES` of workspace.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pathlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax.tasks.formats.report import Broken

MAX_BYTES = 48 << 20  # of one workspace; sandboxes take and give back 64 MiB
MAX_FILES = 5000
_SKIP = {'__pycache__', '.DS_Store', '.gitkeep'}


def plain(path: Any, what: str = 'path') -> str:
  """A relative path without '..', in normal form.

  Raises:
    Broken: it is absolute, leaves the folder, or is no path.
  """
  if not isinstance(path, str) or not path.strip() or '\0' in path:
    raise Broken('bad_path', f'{what}: wanted a relative path, got {path!r}')
  parts = pathlib.PurePosixPath(path.replace('\\', '/')).parts
  if path.startswith(('/', '\\', '~')) or re.match('[A-Za-z]:', path):
    raise Broken('path_escape', f'{what}: {path!r} is absolute')
  if '..' in parts:
    raise Broken('path_escape', f"{what}: {path!r} has a '..'")
  parts = [p for p in parts if p != '.']
  if not parts:
    raise Broken('bad_path', f'{what}: wanted a file name, got {path!r}')
  return '/'.join(parts)


def read_tree(
  folder: pathlib.Path,
  *,
  max_bytes: int = MAX_BYTES,
  taken: int = 0,
  skip: set[str] = _SKIP,
) -> dict[str, bytes]:
  """All files below a folder, by relative path.

  Links to files inside are read; a link that leaves the folder is an error.
  Nothing is read of a file that does not fit.

  Args:
    folder: where they are.
    max_bytes: of the whole workspace.
    taken: how much of that other files have.
    skip: names that are left out.
  """
  root = folder.resolve()
  found: dict[str, bytes] = {}
  total = taken
  for base, folders, names in os.walk(folder, followlinks=False):
    folders[:] = sorted(f for f in folders if f not in skip)
    for name in [*sorted(names), *folders]:
      path = pathlib.Path(base, name)
      relative = path.relative_to(folder).as_posix()
      if name in skip:
        continue
      if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise Broken('path_escape', f'{relative} is a link out of the folder')
      if not path.is_file():
        continue
      total += path.stat().st_size
      if total > max_bytes or len(found) >= MAX_FILES:
        raise too_large(max_bytes)
      found[relative] = path.read_bytes()
  return found


def read_file(path: pathlib.Path, *, max_bytes: int, taken: int) -> bytes:
  """One file of a workspace; arguments as in `read_tree`."""
  if taken + path.stat().st_size > max_bytes:
    raise too_large(max_bytes)
  return path.read_bytes()


def too_large(max_bytes: int) -> Broken:
  """The error of a workspace over its limit."""
  return Broken(
    'too_large',
    f'wanted at most {max_bytes >> 20} MiB and {MAX_FILES} files; '
    'give --max-mib to load it all the same',
  )


def executables(folder: pathlib.Path) -> list[str]:
  """Relative paths of files that may be executed."""
  return sorted(
    p.relative_to(folder).as_posix()
    for p in folder.rglob('*')
    if p.is_file() and os.access(p, os.X_OK)
  )


def check_mounts(
  mounts: Any, folder: pathlib.Path, options: Mapping[str, Any]
) -> None:
  """A task may mount what lies in its folder or in the user's `corpus` only.

  A set of somebody else's must not show an agent the user's files.

  Args:
    mounts: `readonly` of the metadata, as it was read.
    folder: of the task or the set.
    options: of the loader.

  Raises:
    Broken: it is no list of pairs, or shows something else.
  """
  if mounts is None:
    return
  if not isinstance(mounts, list) or not all(
    isinstance(m, list) and len(m) == 2 and all(isinstance(x, str) for x in m)
    for m in mounts
  ):
    raise Broken(
      'bad_field', 'readonly: wanted [[host path, inside path], ...]'
    )
  roots = [folder.resolve()]
  if options.get('corpus'):
    roots.append(pathlib.Path(options['corpus']).expanduser().resolve())
  for host, _ in mounts:
    place = pathlib.Path(host).expanduser().resolve()
    if not any(place.is_relative_to(root) for root in roots):
      raise Broken(
        'path_escape',
        f'readonly: {host} is not below the task; give it as --corpus to allow',
      )


def need(path: pathlib.Path) -> pathlib.Path:
  """The path, which must be a file."""
  if not path.is_file():
    raise Broken('missing_file', f'there is no {path.name}')
  return path


def text_of(path: pathlib.Path) -> str:
  """UTF-8 text of a file."""
  try:
    return need(path).read_text(encoding='utf-8-sig')
  except UnicodeDecodeError as error:
    raise Broken('not_utf8', f'{path.name}: {error}') from None


def json_of(path: pathlib.Path) -> Any:
  """JSON value of a file."""
  return json_text(text_of(path), path.name)


def json_text(text: str, what: str) -> Any:
  """JSON value of a text."""
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    raise Broken('bad_json', f'{what}: {error}') from None


def toml_of(path: pathlib.Path) -> dict[str, Any]:
  """TOML table of a file."""
  try:
    return tomllib.loads(text_of(path))
  except tomllib.TOMLDecodeError as error:
    raise Broken('bad_toml', f'{path.name}: {error}') from None


def yaml_text(text: str, what: str) -> Any:
  """YAML value of a text."""
  import yaml

  try:
    return yaml.safe_load(text)
  except (yaml.YAMLError, ValueError, RecursionError) as error:
    line = ' '.join(str(error).split())
    raise Broken('bad_yaml', f'{what}: {line}') from None


def csv_rows(path: pathlib.Path) -> Iterator[dict[str, str] | Broken]:
  """Rows of a CSV file with a header, in order.

  Yields:
    A row by column, or `Broken` for one that does not fit the header; what
    cannot be split into fields ends the file.
  """
  reader = csv.DictReader(io.StringIO(text_of(path), newline=''), strict=True)
  number = 0
  while True:
    number += 1
    try:
      row = next(reader, None)
    except csv.Error as error:
      yield Broken('bad_csv', f'{path.name}: row {number}: {error}')
      return
    if row is None:
      return
    if None in row or None in row.values():
      yield Broken(
        'bad_csv', f'{path.name}: row {number} does not fit the header'
      )
    else:
      yield row


def string(table: dict[str, Any], key: str, what: str) -> str:
  """A non-empty text under a key."""
  value = table.get(key)
  if not isinstance(value, str) or not value.strip():
    raise Broken('bad_field', f'{what}: wanted text {key!r}, got {value!r:.60}')
  return value


def seconds(value: Any, what: str, default: float) -> float:
  """A positive number of seconds, or the default for None."""
  if value is None:
    return default
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise Broken('bad_field', f'{what}: wanted seconds, got {value!r:.60}')
  if not 0 < value < 1e6:
    raise Broken('bad_field', f'{what}: wanted seconds > 0, got {value!r}')
  return float(value)
