"""Undoes one sandbox from its record, in a process of its own.

  python -m clawjax.sandbox.undo /tmp/clawjax-0/run-.../sbx-....sandbox

For a destroy that hangs in its own process: the record says all that may exist,
and undoing it is safe to repeat.
"""

import json
import pathlib
import sys

from clawjax.sandbox.bwrap import BwrapBackend


def main(argv: list[str]) -> int:
  """Undoes the record named on the command line; the exit status."""
  if len(argv) != 2:
    print('wanted the path of one .sandbox record', file=sys.stderr)
    return 2
  record = pathlib.Path(argv[1])
  try:
    facts = json.loads(record.read_text())
    # <state root>/<run>/<record>
    BwrapBackend(root=record.parents[1]).undo(record, facts)
  except FileNotFoundError:
    return 0  # undone by somebody else
  except (OSError, ValueError) as e:
    print(f'undoing {record}: {e}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
