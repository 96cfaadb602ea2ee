"""Reads a run folder for its report, whatever is missing from it.

  config.json                       the resolved config
  metrics.jsonl                     one row per step
  eval/<when>.json                  trials, e.g. `before` and `after`
  rollouts/<phase>/<step>/*.json    rollouts as `types.dumps` wrote them
  rollouts/train/<step>.advantages.json   rollout id -> advantage

A run that was killed, is still going or never evaluated has only some of these.
What is absent or broken becomes a line in `notes`; nothing here raises for it.
Rollouts can be large, so at most `rollout_bytes` of them are read, spread over
all steps; `rollouts_seen` says how many files there are.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import types
from clawjax.eval import scores


@dataclasses.dataclass(frozen=True)
class Recorded:
  """A rollout with where it was found.

  Attributes:
    phase: 'train', 'eval' or whatever the folder was called.
    step: name of the step's folder, e.g. '0012' or 'after'.
    rollout: the record.
  """

  phase: str
  step: str
  rollout: types.Rollout


@dataclasses.dataclass(frozen=True)
class RunFolder:
  """What could be read of a run.

  Attributes:
    path: the folder.
    config: nested config, empty when there is none.
    rows: metric rows in order of step, each with 'step'.
    trials: 'before', 'after', ... -> trials.
    rollouts: those that were read.
    rollouts_seen: number of rollout files in the folder.
    advantages: rollout id -> advantage, where the trainer stored it.
    notes: what is missing or could not be read, for the reader of the page.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  rows: tuple[Mapping[str, Any], ...]
  trials: Mapping[str, tuple[scores.Trial, ...]]
  rollouts: tuple[Recorded, ...]
  rollouts_seen: int
  advantages: Mapping[str, float]
  notes: tuple[str, ...]

  def series(self, key: str) -> tuple[list[float], list[float]]:
    """Steps and values of a metric where it was logged as a number."""
    points = [
      (float(r['step']), float(r[key]))
      for r in self.rows
      if isinstance(r.get(key), (int, float))
    ]
    return [p[0] for p in points], [p[1] for p in points]

  def metric_names(self) -> list[str]:
    """Names of all metrics with at least one number, in order of logging."""
    names: dict[str, None] = {}
    for row in self.rows:
      for key, value in row.items():
        if key not in ('step', 'wall_time') and isinstance(value, (int, float)):
          names[key] = None
    return list(names)


def read(path: pathlib.Path, *, rollout_bytes: int = 256 * 2**20) -> RunFolder:
  """Reads what there is.

  Args:
    path: the run folder.
    rollout_bytes: most bytes of rollout files to read.
  """
  notes: list[str] = []
  rollouts, seen = _rollouts(path / 'rollouts', rollout_bytes, notes)
  return RunFolder(
    path=path,
    config=_config(path / 'config.json', notes),
    rows=_rows(path / 'metrics.jsonl', notes),
    trials=_trials(path / 'eval', notes),
    rollouts=rollouts,
    rollouts_seen=seen,
    advantages=_advantages(path / 'rollouts' / 'train'),
    notes=tuple(notes),
  )


def find(config: Any, key: str) -> Any:
  """The first value under `key` in a nested mapping, outermost first."""
  queue = collections.deque([config])
  while queue:
    item = queue.popleft()
    if isinstance(item, Mapping):
      if key in item and item[key] not in (None, '', {}):
        return item[key]
      queue.extend(item.values())
  return None


def plain(value: Any) -> str:
  """A config value in a few words: a name, names, or nothing."""
  if isinstance(value, Mapping):
    name = value.get('name') or value.get('path')
    return str(name) if name else ', '.join(map(str, value))
  if isinstance(value, (list, tuple)):
    return ', '.join(map(str, value))
  return '' if value is None else str(value)


# ---- the parts -------------------------------------------------------------


def _config(path: pathlib.Path, notes: list[str]) -> Mapping[str, Any]:
  data = _json(path, notes, 'the config')
  return data if isinstance(data, dict) else {}


def _rows(path: pathlib.Path, notes: list[str]) -> tuple[Mapping, ...]:
  try:
    lines = path.read_text(errors='replace').splitlines()
  except OSError:
    notes.append(f'{path.name} is missing: no curves.')
    return ()
  rows = []
  bad = 0
  for line in filter(str.strip, lines):
    try:
      row = json.loads(line)
      row['step'] = int(row['step'])
      rows.append(row)
    except (ValueError, TypeError, KeyError):
      bad += 1
  if bad:
    notes.append(f'{bad} lines of {path.name} could not be read.')
  rows.sort(key=lambda row: row['step'])
  return tuple(rows)


def _trials(
  folder: pathlib.Path, notes: list[str]
) -> dict[str, tuple[scores.Trial, ...]]:
  found = {}
  for path in sorted(folder.glob('*.json')):
    data = _json(path, notes, f'the evaluation {path.stem!r}')
    if isinstance(data, Mapping):
      data = data.get('trials')
    if not isinstance(data, list):
      if data is not None:
        notes.append(f'eval/{path.name} holds no list of trials.')
      continue
    trials = []
    for item in data:
      try:
        trials.append(scores.trial_from_json(item))
      except (TypeError, AttributeError):
        notes.append(f'eval/{path.name} holds an entry that is no trial.')
        break
    found[path.stem] = tuple(trials)
  for when in ('before', 'after'):
    if when not in found:
      notes.append(f'There is no evaluation {when} training.')
  return found


def _rollouts(
  folder: pathlib.Path, budget: int, notes: list[str]
) -> tuple[tuple[Recorded, ...], int]:
  paths = sorted(folder.glob('*/*/*.json'))
  if not paths:
    notes.append('No rollouts were recorded: no transcripts to show.')
    return (), 0
  chosen = _spread(paths, budget)
  if len(chosen) < len(paths):
    notes.append(
      f'Read {len(chosen)} of {len(paths)} rollouts, spread over all steps.'
    )
  found = []
  bad = 0
  for path in chosen:
    try:
      data = json.loads(path.read_text(errors='replace'))
      for item in data if isinstance(data, list) else [data]:
        found.append(
          Recorded(
            phase=path.parent.parent.name,
            step=path.parent.name,
            rollout=types.rollout_from_json(item),
          )
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
      bad += 1
  if bad:
    notes.append(f'{bad} rollout files could not be read.')
  return tuple(found), len(paths)


def _advantages(folder: pathlib.Path) -> dict[str, float]:
  found: dict[str, float] = {}
  for path in sorted(folder.glob('*.advantages.json')):
    data = _json(path, [], '')
    if isinstance(data, Mapping):
      found |= {
        str(k): float(v) for k, v in data.items() if isinstance(v, (int, float))
      }
  return found


def _spread(
  paths: Sequence[pathlib.Path], budget: int
) -> Sequence[pathlib.Path]:
  """Every n-th path, n as small as the sizes allow."""
  sizes = [path.stat().st_size for path in paths]
  every = 1
  while every < len(paths) and sum(sizes[::every]) > budget:
    every += 1
  return paths[::every]


def _json(path: pathlib.Path, notes: list[str], what: str) -> Any:
  try:
    return json.loads(path.read_text(errors='replace'))
  except FileNotFoundError:
    notes.append(f'{path.name} is missing: {what} is not known.')
  except (OSError, ValueError) as error:
    notes.append(f'{path.name} cannot be read ({error}).')
  return None
