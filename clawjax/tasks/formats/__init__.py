"""Task sets of others, read as they are from the user's checkout.

  load('path/to/set', 'clawgym')  ->  LoadReport(tasks, unsupported, faults, ...)

A loader is a function from a path and options to candidates; one bad task never
stops the rest. To add a format: write a module with `candidates(path, options)`
and add a line to `FORMATS`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from clawjax import errors, types
from clawjax.tasks.formats.report import (
  Left,
  LoadReport,
  Provenance,
  collect,
)
from clawjax.tasks.formats.tree import MAX_BYTES

__all__ = [
  'FORMATS',
  'Left',
  'LoadReport',
  'Options',
  'Provenance',
  'load',
  'split',
]

# What a task can be allowed to ask for although nothing here offers it.
ALLOW = (
  'needs_network',
  'needs_image_model',
  'needs_mock',
  'multimodal',
  'needs_docker',
  'needs_mcp',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Options of the loaders; all are kept in the provenance.

  Attributes:
    allow: reasons (see `ALLOW`) that do not keep a task out.
    only: ids (with or without `source/`, or file stems) to keep; empty: all.
    max_bytes: largest workspace of a task.
    domains: JSON file {task id: domain}, for sets that do not name them.
    weights_compat: 'strict', or 'upstream' for the published reading of
      misspelt weight keys (QwenClawBench).
    hybrid: 'weighted', or 'penalised': the judge counts 0 below 0.75 of the
      automated part; '' is the format's own.
    tolerance: relative, of OfficeQA's numbers.
    reward_file: OfficeQA's `reward.py`.
    corpus: OfficeQA's folder of documents, mounted read-only.
    reward_key: key of Harbor's reward.json that is the reward.
    timeout_factor: multiplies the time limits that tasks name.
    split: 'main', 'easy' or '' for both (JobBench).
  """

  allow: tuple[str, ...] = ()
  only: tuple[str, ...] = ()
  max_bytes: int = MAX_BYTES
  domains: str = ''
  weights_compat: str = 'strict'
  hybrid: str = ''
  tolerance: float = 0.0
  reward_file: str = ''
  corpus: str = ''
  reward_key: str = 'reward'
  timeout_factor: float = 1.0
  split: str = ''


# name -> (module, what it adds to the options)
FORMATS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
  'native': ('native', {}),
  'clawgym': ('clawgym', {}),
  'pinchbench': ('markdown', {'hybrid': 'weighted'}),
  'qwenclawbench': ('markdown', {'hybrid': 'penalised'}),
  'harbor': ('harbor', {}),
  'officeqa': ('officeqa', {}),
  'jobbench': ('jobbench', {}),
  'arrayrecord': ('arrayrecord', {}),
}


def load(
  path: str | pathlib.Path, format: str, options: Options | None = None
) -> LoadReport:
  """Loads a task set.

  Args:
    path: folder or file of the set; a data set may be at a URL (gs://).
    format: one of `FORMATS`.
    options: see `Options`.

  Raises:
    TaskError: no such path or format, or no task at all in it.
  """
  options = options or Options()
  if '://' in str(path):
    from clawjax.tasks import dataset

    path = dataset.fetch(path)
  path = pathlib.Path(path).expanduser()
  if format not in FORMATS:
    raise errors.TaskError(
      f'no format {format!r}; there are: {", ".join(FORMATS)}'
    )
  if not path.exists():
    raise errors.TaskError(f'{path}: there is no such file or folder')
  unknown = set(options.allow) - set(ALLOW)
  if unknown:
    raise errors.TaskError(
      f'cannot allow {sorted(unknown)}; there are: {", ".join(ALLOW)}'
    )
  module_name, preset = FORMATS[format]
  module = importlib.import_module(f'clawjax.tasks.formats.{module_name}')
  known = dataclasses.asdict(options)
  shown = {
    k: v for k, v in known.items() if v != getattr(Options(), k) and k != 'only'
  }
  known |= {k: v for k, v in preset.items() if known.get(k) in ('', None)}
  known['hybrid'] = known['hybrid'] or 'weighted'
  known['format'] = format
  known['domains'] = _domains(options.domains)
  report = collect(
    module.candidates(path, known), path=path, format=format, options=shown
  )
  return _only(report, options.only) if options.only else report


def split(
  tasks: Sequence[types.Task], part: Literal['train', 'eval'], share: int = 4
) -> tuple[types.Task, ...]:
  """One part of a set; one task of `share` belongs to 'eval', by its id."""

  def held(task: types.Task) -> bool:
    digest = hashlib.blake2b(task.id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, 'little') % share == 0

  return tuple(t for t in tasks if held(t) == (part == 'eval'))


def _domains(path: str) -> dict[str, str]:
  if not path:
    return {}
  try:
    data = json.loads(pathlib.Path(path).expanduser().read_text('utf-8'))
  except (OSError, ValueError) as error:
    raise errors.TaskError(
      f'{path}: wanted JSON {{id: domain}}: {error}'
    ) from None
  if not isinstance(data, dict):
    raise errors.TaskError(f'{path}: wanted JSON {{id: domain}}')
  return {str(k): str(v) for k, v in data.items()}


def _only(report: LoadReport, ids: Iterable[str]) -> LoadReport:
  wanted = set(ids)
  names = {
    t.id: {t.id, t.id.split('/', 1)[1], str(t.metadata.get('stem', t.id))}
    for t in report.tasks
  }
  kept = tuple(t for t in report.tasks if names[t.id] & wanted)
  left = [
    {item.id, item.id.split('/')[-1]}
    for item in (*report.unsupported, *report.faults)
  ]
  missing = wanted.difference(*(names[t.id] for t in kept), *left)
  if missing:
    raise errors.TaskError(
      f'no such tasks in the set: {", ".join(sorted(missing)[:5])}'
    )
  return dataclasses.replace(report, tasks=kept)
