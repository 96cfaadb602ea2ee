"""FLOPs and bytes of a step of Qwen3-30B-A3B at 64K, as compiled for a TPU.

  python tests/bench/tree_step_tpu.py --json [--chip v5p:2x2x1]

Needs `jax[tpu]` (its compiler, not a TPU). The gradient of a row of 65,536 slots
and 32,768 trained tokens is compiled with one and with two layers, and with the
attention kernel's estimate at no and at all causal blocks live (the estimate is
all that XLA knows of a kernel). A program's cost is linear in both, so

  cost(way) = tokens / 65536 x (rest + L x layer) + live pairs x (L x pair)

for as many rows and live pairs of blocks (512) as each way of training needs.
Ways and sets are those of tree_step.py at the sizes of a 64K context: 'star'
(24k shared, 8 x 5k, against every branch) and 'agent' (8k, 40 calls of 300 tokens
and 1,100 of results, against every call). `ideal` is the ratio of the cost model
of tree_step.py. The head is computed for trained tokens alone, equal in all ways:
its part of the row is scaled by trained tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5p-8')
os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from clawjax import trie
from clawjax.kernels.pallas_tree import most_pairs, pallas_attention
from clawjax.losses.logprobs import term_logprobs
from clawjax.models import qwen3
from clawjax.types import Call, Sample

SLOTS, TERMS, BLOCK = 65536, 32768, 512
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


def program(chip: str, layers: int, live: float, terms: int):
  """(flops, bytes) of the gradient of one row on one device."""
  described = topologies.get_topology_desc(platform='tpu', topology_name=chip)
  mesh = Mesh(np.array(described.devices)[:1], ('x',))
  place = NamedSharding(mesh, PartitionSpec())
  config = qwen3.Config.preset(
    MODEL, layers=layers, scan_layers=False, expert_impl='ragged'
  )

  def loss(params, rows):
    def attend(state, q, k, v):
      out = pallas_attention(
        q,
        k,
        v,
        rows['subtree_end'],
        scale=config.head_size**-0.5,
        block=BLOCK,
        live_fraction=live,
      )
      return out, state

    hidden, _, _ = qwen3.apply(
      params, config, rows['tokens'], rows['depth'], attend=attend
    )
    logp, _ = term_logprobs(
      hidden,
      qwen3.unembed(params, config).astype(hidden.dtype),
      rows['tokens'],
      rows['parent'],
      rows['term_slot'],
      # One chunk: the body of a loop would be counted once.
      chunk=terms,
    )
    return (logp * rows['weight']).sum()

  def shape(size, dtype):
    return jax.ShapeDtypeStruct((1, size), dtype, sharding=place)

  rows = {
    name: shape(SLOTS, jnp.int32)
    for name in ('tokens', 'depth', 'parent', 'subtree_end')
  }
  rows |= {
    'term_slot': shape(terms, jnp.int32),
    'weight': shape(terms, jnp.float32),
  }
  params = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
    qwen3.abstract(config),
  )
  cost = jax.jit(jax.grad(loss)).lower(params, rows).compile().cost_analysis()
  return np.array([cost['flops'], cost['bytes accessed']])


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--chip', default='v5p:2x2x1')
  chip = parser.parse_args().chip
  config = qwen3.Config.preset(MODEL)
  L = config.layers
  one = program(chip, 1, 0.0, TERMS)
  two = program(chip, 2, 0.0, TERMS)
  attended = program(chip, 2, 1.0, TERMS)
  half = program(chip, 1, 0.0, TERMS // 2)
  layer, head = two - one, (one - half) * 2  # of a row; of TERMS terms
  pair = (attended - two) / 2 / most_pairs(1, SLOTS, BLOCK)
  rest = one - layer - head

  def cost(need):
    rows = need['tokens'] / SLOTS
    return (
      rows * (rest + L * layer)
      + need['terms'] / TERMS * head
      + need['live_blocks'] * L * pair
    )

  sys.path.insert(0, str(pathlib.Path(__file__).parent))
  import tree_step

  report = {}
  for name, calls in sets().items():
    tree = needs([trie.build(calls)])
    apart = needs([trie.build([c]) for c in calls])
    flops, size = cost(apart) / cost(tree)

    def model_flops(need):
      return tree_step.model_flops(
        config, need['tokens'], need['pairs'], need['terms']
      )

    ideal = model_flops(apart) / model_flops(tree)
    report[name] = {
      'baseline': 'every branch' if name == 'star' else 'every call',
      'tokens': [tree['tokens'], apart['tokens']],
      'live_share': tree['live_blocks'] * BLOCK**2 / tree['pairs'],
      'flops_ratio': float(flops),
      'bytes_ratio': float(size),
      'ideal': ideal,
      'share_of_ideal': float(flops) / ideal,
    }
  print(
    json.dumps(
      {
        'chip': chip,
        'layer_flops_per_row': float(layer[0]),
        'pair_flops': float(pair[0]),
        **report,
      }
    )
  )


if __name__ == '__main__':
  main()
