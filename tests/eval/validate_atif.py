"""Validates ATIF files with the `harbor` package's own models.

  python tests/eval/validate_atif.py FILE...

Needs a Python 3.12 or newer with `harbor` installed, nothing of ours; exits
with 1 and the reasons when a file is refused.
"""

import json
import pathlib
import sys

from harbor.models.trajectories import Trajectory

bad = 0
for name in sys.argv[1:]:
  try:
    trajectory = Trajectory.model_validate(
      json.loads(pathlib.Path(name).read_text())
    )
    print(f'{name}: {trajectory.schema_version}, {len(trajectory.steps)} steps')
  except ValueError as error:
    bad += 1
    print(f'{name}: {error}')
sys.exit(1 if bad else 0)
