"""Compiles prefill and decode for real TPUs, on a machine that has none.

  python tests/bench/engine_tpu.py --json [--only 8b v6e decode]

Needs `jax[tpu]` (its compiler, not a TPU). Layers are unrolled in serving, so
one burst step of `--layers` layers is compiled twice, with one and with two
layers; their difference is a layer. Time is XLA's model of the program plus the
bytes of keys and values over bandwidth, since the attention kernel carries no
cost of its own. XLA's model counts the whole pool of pages wherever a program
touches it, though writes are in place; so each program is compiled with two
pool sizes and what grows with the pool is taken off. The floor is the bytes that a step must move (the weights that
its tokens touch, each once, and the keys and values) over bandwidth.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from functools import partial

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5p-8')
os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
# Nothing here touches a device: several compilers may run side by side.
os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from clawjax.models import qwen3
from clawjax.models.sharding import Sharding, make_mesh
from clawjax.serving import programs, sampler

# HBM bytes per second and bytes per chip.
TARGETS = {
  'v5p': ('v5p:2x2x1', 2.765e12, 95e9),
  'v6e': ('v6e:2x2', 1.64e12, 32e9),
}
MODELS = {'8b': 'qwen3-8b', '30b-a3b': 'qwen3-30b-a3b'}
ROWS, CONTEXT, PAGE, CHUNK = 64, 8192, 64, 2048


def inputs(config, sharding, pages):
  """Shapes of parameters, pools and a function for host arrays."""
  params = jax.tree.map(
    lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
    qwen3.abstract(config),
    sharding.of(qwen3.table(config)),
  )
  pools = [
    jax.ShapeDtypeStruct(
      (pages, PAGE, 2 * config.kv_heads, config.head_size),
      jnp.bfloat16,
      sharding=sharding.named((None, None, 'kv_heads', None)),
    )
    for _ in range(config.layers)
  ]

  def host(shape, dtype=jnp.int32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.replicated)

  return params, pools, host


def compile_one(kind, config, sharding, pool):
  """(seconds to compile, compiled program) with `pool` pages."""
  pages = CONTEXT // PAGE
  params, pools, host = inputs(config, sharding, pool)
  place = programs.Place('kernel', sharding)
  began = time.perf_counter()
  if kind == 'decode':
    batch = {
      'table_BP': host((ROWS, pages)),
      'length_B': host((ROWS,)),
      'token_B': host((ROWS,)),
      'index_B': host((ROWS,)),
      'budget_B': host((ROWS,)),
      'stop_BE': host((ROWS, 8)),
      'draws': sampler.Draws(
        host((ROWS,), jnp.float32),
        host((ROWS,)),
        host((ROWS,), jnp.float32),
        host((ROWS,), jnp.float32),
        host((ROWS, 2), jnp.uint32),
      ),
    }
    program = jax.jit(
      partial(
        programs.decode, config=config, burst=16, record_kept=0, place=place
      ),
      donate_argnames='pools',
    )
    lowered = program.lower(
      params,
      pools=pools,
      batch=batch,
      version=host(()),
      steps=host(()),
      min_active=host(()),
    )
  else:
    program = jax.jit(
      partial(programs.prefill, config=config, place=place),
      donate_argnames='pools',
    )
    lowered = program.lower(
      params,
      pools=pools,
      tokens_T=host((CHUNK,)),
      table_P=host((pages,)),
      start=host(()),
      count=host(()),
    )
  compiled = lowered.compile()
  return time.perf_counter() - began, compiled


def report(name, target, kind):
  """One row of the table."""
  topology, bandwidth, memory = TARGETS[target]
  devices = topologies.get_topology_desc(
    platform='tpu', topology_name=topology
  ).devices
  sharding = Sharding(make_mesh(devices, tensor=len(devices)))
  whole = qwen3.Config.preset(MODELS[name])
  whole = whole.replace(
    dtype='bfloat16',
    param_dtype='bfloat16',
    scan_layers=False,
    expert_impl='ragged' if whole.experts else 'auto',
  )
  full = ROWS * CONTEXT // PAGE
  costs, took = {}, 0.0
  for layers in (1, 2):
    for pool in (full, 2 * full):
      seconds, compiled = compile_one(
        kind, whole.replace(layers=layers), sharding, pool
      )
      took += seconds
      cost = compiled.cost_analysis()
      costs[layers, pool] = cost[0] if isinstance(cost, list) else cost
      if pool == full:
        stats = compiled.memory_analysis()

  def total(key):
    one, two = (
      2 * costs[n, full].get(key, 0.0) - costs[n, 2 * full].get(key, 0.0)
      for n in (1, 2)
    )
    return one + (whole.layers - 1) * (two - one)

  tokens = ROWS if kind == 'decode' else CHUNK
  chips = len(devices)
  kv = 2 * 2 * whole.layers * whole.kv_heads * whole.head_size * CONTEXT / chips
  kv *= ROWS if kind == 'decode' else 1
  # Of X experts, T tokens with A each touch X (1 - (1 - A/X)^T) on average.
  weights = whole.total_params
  if whole.experts:
    share = 1 - (1 - whole.experts_per_token / whole.experts) ** tokens
    expert = 3 * whole.width * whole.expert_width * whole.experts
    weights -= (1 - share) * expert * whole.layers
  # The embedding's rows are gathered, not read whole (untied models).
  if not whole.tied:
    weights -= whole.vocab * whole.width
  floor = (2 * weights / chips + kv) / bandwidth
  modelled = total('optimal_seconds') + kv / bandwidth
  return {
    'model': name,
    'target': topology,
    'kind': kind,
    'compile_s_of_four': round(took, 1),
    'temp_MiB_2_layers': stats.temp_size_in_bytes / 2**20,
    'weights_and_kv_GB_per_chip': (2 * whole.total_params / chips + kv) / 1e9,
    'chip_GB': memory / 1e9,
    'flops_per_chip': total('flops'),
    'bytes_per_chip_without_kv': total('bytes accessed'),
    'modelled_ms': None if modelled < 0 else 1e3 * modelled,
    'bytes_ms': 1e3 * (total('bytes accessed') + kv) / bandwidth,
    'floor_ms': 1e3 * floor,
    'bytes_over_floor': (total('bytes accessed') + kv) / bandwidth / floor,
    'modelled_over_floor': None if modelled < 0 else modelled / floor,
  }


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true', help='(always)')
  parser.add_argument('--only', nargs='*', default=[])
  args = parser.parse_args()
  rows = [
    report(name, target, kind)
    for name in MODELS
    for target in TARGETS
    for kind in ('prefill', 'decode')
    if set(args.only) <= {name, target, kind}
  ]
  print(json.dumps({'rows': ROWS, 'context': CONTEXT, 'table': rows}, indent=2))
  return 0


if __name__ == '__main__':
  sys.exit(main())
