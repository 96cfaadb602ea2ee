"""Speed of build, filter and pack on agent-shaped call sets.

  python tests/bench/trie.py --json

Two sets, with the shapes of public logs: 'tau' (12 calls per rollout, call /
trie tokens near 9.7, four trials per task) and 'long' (a coding agent of 72
calls, call / trie near 41). Speeds are tokens of the trie per CPU second on one
core; `call_tokens_per_s` counts every prompt and answer handed in. Rows have up
to `row_tokens` slots in steps of 1/64 of it. The baseline is a trie that walks
every token of every call in a Python loop, on a part of the same set.
"""

import argparse
import json
import time

import numpy as np

from clawjax import trie
from clawjax.types import Call, Sample


def rollout(rng, name, *, prompt, turns, answer, result):
  """An append-only agent; prompts extend each other exactly."""
  ids, calls = list(prompt), []
  for turn in range(turns):
    out = rng.integers(0, 150_000, rng.integers(*answer)).tolist()
    calls.append(
      Call(
        call_id=f'c{turn}',
        rollout_id=name,
        index=turn,
        prompt_ids=np.array(ids, np.int32),
        sample=Sample(
          np.array(out, np.int32), np.full(len(out), -1.0, np.float32), 'stop'
        ),
        parent=f'c{turn - 1}' if turn else '',
      )
    )
    ids += out + rng.integers(0, 150_000, rng.integers(*result)).tolist()
  return calls


def sets(rng):
  def ids(n):
    return rng.integers(0, 150_000, n).tolist()

  tau = []
  for task in range(12):
    prompt = ids(2500)
    for trial in range(4):
      calls = rollout(
        rng,
        f'{task}/{trial}',
        prompt=prompt,
        turns=12,
        answer=(20, 90),
        result=(20, 130),
      )
      tau.append((task, calls))
  long = [
    (
      0,
      rollout(
        rng,
        'long',
        prompt=ids(15_000),
        turns=72,
        answer=(40, 300),
        result=(50, 900),
      ),
    )
  ]
  return {'tau': (tau, 32_768), 'long': (long, 131_072)}


def naive_build(calls):
  """The baseline: a dict per token."""
  root, nodes = {}, 0
  for c in calls:
    at = root
    for t in [*c.prompt_ids.tolist(), *c.sample.token_ids.tolist()]:
      if t not in at:
        at[t] = {}
        nodes += 1
      at = at[t]
  return nodes


def timed(f, repeats=5):
  """Least CPU seconds of a few runs, and the result."""
  best, out = float('inf'), None
  for _ in range(repeats):
    start = time.process_time()
    out = f()
    best = min(best, time.process_time() - start)
  return best, out


def measure(data, row_tokens):
  build_s, tries = timed(
    lambda: [trie.build(calls, group=group) for group, calls in data]
  )
  filter_s, kept = timed(lambda: [trie.filter(t)[0] for t in tries])
  pack_s, batch = timed(
    lambda: trie.pack(kept, row_tokens=row_tokens, row_steps=64), 2
  )
  nodes = sum(len(t) for t in tries)
  handed = sum(
    len(c.prompt_ids) + len(c.sample.token_ids) for _, cs in data for c in cs
  )
  part = data[0][1][:40]
  naive_s, naive_nodes = timed(lambda: naive_build(part), 1)
  ours_s, ours = timed(lambda: trie.build(part))
  assert naive_nodes == len(ours)
  return {
    'calls': sum(len(cs) for _, cs in data),
    'call_tokens': handed,
    'trie_tokens': nodes,
    'call_over_trie': handed / nodes,
    'build_trie_tokens_per_s': nodes / build_s,
    'build_call_tokens_per_s': handed / build_s,
    'filter_s': filter_s,
    'pack_trie_tokens_per_s': nodes / pack_s,
    'build_speed_over_dict_per_token': naive_s / ours_s,
    'row_tokens': row_tokens,
    'rows': batch.stats['rows'],
    'padding': batch.stats['padding'],
    'repeated_share': batch.stats['repeated'] / batch.stats['tokens'],
    'call_ratio': batch.stats['call_ratio'],
  }


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--json', action='store_true')
  parser.parse_args()
  rng = np.random.default_rng(0)
  report = {k: measure(*v) for k, v in sets(rng).items()}
  print(json.dumps(report))


if __name__ == '__main__':
  main()
