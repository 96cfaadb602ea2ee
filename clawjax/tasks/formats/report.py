"""What came of loading a task set: tasks, and every one that did not load.

A loader raises `Unsupported` for a task that is sound but asks for something
that is not there (the web, a Docker image), `Broken` for one that cannot be
read as its format says. Neither stops the rest; both end up here with a code
that can be counted and a line that says what to do.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from clawjax import errors, types


class Problem(Exception):
  """Why one task did not load.

  Attributes:
    code: short and countable, e.g. 'needs_network'.
  """

  def __init__(self, code: str, text: str):
    super().__init__(text)
    self.code = code


class Unsupported(Problem):
  """The task asks for something that is not offered here."""


class Broken(Problem):
  """The task cannot be read."""


@dataclasses.dataclass(frozen=True)
class Left:
  """A task that did not load: which, why, and in what words."""

  id: str
  code: str
  text: str


@dataclasses.dataclass(frozen=True)
class Provenance:
  """Where a task set was read from.

  Attributes:
    path: as given.
    format: name of the loader.
    commit: of the checkout it lies in, '' outside of git.
    digest: blake2b over the ids and contents of the loaded tasks.
    options: loader options that can change a score.
  """

  path: str
  format: str
  commit: str
  digest: str
  options: Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class LoadReport:
  """A loaded task set.

  Attributes:
    tasks: in the order of the set.
    unsupported: sound tasks that cannot run here.
    faults: tasks that could not be read.
    warnings: what was read in spite of a flaw.
    provenance: where from.
  """

  tasks: tuple[types.Task, ...]
  unsupported: tuple[Left, ...] = ()
  faults: tuple[Left, ...] = ()
  warnings: tuple[Left, ...] = ()
  provenance: Provenance | None = None

  def counts(self) -> str:
    """`n_loaded / n_unsupported / n_error` in words."""
    return (
      f'{len(self.tasks)} loaded, {len(self.unsupported)} unsupported, '
      f'{len(self.faults)} broken'
    )

  def reasons(self) -> dict[str, int]:
    """Number of tasks left out, by code."""
    return dict(Counter(l.code for l in (*self.unsupported, *self.faults)))


Warn = Callable[[str, str], None]
# (name for reports, function that reads the task; it may warn).
Candidate = tuple[str, Callable[[Warn], types.Task]]


def collect(
  candidates: Iterable[Candidate],
  *,
  path: pathlib.Path,
  format: str,
  options: Mapping[str, object],
) -> LoadReport:
  """Reads every candidate, keeping apart what does not load.

  A doubled id is a fault of the later task.
  """
  tasks: dict[str, types.Task] = {}
  unsupported: list[Left] = []
  faults: list[Left] = []
  warnings: list[Left] = []
  for name, read in candidates:

    def warn(code: str, text: str, name: str = name) -> None:
      warnings.append(Left(name, code, text))

    try:
      task = read(warn)
      if task.id in tasks:
        raise Broken('duplicate_id', f'the id {task.id} came before')
      tasks[task.id] = task
    except Unsupported as problem:
      unsupported.append(Left(name, problem.code, str(problem)))
    except Broken as problem:
      faults.append(Left(name, problem.code, str(problem)))
    except (OSError, UnicodeError) as error:
      faults.append(Left(name, 'unreadable', str(error)))
    except Exception as error:  # a shape that no check foresaw
      text = f'{type(error).__name__}: {error}'
      faults.append(Left(name, 'unexpected', text))
  if not tasks and not unsupported and not faults:
    raise errors.TaskError(
      f'{path}: no task of format {format!r} found; give the folder (or file) '
      'that holds the tasks themselves'
    )
  loaded = tuple(tasks.values())
  provenance = Provenance(
    str(path), format, commit_of(path), digest_of(loaded), dict(options)
  )
  return LoadReport(
    loaded, tuple(unsupported), tuple(faults), tuple(warnings), provenance
  )


def digest_of(tasks: Iterable[types.Task]) -> str:
  """A digest over ids, instructions, files and graders."""
  state = hashlib.blake2b(digest_size=16)
  for task in tasks:
    parts: list[bytes] = [task.id.encode(), *(t.encode() for t in task.turns)]
    hidden = task.verifier.files if task.verifier else {}
    for files in (task.files, hidden):
      for name in sorted(files):
        parts += [name.encode(), files[name]]
    for part in parts:
      state.update(len(part).to_bytes(8, 'little') + part)
  return state.hexdigest()


def commit_of(path: pathlib.Path) -> str:
  """Commit of the git checkout that holds `path`, or ''."""
  folder = path if path.is_dir() else path.parent
  try:
    found = subprocess.run(
      ['git', '-C', str(folder), 'rev-parse', 'HEAD'],
      capture_output=True,
      text=True,
      timeout=10,
      check=False,
    )
  except (OSError, subprocess.TimeoutExpired):
    return ''
  return found.stdout.strip() if found.returncode == 0 else ''
