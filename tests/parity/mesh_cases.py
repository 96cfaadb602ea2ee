"""Runs in a process of its own with 8 CPU devices; prints one JSON object.

Packed rows spread over meshes of every kind against each call run alone on one
device (the reference of test_tree_exact.py): loss, log-probs and gradient.
"""

import importlib.util
import json
import os
import pathlib
import sys

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'

import jax
import numpy as np

from clawjax import trie
from clawjax.kernels import context
from clawjax.models import qwen3
from clawjax.models.sharding import Sharding, make_mesh
from clawjax.train import state, step

_spec = importlib.util.spec_from_file_location(
  'exact', pathlib.Path(__file__).with_name('test_tree_exact.py')
)
exact = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(exact)

MESHES = {
  'data': ('dense', {'data': 8}),
  'fsdp': ('moe', {'fsdp': 8}),
  'tensor': ('dense', {'tensor': 2, 'data': 4}),
  'expert': ('moe', {'expert': 4, 'data': 2}),
  'context': ('moe', {'context': 4, 'data': 2}),
  'dealt context': ('dense', {'context': 4, 'data': 2}),
  'all': ('moe', {'fsdp': 2, 'expert': 2, 'context': 2}),
}
BLOCK = 8
# Tokens of the case go to 60; a vocabulary that can be cut.
CONFIGS = {k: c.replace(vocab=62) for k, c in exact.CONFIGS.items()}


class DealtLearner(step.Learner):
  """Slots in dealt order; attention through `kernels.context`."""

  def _trunk(self, params, rows, *, attend, states):
    del attend

    def spread(state, q, k, v):
      out = context.context_attention(
        q, k, v,
        rows['subtree_end'],
        rows['starts'],
        mesh=self.sharding.mesh,
        rows=self.sharding.axes('batch'),
        heads=self.sharding.axes('heads'),
      )  # fmt: skip
      return out, state

    return super()._trunk(params, rows, attend=spread, states=states)


class DealtBatch(trie.TreeBatch):
  """A batch with one more array for the device."""

  def arrays(self):
    order = context.deal(np.asarray(self.subtree_end), parts=4, block=BLOCK)
    return super().arrays() | {'starts': order * BLOCK}


def run(name, case, references):
  kind, sizes = MESHES[name]
  config = CONFIGS[kind]
  params, loss, found, grad = references[kind]
  sharding = Sharding(make_mesh(**sizes))
  rows = sharding.size(*sharding.axes('batch'))
  dealt = name == 'dealt context'
  learner = (DealtLearner if dealt else step.Learner)(
    config,
    state.make_optimizer(state.OptimConfig()),
    forward=step.ForwardConfig(rows=rows, chunk=32, vocab_chunk=25),
    loss=exact.LOSS,
    sharding=sharding,
  )
  batch = exact.fill(
    trie.pack(case.tries, row_tokens=96, row_buckets=(96,)), case
  )
  if dealt:
    order = context.deal(batch.subtree_end, parts=4, block=BLOCK)
    moved = batch.reordered(order)
    batch = DealtBatch(**{k: getattr(moved, k) for k in vars(moved)})
  placed = jax.device_put(params, sharding.of(qwen3.table(config)))
  logp = learner.score(placed, batch)
  got, sums = learner._policy_gradient(placed, batch)
  worst = 0.0
  for b, e in np.argwhere(batch.mask):
    key = batch.call_keys[batch.term_call[b, e]]
    depth = int(batch.depth[b, batch.term_slot[b, e]])
    worst = max(worst, abs(float(logp[b, e]) - float(found[(*key, depth)])))
  pairs = list(zip(jax.tree.leaves(got), jax.tree.leaves(grad), strict=True))
  square = sum(
    float(((np.asarray(a) - np.asarray(b)) ** 2).sum()) for a, b in pairs
  )
  size = sum(float((np.asarray(b) ** 2).sum()) for _, b in pairs)
  return {
    'loss': abs(float(sums['loss']) - loss),
    'logprob': worst,
    'grad': (square / size) ** 0.5,
    'rows': batch.stats['rows'],
    'parts': len(
      {str(s.index) for s in got['layers'][0]['q'].addressable_shards}
    ),
  }


def main(names):
  case = exact.make_case()
  references = {}
  for kind in {MESHES[name][0] for name in names}:
    params = qwen3.init(CONFIGS[kind], jax.random.key(1))
    params = jax.tree.map(lambda x: x * 2 if x.ndim > 1 else x, params)
    references[kind] = (
      params, *exact.reference_loss(params, CONFIGS[kind], case)
    )  # fmt: skip
  print(json.dumps({name: run(name, case, references) for name in names}))


if __name__ == '__main__':
  main(sys.argv[1:])
