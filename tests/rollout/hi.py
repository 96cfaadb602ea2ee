"""The smallest task, for tests and benchmarks: write 'hi' into out.txt."""

from clawjax import types

CHECK = b"""
import json, pathlib, sys
path = pathlib.Path(sys.argv[1]) / 'out.txt'
good = path.is_file() and path.read_text() == 'hi'
print(json.dumps({'reward': float(good), 'checks': {'out': float(good)}}))
"""


def make_task(*turns: str, time_limit_s: float = 170) -> types.Task:
  """The task, in one user message or in those given."""
  return types.Task(
    id='test/hi',
    turns=turns or ('Write hi into out.txt.',),
    files={'data/in.txt': b'x'},
    verifier=types.Verifier(
      files={'check.py': CHECK},
      command=('python3', '/verifier/check.py', '/workspace'),
    ),
    time_limit_s=time_limit_s,
  )
