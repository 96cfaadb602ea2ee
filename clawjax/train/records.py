"""Rollouts on disk, one readable JSON file each.

`rollouts/<phase>/<step>/<rollout id>.json` holds a whole `Rollout`: every call
with its exact ids and log-probs, and the reward with its parts. A file is
written under another name and renamed, so a killed run leaves only whole ones;
a resumed run takes the complete groups of its unfinished step from here instead
of running them again.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence

from clawjax import types

_UNSAFE = re.compile(r'[^A-Za-z0-9._-]+')


def folder(run_dir: pathlib.Path, phase: str, step: int) -> pathlib.Path:
  """Where the rollouts of one phase ('train', 'eval') and step live."""
  return run_dir / 'rollouts' / phase / f'{step:05d}'


def file_name(rollout_id: str) -> str:
  """A flat file name for a rollout id, which may hold '/'."""
  return _UNSAFE.sub('_', rollout_id) + '.json'


def save(run_dir: pathlib.Path, phase: str, step: int, rollout: types.Rollout):
  """Writes one rollout, atomically; returns its path."""
  place = folder(run_dir, phase, step)
  place.mkdir(parents=True, exist_ok=True)
  path = place / file_name(rollout.rollout_id)
  temporary = path.with_suffix('.tmp')
  temporary.write_text(types.dumps(rollout) + '\n')
  temporary.replace(path)
  return path


def load(run_dir: pathlib.Path, phase: str, step: int) -> list[types.Rollout]:
  """All whole rollouts of a phase and step, by id; torn files are left out."""
  rollouts = []
  for path in sorted(folder(run_dir, phase, step).glob('*.json')):
    try:
      rollouts.append(types.rollout_from_json(json.loads(path.read_text())))
    except (ValueError, TypeError, KeyError):
      continue
  return sorted(rollouts, key=lambda r: r.rollout_id)


def complete_groups(
  rollouts: Sequence[types.Rollout], sizes: dict[tuple[str, str], int]
) -> dict[tuple[str, str], list[types.Rollout]]:
  """Groups of which every member is on disk and valid.

  Args:
    rollouts: what `load` gave.
    sizes: group key -> members wanted.
  """
  groups: dict[tuple[str, str], list[types.Rollout]] = {}
  for rollout in rollouts:
    if rollout.valid and rollout.group in sizes:
      groups.setdefault(rollout.group, []).append(rollout)
  return {
    key: sorted(members, key=lambda r: r.index)
    for key, members in groups.items()
    if len(members) == sizes[key]
    and {m.index for m in members} == set(range(sizes[key]))
  }
