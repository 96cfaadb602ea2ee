"""A full training step on the same calls: as a tree, per branch, per call.

  python tests/bench/tree_step.py --json [--full] [--only NAME]

Three ways to train the same sampled tokens with the same loss, optimiser and
attention kernel (`Learner.update`: forward, backward, AdamW):

  tree        calls merged into a trie, each slot once
  branch      every root-to-leaf path a sequence of its own
  call        every call a sequence of its own

In all three the sequences stand end to end in one row without padding (the best
variable-length packing; blocks of other sequences are skipped). Sets, with the
shapes of trees that occur: 'star' (8 answers to one prompt), 'two_level' (a fork
in the history, then 4 answers each), 'agent' (one append-only agent; its only
branch is the tree itself, so it is compared per call).

`ideal` is the ratio of FLOPs by the cost model

  F = 6 P_active T + 3.5 x 4 L H C S + 6 D V E

with T tokens, S attention pairs, E trained tokens (the head is not sped up).
`share_of_ideal` = CPU-time ratio / ideal. CPU time is the least of `repeats` runs
after compilation. Losses of the three ways are compared as well. The default
sizes are 1/8 of the full ones, where fixed costs (the optimiser, partial blocks)
weigh more; `--full` takes minutes. `ideal_30b` is the ideal ratio of
Qwen3-30B-A3B at the full size of the set.
"""

from __future__ import annotations

import argparse
import json
import time

import jax
import numpy as np

from clawjax import trie
from clawjax.models import qwen3
from clawjax.train import state, step
from clawjax.types import Call, Sample

MODEL = qwen3.Config.tiny(
  vocab=1024, width=256, layers=4, heads=8, kv_heads=4, head_size=32,
  mlp_width=1024, experts=0,
)  # fmt: skip
BLOCK = 128


def call(rng, rollout, index, prompt, count):
  out = rng.integers(0, MODEL.vocab, count).astype(np.int32)
  sample = Sample(out, np.full(count, -7.0, np.float32), 'stop')
  return Call(f'c{index}', rollout, index, np.array(prompt, np.int32), sample)


def sets(scale: float):
  """name -> calls per branch; a branch's last call is its leaf."""
  rng = np.random.default_rng(0)

  def ids(n):
    return rng.integers(0, MODEL.vocab, int(n * scale)).tolist()

  answer = int(1024 * scale)
  stem = ids(3072)
  star = [[call(rng, f'r{i}', 0, stem, answer)] for i in range(8)]
  stem = ids(2048)
  middle = [stem + ids(1024) for _ in range(2)]
  two_level = [
    [call(rng, f'r{i}', 0, middle[i // 4], answer)] for i in range(8)
  ]
  history, agent = ids(2048), []
  for turn in range(8):
    agent.append(call(rng, 'r', turn, history, int(128 * scale)))
    history = history + agent[-1].sample.token_ids.tolist() + ids(256)
  return {'star': star, 'two_level': two_level, 'agent': [agent]}


def batches(branches):
  """The three ways as batches of one row each."""
  calls = [c for branch in branches for c in branch]
  ways = {
    'tree': [trie.build(calls, group='all')],
    'branch': [trie.build(branch) for branch in branches],
    'call': [trie.build([c]) for c in calls],
  }
  out = {}
  for name, tries in ways.items():
    longest = sum(len(t) for t in tries)
    T = -(-longest // BLOCK) * BLOCK
    batch = trie.pack(tries, row_tokens=T, row_buckets=(T,))
    assert batch.stats['rows'] == 1
    weight = batch.mask / batch.mask.sum()
    out[name] = batch.replace(
      weight=weight.astype(np.float32),
      old_logprob=batch.rollout_logprob,
      advantage=np.where(batch.mask, 1.0, 0.0).astype(np.float32),
    )
  return out


def model_flops(model, tokens, pairs, terms) -> float:
  """The cost model of the head of this file."""
  hidden = model.heads * model.head_size
  kv = model.kv_heads * model.head_size
  used = model.experts_per_token if model.experts else 1
  wide = model.expert_width if model.experts else model.mlp_width
  active = model.layers * (
    model.width * (2 * hidden + 2 * kv) + used * 3 * model.width * wide
  )
  return (
    6 * active * tokens
    + 3.5 * 4 * model.layers * hidden * pairs
    + 6 * model.width * model.vocab * terms
  )


def flops(batch, model, scale=1.0) -> float:
  """Of a batch, as if it were `scale` times as long."""
  return model_flops(
    model,
    batch.stats['tokens'] * scale,
    batch.stats['pairs'] * scale**2,
    batch.stats['terms'] * scale,
  )


def measure(name, branches, scale, repeats):
  big = qwen3.Config.preset('qwen3-30b-a3b')
  learner = step.Learner(
    MODEL,
    state.make_optimizer(state.OptimConfig(learning_rate=1e-4)),
    forward=step.ForwardConfig(attention='chunked'),
  )
  params = qwen3.init(MODEL, jax.random.key(0))
  seconds, losses, counts, work, work_big = {}, {}, {}, {}, {}
  for way, batch in batches(branches).items():
    fresh = state.init(
      jax.tree.map(lambda x: x.copy(), params), learner.optimizer
    )
    now, numbers = learner.update(fresh, batch)  # compiles
    losses[way] = numbers['loss']
    best = float('inf')
    for _ in range(repeats):
      start = time.process_time()
      now, _ = learner.update(now, batch)
      jax.block_until_ready(now.params)
      best = min(best, time.process_time() - start)
    seconds[way] = best
    counts[way] = int(batch.stats['tokens'])
    work[way] = flops(batch, MODEL)
    work_big[way] = flops(batch, big, 1 / scale)
  out = {
    'tokens': counts,
    'terms': int(batch.stats['terms']),
    'cpu_s': seconds,
    'loss_gap': max(losses.values()) - min(losses.values()),
  }
  for way in ('branch', 'call'):
    if work[way] == work['tree']:
      continue  # the tree is a chain, as the agent's only branch
    ratio, ideal = seconds[way] / seconds['tree'], work[way] / work['tree']
    out[f'against_{way}'] = {
      'cpu_time_ratio': ratio,
      'token_ratio': counts[way] / counts['tree'],
      'ideal': ideal,
      'share_of_ideal': ratio / ideal,
      'ideal_30b': work_big[way] / work_big['tree'],
    }
  return out


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--full', action='store_true')
  parser.add_argument('--only', default='')
  parser.add_argument('--repeats', type=int, default=3)
  options = parser.parse_args()
  scale = 1.0 if options.full else 1 / 8
  report = {
    name: measure(name, branches, scale, options.repeats)
    for name, branches in sets(scale).items()
    if options.only in ('', name)
  }
  print(json.dumps({'scale': scale, **report}))


if __name__ == '__main__':
  main()
