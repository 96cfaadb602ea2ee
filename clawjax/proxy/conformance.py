"""python -m clawjax.proxy.conformance --harness NAME[@VERSION]

The driver needs the harness adapters, which the proxy does not know; it lives
in `clawjax.rollout.conformance`, and this starts it with the same arguments.
"""

from __future__ import annotations

import subprocess
import sys


def main() -> int:
  """Runs the driver in a process of its own."""
  command = [sys.executable, '-m', 'clawjax.rollout.conformance']
  return subprocess.call([*command, *sys.argv[1:]])


if __name__ == '__main__':
  sys.exit(main())
