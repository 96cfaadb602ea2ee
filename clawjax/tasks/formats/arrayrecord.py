"""Tasks of an ArrayRecord data set, as `clawjax.tasks.dataset` writes it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax import errors, types
from clawjax.tasks import dataset
from clawjax.tasks.formats import report, tree


def candidates(
  path: pathlib.Path, options: Mapping[str, Any]
) -> Iterator[report.Candidate]:
  """One candidate a record."""
  source = dataset.open(path)
  if source.kind != 'tasks':
    raise errors.TaskError(f'{path}: wanted tasks, got {source.kind}')
  for number in range(len(source)):

    def read(warn: report.Warn, number: int = number) -> types.Task:
      task = source[number]
      tree.check_mounts(task.metadata.get('readonly'), path, options)
      seconds = task.time_limit_s * float(options['timeout_factor'])
      return dataclasses.replace(task, time_limit_s=seconds)

    yield f'record {number}', read
