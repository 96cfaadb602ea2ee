"""Where numbers go: metrics.jsonl first, TensorBoard beside it.

A metric has a flat name, `section/name`, and belongs to a step. One line of
metrics.jsonl is everything logged for one step, written and flushed at once, so
a killed run leaves only whole lines (a torn last line is cut at the next start).
A resumed run first drops the lines after the step it resumes from: what stands
in the file is one history. Values that are not finite are written as null and
counted in `log/non_finite`: unknown is not zero.
"""

from __future__ import annotations

import json
import math
import pathlib
import time
from collections.abc import Mapping
from typing import Any

FILE = 'metrics.jsonl'


class Writer:
  """Writes metrics of one run folder."""

  def __init__(
    self,
    run_dir: pathlib.Path,
    *,
    resume_step: int | None = None,
    tensorboard: bool = True,
  ):
    """Opens the folder's metrics.

    Args:
      run_dir: the run folder; must exist.
      resume_step: keep only lines of steps up to this one; None: start anew.
      tensorboard: also write TensorBoard events.
    """
    self._path = run_dir / FILE
    keep = read(run_dir) if resume_step is not None else []
    keep = [row for row in keep if row['step'] <= (resume_step or 0)]
    temporary = self._path.with_suffix('.tmp')
    temporary.write_text(''.join(_line(row) for row in keep))
    temporary.replace(self._path)
    self._file = self._path.open('a')
    self._board = None
    if tensorboard:
      import tensorboardX

      purge = None if resume_step is None else resume_step + 1
      self._board = tensorboardX.SummaryWriter(
        str(run_dir / 'tensorboard'), purge_step=purge, write_to_disk=True
      )

  def write(self, step: int, values: Mapping[str, float]) -> dict[str, Any]:
    """Logs `values` for `step`; returns the row as written."""
    row: dict[str, Any] = {'step': int(step), 'wall_time': time.time()}
    bad = 0
    for name, value in values.items():
      number = float(value)
      finite = math.isfinite(number)
      bad += not finite
      row[name] = number if finite else None
      if self._board is not None and finite:
        self._board.add_scalar(name, number, step)
    if bad:
      row['log/non_finite'] = bad
    self._file.write(_line(row))
    self._file.flush()
    if self._board is not None:
      self._board.flush()
    return row

  def close(self) -> None:
    """Flushes and closes the files."""
    self._file.close()
    if self._board is not None:
      self._board.close()


def read(run_dir: pathlib.Path) -> list[dict[str, Any]]:
  """Rows of a run folder's metrics; a torn last line is left out."""
  path = run_dir / FILE
  if not path.exists():
    return []
  rows = []
  for line in path.read_text().splitlines():
    try:
      rows.append(json.loads(line))
    except ValueError:
      break
  return rows


def _line(row: Mapping[str, Any]) -> str:
  return json.dumps(row) + '\n'
