"""Runs a ClawGym grader on a workspace and prints one JSON line.

`reward/` (beside this file) is copied into the workspace, in place of whatever
is there, and its `check.py` is given the workspace as argument: it prints an
object of name -> value. A `reward.sh` that does more than average those values
is run itself, with our workspace in place of the path it was written for; its
last line is one float. What goes wrong ends with a status that is not 0.

Usage: python3 -I clawgym.py WORKSPACE check|script
"""

import json
import os
import shutil
import subprocess
import sys

THEIR_WORKSPACE = '/root/.openclaw/workspace'


def load(path, default):
  try:
    with open(path, encoding='utf-8') as stream:
      return json.load(stream)
  except FileNotFoundError:
    return default


def final_text(events):
  for event in reversed(events):
    message = event.get('message', {})
    if message.get('role') != 'assistant':
      continue
    text = ''.join(b.get('text', '') for b in message.get('content', []))
    if text.strip():
      return text
  return ''


def main():
  root, how = sys.argv[1], sys.argv[2]
  here = os.path.dirname(os.path.abspath(__file__))
  target = os.path.join(root, 'reward')
  if os.path.islink(target) or os.path.isfile(target):
    os.unlink(target)
  shutil.rmtree(target, ignore_errors=True)
  shutil.copytree(os.path.join(here, 'reward'), target)
  events = load(os.path.join(here, 'events.json'), [])
  payload = os.path.join(root, '.openclaw_reward_payload.json')
  if os.path.lexists(payload):
    os.unlink(payload)
  with open(payload, 'w', encoding='utf-8') as stream:
    json.dump(
      {
        'final_message': final_text(events),
        'metadata': load(os.path.join(here, 'metadata.json'), {}),
        'transcript': events,
      },
      stream,
    )
  env = {**os.environ, 'OPENCLAW_REWARD_PAYLOAD': payload}
  if how == 'script':
    script = os.path.join(target, 'reward.sh')
    with open(script, encoding='utf-8') as stream:
      text = stream.read().replace(THEIR_WORKSPACE, root)
    with open(script, 'w', encoding='utf-8') as stream:
      stream.write(text)
    argv = ['bash', 'reward/reward.sh']
  else:
    argv = ['python3', os.path.join('reward', 'check.py'), root]
  done = subprocess.run(argv, cwd=root, env=env, stdout=subprocess.PIPE)
  out = done.stdout.decode('utf-8', 'replace')
  if done.returncode:
    sys.exit(f'{argv[-2]} {argv[-1]} ended with status {done.returncode}')
  if how == 'script':
    rows = [line for line in out.splitlines() if line.strip()]
    if not rows:
      sys.exit('reward.sh printed nothing')
    print(json.dumps({'reward': float(rows[-1])}))
    return
  values = json.loads(out.strip())
  if not isinstance(values, dict) or not values:
    sys.exit('check.py printed no object of values')
  print(json.dumps({'checks': values}))


if __name__ == '__main__':
  main()
