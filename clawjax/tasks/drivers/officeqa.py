"""Scores a final answer with the user's own `reward.py` of OfficeQA.

`reward.py`, `answer.json` and `events.json` lie beside this file. A script that
cannot be imported is an error of ours; a score it gives is taken as it is.

Usage: python3 -I officeqa.py
"""

import importlib.util
import json
import os
import sys


def final_text(events):
  for event in reversed(events):
    message = event.get('message', {})
    if message.get('role') == 'assistant':
      text = ''.join(b.get('text', '') for b in message.get('content', []))
      if text.strip():
        return text
  return ''


def main():
  here = os.path.dirname(os.path.abspath(__file__))
  path = os.path.join(here, 'reward.py')
  spec = importlib.util.spec_from_file_location('reward', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  with open(os.path.join(here, 'answer.json'), encoding='utf-8') as stream:
    wanted = json.load(stream)
  with open(os.path.join(here, 'events.json'), encoding='utf-8') as stream:
    events = json.load(stream)
  stdout, sys.stdout = sys.stdout, sys.stderr
  score = module.score_answer(
    wanted['answer'], final_text(events), tolerance=wanted['tolerance']
  )
  sys.stdout = stdout
  print(json.dumps({'reward': float(score)}))


if __name__ == '__main__':
  main()
