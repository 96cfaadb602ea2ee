"""Runs in a process of its own with 8 CPU devices; prints one JSON line.

For every mesh: loss, gradients and one Adam step of a small model on the mesh
against the same on one device. `main` returns the largest differences; the test
beside this file judges them.
"""

import json
import os
import sys

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'

import jax
import jax.numpy as jnp
import numpy as np
import optax

from clawjax.kernels.tree_attention import tree_attention
from clawjax.models import checkpoint, qwen3
from clawjax.models.config import Config
from clawjax.models.sharding import Sharding, make_mesh

MOE = Config.tiny(
  vocab=64, width=32, layers=2, heads=8, kv_heads=2, head_size=8,
  experts=8, experts_per_token=2, expert_width=16, tied=False,
)  # fmt: skip
DENSE = MOE.replace(
  experts=0, experts_per_token=0, expert_width=0, mlp_width=48, family='qwen3'
)
MESHES = {
  'data': (DENSE, {'data': 8}),
  'fsdp': (MOE, {'fsdp': 8}),
  'tensor': (DENSE, {'tensor': 2, 'data': 4}),
  'expert': (MOE, {'expert': 8}),
  'context': (DENSE, {'context': 8}),
  'expert tensor': (MOE, {'data': 2, 'expert': 2, 'tensor': 2}),
  'fsdp context tensor': (
    DENSE.replace(scan_layers=True),
    {'fsdp': 2, 'context': 2, 'tensor': 2},
  ),
  'fsdp expert context': (
    MOE.replace(scan_layers=True, remat='full'),
    {'fsdp': 2, 'expert': 2, 'context': 2},
  ),
}


def batch():
  """Rows of two trees each: a fork after 4 slots, then a chain of 6, padding."""
  rng = np.random.default_rng(0)
  end = [10, 10, 10, 10, 7, 7, 7, 10, 10, 10, 15, 15, 15, 15, 15, 16]
  depth = [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 0, 1, 2, 3, 4, 0]
  rows = 8
  return (
    jnp.asarray(rng.integers(0, 64, (rows, 16)), jnp.int32),
    jnp.asarray([depth] * rows, jnp.int32),
    jnp.asarray([end] * rows, jnp.int32),
    jnp.asarray(rng.normal(size=(rows, 16, 64)), jnp.float32),
  )


def step_function(config, optimizer, sharding):
  attention = tree_attention
  if sharding is not None:
    attention = sharding.attend(tree_attention, config)

  def loss(params, tokens, depth, end, direction):
    def attend(state, q, k, v):
      return attention(q, k, v, end), state

    hidden, _, routes = qwen3.apply(
      params, config, tokens, depth, attend=attend, sharding=sharding
    )
    logits = qwen3.logits(params, config, hidden)
    return (jax.nn.log_softmax(logits) * direction).mean(), routes

  def step(params, state, *data):
    (value, _), grad = jax.value_and_grad(loss, has_aux=True)(params, *data)
    updates, state = optimizer.update(grad, state, params)
    return optax.apply_updates(params, updates), state, value, grad

  return step


def compare(config, sizes):
  optimizer = optax.chain(
    optax.clip_by_global_norm(1e-3), optax.adamw(1e-2, weight_decay=0.1)
  )
  params = qwen3.init(config, jax.random.key(0))
  state = optimizer.init(params)
  data = batch()
  want = jax.jit(step_function(config, optimizer, None))(params, state, *data)

  sharding = Sharding(make_mesh(**sizes))
  places = sharding.of(qwen3.table(config))
  state_places = sharding.like(state, places)
  row = sharding.named(('batch', 'length'))
  data_places = (row, row, row, sharding.named(('batch', 'length', None)))
  step = jax.jit(
    step_function(config, optimizer, sharding),
    in_shardings=(places, state_places, *data_places),
    out_shardings=(places, state_places, sharding.replicated, places),
  )
  got = step(params, state, *data)

  def worst(one, two):
    """Largest difference, in units of the tensor's largest entry."""
    gaps = jax.tree.map(
      lambda a, b: (
        float(np.abs(np.asarray(a) - np.asarray(b)).max())
        / (float(np.abs(np.asarray(a)).max()) + 1e-12)
      ),
      one,
      two,
    )
    return max(jax.tree.leaves(gaps))

  q = got[0]['layers']
  q = q['q'] if isinstance(q, dict) else q[0]['q']
  return {
    'loss': abs(float(want[2] - got[2])),
    'grad': worst(want[3], got[3]),
    'params': worst(want[0], got[0]),
    'moments': worst(want[1], got[1]),
    'q_parts': len({str(s.index) for s in q.addressable_shards}),
  }


def reload(folder):
  """A folder loaded into a sharding: same values, each device its part."""
  config = MOE.replace(scan_layers=True)
  params = qwen3.init(config, jax.random.key(0))
  checkpoint.save_hf(params, config, folder, shard_bytes=20000)
  sharding = Sharding(make_mesh(fsdp=2, expert=2, tensor=2))
  places = sharding.of(qwen3.table(config))
  loaded, _ = checkpoint.load_hf(folder, scan_layers=True, shardings=places)
  same = jax.tree.map(
    lambda a, b, s: (
      bool((np.asarray(a) == np.asarray(b)).all())
      and b.sharding.is_equivalent_to(s, b.ndim)
    ),
    params,
    loaded,
    places,
  )
  checkpoint.save_hf(loaded, config, folder + '/again')
  again, _ = checkpoint.load_hf(folder + '/again', scan_layers=True)
  equal = jax.tree.map(lambda a, b: bool((a == b).all()), params, again)
  return all(jax.tree.leaves(same)) and all(jax.tree.leaves(equal))


def main(names, folder):
  out = {name: compare(*MESHES[name]) for name in names if name in MESHES}
  if 'reload' in names:
    out['reload'] = reload(folder)
  print(json.dumps(out))


if __name__ == '__main__':
  main(sys.argv[2:], sys.argv[1])
