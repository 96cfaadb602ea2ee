"""FLOPs and bytes of a step of Qwen3-30B-A3B at 64K, as compiled for a TPU.

  python tests/bench/tree_step_tpu.py --json [--target 30b-v5p] [--hlo FILE]

Needs `jax[tpu]` (its compiler, not a TPU), or with `--hlo` only the compiled text
of the gradient that `tpu_compile.py --hlo` kept. One gradient is of 4 rows of
65,536 slots with 131,072 trained tokens; its costs (hlo_program.py) are cut into
  kernels  attention, as many as there are live pairs of blocks (512)
  head     the loops over chunks of trained tokens
  rest     layers, embedding, exchanges: as many as there are slots
so that a way of training costs

  slots / 262144 x rest + terms / 131072 x head + live pairs / causal x kernels

Ways and sets are those of tree_step.py at the sizes of a 64K context: 'star'
(24k shared, 8 x 5k, against every branch) and 'agent' (8k, 40 calls of 300 tokens
and 1,100 of results, against every call). `ideal` is the ratio of the cost model
of tree_step.py. `sent_ratio` is of the bytes that devices send.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import hlo_program
import numpy as np
import tree_step

from clawjax import trie
from clawjax.kernels.pallas_tree import most_pairs
from clawjax.models.config import Config
from clawjax.types import Call, Sample

ROWS, SLOTS, TERMS, BLOCK = 4, 65536, 32768, 512
MODEL = 'qwen3-30b-a3b'


def call(index, prompt, output):
  n = len(output)
  sample = Sample(output.astype(np.int32), np.zeros(n, np.float32), 'stop')
  return Call(f'c{index}', 'r', index, np.asarray(prompt, np.int32), sample)


def sets():
  """name -> (calls, calls per sequence of the baseline)."""
  rng = np.random.default_rng(0)
  ids = lambda n: rng.integers(0, 150_000, n)  # noqa: E731
  stem = ids(24_576)
  star = [call(i, stem, ids(5_120)) for i in range(8)]
  history, agent = ids(8_192), []
  for turn in range(40):
    agent.append(call(turn, history, ids(300)))
    history = np.concatenate([history, agent[-1].sample.token_ids, ids(1_100)])
  return {'star': star, 'agent': agent}


def needs(tries):
  """Tokens, attention pairs, live pairs of blocks and terms, without padding."""
  total = sum(len(t) for t in tries)
  T = -(-total // BLOCK) * BLOCK
  batch = trie.pack(tries, row_tokens=T, row_buckets=(T,))
  n = T // BLOCK
  last = batch.subtree_end.reshape(n, BLOCK).max(1)
  first = np.arange(0, T, BLOCK)
  live = int(((first <= first[:, None]) & (first[:, None] < last)).sum())
  return {
    'tokens': int(batch.stats['tokens']),
    'pairs': int(batch.stats['pairs']),
    'live_blocks': live,
    'terms': int(batch.stats['terms']),
  }


def text(target: str, file: str | None) -> str:
  """The compiled gradient."""
  if file:
    with gzip.open(file, 'rt') as opened:
      return opened.read()
  import tpu_compile

  return (
    tpu_compile.Programs(tpu_compile.TARGETS[target])
    .lower('gradient')
    .compile()
    .as_text()
  )


def parts(compiled: str, layers: int, filled: float) -> dict[str, np.ndarray]:
  """Part -> (FLOPs, HBM bytes, bytes sent) of a device and one gradient.

  Args:
    compiled: its text.
    layers: of the model.
    filled: see `chips.row`.
  """
  program = hlo_program.Program(compiled)

  def numbers(costs):
    return np.array(
      [
        costs.flops + costs.kernel_flops + filled * costs.grouped_flops,
        costs.bytes + costs.kernel_bytes + filled * costs.grouped_bytes,
        sum(costs.sent.values()),
      ]
    )

  whole = program.costs()
  kernels = np.array([whole.kernel_flops, whole.kernel_bytes, 0.0])
  head = [numbers(c) for n, c in program.loops() if n != layers]
  assert len(head) == 2, 'wanted two loops over chunks, forward and backward'
  return {
    'kernels': kernels,
    'head': sum(head),
    'rest': numbers(whole) - kernels - sum(head),
  }


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true', help='(always)')
  parser.add_argument('--target', default='30b-v5p')
  parser.add_argument('--hlo', help='a kept text of that gradient (.gz)')
  args = parser.parse_args()
  config = Config.preset(MODEL)
  # Experts are spread over 4 devices, see `tpu_compile.TARGETS`.
  part = parts(text(args.target, args.hlo), config.layers, 1 / 4)

  def cost(need):
    return (
      need['tokens'] / (ROWS * SLOTS) * part['rest']
      + need['terms'] / (ROWS * TERMS) * part['head']
      + need['live_blocks'] / most_pairs(ROWS, SLOTS, BLOCK) * part['kernels']
    )

  def model_flops(need):
    return tree_step.model_flops(
      config, need['tokens'], need['pairs'], need['terms']
    )

  report = {
    'target': args.target,
    'parts_flops_bytes_sent': {k: v.tolist() for k, v in part.items()},
  }
  for name, calls in sets().items():
    tree = needs([trie.build(calls)])
    apart = needs([trie.build([c]) for c in calls])
    flops, size, sent = cost(apart) / cost(tree)
    ideal = model_flops(apart) / model_flops(tree)
    report[name] = {
      'baseline': 'every branch' if name == 'star' else 'every call',
      'tokens': [tree['tokens'], apart['tokens']],
      'live_share': tree['live_blocks'] * BLOCK**2 / tree['pairs'],
      'flops_ratio': float(flops),
      'bytes_ratio': float(size),
      'sent_ratio': float(sent),
      'ideal': ideal,
      'share_of_ideal': float(flops) / ideal,
    }
  print(json.dumps(report))


if __name__ == '__main__':
  main()
