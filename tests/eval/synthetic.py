"""Writes a run folder that looks like a real one, without a model.

Used by the tests of the report, and by hand to look at the page:
  python tests/eval/synthetic.py OUT
Tokens are bytes: the tokenizer here is `latin-1` by another name.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys

import numpy as np

from clawjax import types

FAMILIES = ('copy_value', 'edit_line', 'filter_rows', 'rename', 'sum_column')


class Bytes:
  """One token per byte."""

  def encode(self, text: str) -> list[int]:
    return list(text.encode('utf-8'))

  def decode(self, ids) -> str:
    return bytes(int(i) for i in ids).decode('utf-8', 'replace')


def call(
  rng, rollout_id, index, prompt, answer, *, version=0, sure=0.9, **fields
) -> types.Call:
  """A call whose prompt and answer are given as text."""
  ids = np.array(Bytes().encode(answer), np.int32)
  p = np.clip(rng.beta(8 * sure, 8 * (1 - sure) + 0.05, ids.size), 1e-4, 1)
  return types.Call(
    call_id=f'{rollout_id}#{index}',
    rollout_id=rollout_id,
    index=index,
    prompt_ids=np.array(Bytes().encode(prompt), np.int32),
    sample=types.Sample(
      ids, np.log(p).astype(np.float32), 'stop', policy_version=version
    ),
    text=answer,
    **fields,
  )


def rollout(
  rng, phase, step, task, index, skill, *, forked=False
) -> types.Rollout:
  """Three calls in a line, or with a retry and a subagent beside them."""
  rollout_id = f'{phase}/{step}/{task.replace("/", "-")}/pi/{index}'
  system = (
    '<|im_start|>system\nYou are pi, a coding agent. Tools: bash.\n'
    + 'Keep to the workspace; do not use the network. ' * 30
    + '<|im_end|>\n'
  )
  good = rng.random() < skill
  word = 'amber' if good else 'umber'
  ask = (
    system + '<|im_start|>user\nCopy the value of `colour` in <settings.ini> '
    'to colour.txt & stop.<|im_end|>\n<|im_start|>assistant\n'
  )
  one = (
    '<think>\nlook first\n</think>\n\n<tool_call>\n{"name": "bash", "arguments": '
    '{"command": "cat settings.ini"}}\n</tool_call><|im_end|>'
  )
  seen = (
    '\n<|im_start|>user\n<tool_response>\n[ui]\ncolour = amber\x1b[0m\n'
    '</tool_response><|im_end|>\n<|im_start|>assistant\n'
  )
  two = (
    '<tool_call>\n{"name": "bash", "arguments": {"command": "echo '
    f'{word} > colour.txt"}}}}\n</tool_call><|im_end|>'
  )
  done = (
    '\n<|im_start|>user\n<tool_response>\n</tool_response><|im_end|>\n'
    '<|im_start|>assistant\n'
  )
  version = step if phase == 'train' else 0
  make = lambda i, p, a, **f: call(  # noqa: E731
    rng, rollout_id, i, p, a, version=version, sure=0.55 + 0.4 * skill, **f
  )
  calls = [make(0, ask, one)]
  if forked:
    calls.append(
      make(
        1,
        ask + one + seen,
        'Hm, caf\u00e9 \u2026 <tool_call>{"name": oops',
        malformed=True,
      )
    )
  calls.append(
    make(
      len(calls),
      ask + one + seen,
      two,
      retry_of='' if not forked else f'{rollout_id}#1',
    )
  )
  calls.append(
    make(len(calls), ask + one + seen + two + done, 'Done.<|im_end|>')
  )
  if forked:
    calls.append(
      make(
        len(calls),
        '<|im_start|>system\nWrite a title of 3 words.<|im_end|>\n',
        'Copying a colour<|im_end|>',
        role='side',
      )
    )
  roll = rng.random()
  outcome, reason, reward = (
    'ok',
    '',
    1.0 if good else float(rng.choice([0, 0.5])),
  )
  if roll < 0.02:
    outcome, reason, reward = 'infra_error', 'sandbox create: no space', None
  elif roll < 0.05:
    outcome, reason = 'timeout', 'killed after 60 s'
  elif roll < 0.07:
    outcome, reason = 'harness_error', 'exit status 1 after 3 calls'
  harness = float(rng.gamma(9, 0.3))
  return types.Rollout(
    rollout_id=rollout_id,
    task_id=task,
    harness='pi',
    harness_version='0.50.1',
    index=index,
    calls=tuple(calls),
    reward=reward,
    checks={} if reward is None else {'exists': 1.0, 'value': reward},
    outcome=outcome,
    reason=reason,
    timings={
      'queue': 0.01,
      'create': 0.03,
      'harness': harness,
      'model': harness * 0.6,
      'settle': 0.1,
      'verify': 0.2,
      'destroy': 0.02,
      'total': harness + 0.36,
    },
  )


def write(
  path: pathlib.Path,
  *,
  steps: int = 40,
  tasks: int = 30,
  samples: int = 4,
  seed: int = 0,
) -> pathlib.Path:
  """Writes the folder; the model in it learns from 0.35 to about 0.8."""
  rng = np.random.default_rng(seed)
  (path / 'eval').mkdir(parents=True, exist_ok=True)
  config = {
    'name': 'quickstart',
    'seed': seed,
    'tokenizer': 'tiny',
    'harnesses': {'pi': {'name': '', 'options': {}}},
    'model': {'path': 'builtin:tiny', 'layers': 4, 'experts': 8},
    'train': {'algorithm': 'grpo', 'group_size': 8, 'learning_rate': 3e-4},
    'paths': {'note': '<script>alert(1)</script>'},
  }
  (path / 'config.json').write_text(json.dumps(config, indent=1))
  easy = {f: 0.15 * i for i, f in enumerate(FAMILIES)}
  rows = []
  for when, level in (('before', 0.15), ('after', 0.75)):
    step = 0 if when == 'before' else steps
    trials = []
    for t in range(tasks):
      family = FAMILIES[t % len(FAMILIES)]
      for s in range(samples + 1):
        greedy = s == samples
        skill = min(1, level + easy[family] + 0.05 * greedy)
        item = rollout(rng, 'eval', step, f'synth/{family}-{t}', s, skill)
        if t < 3:
          save(path, 'eval', step, item)
        trials.append(
          {
            'task_id': item.task_id,
            'family': family,
            'sample_index': 0 if greedy else s,
            'reward': item.reward,
            'outcome': item.outcome,
            'greedy': greedy,
          }
        )
    (path / 'eval' / f'{when}.json').write_text(json.dumps(trials))
    rows.append(
      {
        'step': step,
        'wall_time': 1.7e9 + 9.5 * step + (0 if step == 0 else 30),
        'eval/pass1': _mean(trials, False),
        'eval/pass1_greedy': _mean(trials, True),
      }
    )
  for step in range(steps):
    skill = 0.2 + 0.6 / (1 + math.exp(-(step - steps / 3) / (steps / 10)))
    members = [
      rollout(
        rng,
        'train',
        step,
        f'synth/{FAMILIES[g]}-{step}',
        i,
        skill,
        forked=i == 3,
      )
      for g in range(2)
      for i in range(4)
    ]
    for item in members:
      save(path, 'train', step, item)
    known = [r.reward for r in members if r.valid]
    rows.append(
      {
        'step': step,
        'wall_time': 1.7e9 + 20 + 9.5 * step,
        'train/reward_mean': float(np.mean(known)) if known else None,
        'train/entropy': 0.9 * math.exp(-step / steps) + 0.05 * rng.random(),
        'train/kl_k3': 0.002 * step + 0.001 * rng.random(),
        'train/delivered_fraction': 0.9 + 0.08 * rng.random(),
        'train/clipped': 0.02 * rng.random(),
        'train/importance': 1 + 0.002 * rng.normal(),
        'train/mismatch_k3': 1e-4 * rng.random(),
        'pack/call_ratio': 2.6 + 0.4 * rng.random(),
        'pack/padding': 0.1 + 0.05 * rng.random(),
        'time/share_model': 0.45 + 0.02 * rng.random(),
        'time/share_harness': 0.35 + 0.02 * rng.random(),
        'time/share_sandbox': 0.07,
        'time/share_other': 0.13,
        'time/step_s': 9.5,
      }
    )
  rows.sort(key=lambda r: r['step'])
  (path / 'metrics.jsonl').write_text(
    ''.join(json.dumps(r) + '\n' for r in rows)
  )
  return path


def _mean(trials, greedy: bool) -> float:
  known = [
    t['reward']
    for t in trials
    if t['greedy'] == greedy and t['reward'] is not None
  ]
  return float(np.mean(known))


def save(
  path: pathlib.Path, phase: str, step: int, item: types.Rollout
) -> None:
  """One rollout where the trainer would put it."""
  place = path / 'rollouts' / phase / f'{step:05d}'
  place.mkdir(parents=True, exist_ok=True)
  name = item.rollout_id.replace('/', '_') + '.json'
  (place / name).write_text(types.dumps(item))


if __name__ == '__main__':
  from clawjax.eval import gallery, report

  gallery.load_tokenizer = lambda run, notes: Bytes()
  print(report.write_report(write(pathlib.Path(sys.argv[1]))))
