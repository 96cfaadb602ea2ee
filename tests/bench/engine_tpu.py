"""Compiles prefill and decode for real TPUs, on a machine that has none.

  python tests/bench/engine_tpu.py --json [--only 8b v6e decode]

Needs `jax[tpu]` (its compiler, not a TPU). Layers are unrolled in serving, so
each program is compiled twice, with one and with two layers; their difference is
a layer. A decode program runs a burst of steps: what it does once is shared by
the steps of a full burst. Costs are read from the compiled text
(hlo_program.py: writes into the pool of pages are in place), plus the bytes of
keys and values, since the attention kernel carries no cost of its own. Time is
modelled as in chips.py. The floor is the bytes that a step must move (the
weights that its tokens touch, each once, and the keys and values) over
bandwidth, or of a prefill its matmuls over the chip's peak where that is longer.

Decode is modelled twice: as requests without cuts run (training samples so), and
with every branch of the sampler, which sorts the vocabulary for top-k and top-p
and also takes the argmax of greedy rows (`with_cuts`).
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
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import chips
import jax
import jax.numpy as jnp
from jax.experimental import topologies

from clawjax.models import experts, qwen3
from clawjax.models.sharding import Sharding, make_mesh
from clawjax.serving import programs, sampler

TARGETS = {'v5p': 'v5p:2x2x1', 'v6e': 'v6e:2x2'}
MODELS = {'8b': 'qwen3-8b', '30b-a3b': 'qwen3-30b-a3b'}
ROWS, CONTEXT, PAGE, CHUNK, BURST = 64, 8192, 64, 2048, 16


def inputs(config, sharding, pages):
  """Shapes of parameters, pools and a function for host arrays."""
  params = jax.tree.map(
    lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
    qwen3.abstract(config),
    experts.formats(sharding.of(qwen3.table(config))),
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
        programs.decode, config=config, burst=BURST, record_kept=0, place=place
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
  topology = TARGETS[target]
  chip = chips.chip_of(topology)
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
  steps = BURST if kind == 'decode' else 1
  facts, took = {}, 0.0
  for layers in (1, 2):
    seconds, compiled = compile_one(
      kind, whole.replace(layers=layers), sharding, full
    )
    took += seconds
    # Other loops than that over the steps are inside kernels and sorts.
    burst = {'once': True, 'outer': steps}
    facts[layers] = chips.facts(
      compiled, counted={'plain': {**burst, 'untaken': True}, 'cuts': burst}
    )

  def whole_model(of):
    one, two = (of(facts[n]) for n in (1, 2))
    return one + (whole.layers - 1) * (two - one)

  def total(key, counted='plain'):
    return whole_model(lambda f: f[counted][key]) / steps

  def sent(counted='plain'):
    return whole_model(lambda f: sum(f[counted]['sent'].values())) / steps

  tokens = ROWS if kind == 'decode' else CHUNK
  devices_here = len(devices)
  kv = 2 * 2 * whole.layers * whole.kv_heads * whole.head_size * CONTEXT
  kv /= devices_here
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
  stored = whole_model(lambda f: f['arguments'])
  temp = max(f['temp'] for f in facts.values())
  floor = (2 * weights / devices_here + kv) / chip.bandwidth
  if kind == 'prefill':
    active = whole.active_params - whole.vocab * whole.width
    floor = max(floor, 2 * active * tokens / devices_here / chip.flops)
  moved = total('bytes') + total('grouped_bytes') + kv

  def modelled(counted):
    return (
      total('cycles', counted) / chip.clock
      + (total('unmodelled', counted) + kv) / chip.bandwidth
      + max(
        total('grouped_bytes', counted) / chip.bandwidth,
        total('grouped_flops', counted) / chip.flops,
      )
      + sent(counted) / chip.links
    )

  return {
    'model': name,
    'target': topology,
    'kind': kind,
    'compile_s_of_two': round(took, 1),
    'temp_GiB_of_two_layers': temp / 2**30,
    'weights_and_kv_GiB': stored / 2**30,
    'hbm_GiB': chip.hbm / 2**30,
    'matmul_GFLOP': total('flops') / 1e9,
    'MB_with_kv': moved / 1e6,
    'sent_MB': sent() / 1e6,
    'modelled_ms': 1e3 * modelled('plain'),
    'floor_ms': 1e3 * floor,
    'bytes_over_floor': moved / chip.bandwidth / floor,
    'modelled_over_floor': modelled('plain') / floor,
    'with_cuts_over_floor': modelled('cuts') / floor,
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
