"""Runs `grade(transcript, workspace_path)` of a markdown task.

`grader.py` and `events.json` (OpenClaw events) lie beside this file. The values
of the returned object that are numbers are the checks, their mean the reward;
values of another type are left out and named under `notes`. No number at all
is an error. What the grader prints goes to stderr.

Usage: python3 -I grade.py WORKSPACE
"""

import contextlib
import json
import os
import sys


def main():
  here = os.path.dirname(os.path.abspath(__file__))
  with open(os.path.join(here, 'grader.py'), encoding='utf-8') as stream:
    code = compile(stream.read(), 'grader.py', 'exec')
  events = []
  if os.path.exists(os.path.join(here, 'events.json')):
    with open(os.path.join(here, 'events.json'), encoding='utf-8') as stream:
      events = json.load(stream)
  names = {'__name__': 'grader'}
  with contextlib.redirect_stdout(sys.stderr):
    exec(code, names)
    if not callable(names.get('grade')):
      sys.exit('the code block defines no grade(transcript, workspace_path)')
    values = names['grade'](events, sys.argv[1])
  if not isinstance(values, dict):
    sys.exit(f'grade() gave {type(values).__name__}, wanted a dict')
  checks = {
    str(k): float(v)
    for k, v in values.items()
    if isinstance(v, (bool, int, float))
  }
  if not checks:
    sys.exit('grade() gave no number')
  other = sorted(str(k) for k in values if str(k) not in checks)
  notes = f'not numbers, left out: {", ".join(other)}' if other else ''
  print(json.dumps({'checks': checks, 'notes': notes}))


if __name__ == '__main__':
  main()
