"""Compiles the model's programs for real TPUs, on a machine that has none.

  python tests/bench/tpu_compile.py --json [--only NAME ...] [--whole]

Needs `jax[tpu]` (its compiler, not a TPU). For each model and target prints
bytes per device against the chip's memory, FLOPs and bytes per trained token,
modelled time and collectives.

What XLA's cost model counts and what not (so how the numbers are made):
  - A loop's body is counted once. So layers are counted by compiling programs
    with one and with two unrolled layers: their difference is a layer, the rest
    is embedding, head and optimiser; the model is head + L x layer. `--whole`
    compiles the scanned model too, for its memory (minutes).
  - Attention over blocks is a loop as well: its FLOPs are added from the live
    (query, key) pairs, 4 H C each forward and 10 H C backward (two matmuls
    forward, five backward), with causal rows as the worst case.
  - Time below zero marks an op without a model: it is reported as None.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import math
import os
import re
import sys
import time
from typing import Any

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5p-8')
os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
sys.path.insert(0, os.path.join(os.path.dirname(__file__), '../..'))

import jax
import jax.numpy as jnp
import optax
from jax.experimental import topologies

from clawjax.kernels.tree_attention import tree_attention
from clawjax.losses.logprobs import term_logprobs
from clawjax.models import qwen3
from clawjax.models.config import Config
from clawjax.models.sharding import Sharding, make_mesh

# Per chip: HBM in GiB and bf16 TFLOP/s, from the public data sheets.
CHIPS = {'v5p': (95, 459), 'v5e': (16, 197), 'v6e': (32, 918)}

# name: (model, topology, mesh, rows of 65536 slots)
TARGETS = {
  '30b-v5p': ('qwen3-30b-a3b', 'v5p:4x4x4', {'expert': 4, 'context': 16}, 4),
  '30b-v6e': ('qwen3-30b-a3b', 'v6e:8x8', {'expert': 4, 'context': 16}, 4),
  '8b-v5p': ('qwen3-8b', 'v5p:2x2x4', {'fsdp': 4, 'context': 4}, 4),
  '8b-v5e': ('qwen3-8b', 'v5e:8x8', {'fsdp': 4, 'context': 16}, 4),
}
SLOTS = 65536
TERMS = 32768  # trained tokens per row


def mesh_for(topology: str, sizes: dict[str, int]) -> Sharding:
  described = topologies.get_topology_desc(
    platform='tpu', topology_name=topology
  )
  return Sharding(make_mesh(described.devices, **sizes))


def loss_terms(params, config, sharding, rows):
  """Log-probs of the trained tokens of a batch of trees."""
  attention = sharding.attend(
    functools.partial(tree_attention, impl='chunked'), config
  )

  def attend(state, q, k, v):
    return attention(q, k, v, rows['subtree_end']), state

  hidden, _, _ = qwen3.apply(
    params,
    config,
    rows['tokens'],
    rows['depth'],
    attend=attend,
    sharding=sharding,
  )
  return term_logprobs(
    hidden,
    qwen3.unembed(params, config).astype(hidden.dtype),
    rows['tokens'],
    rows['parent'],
    rows['term_slot'],
    chunk=4096,
  )[0]


def grpo_step(config, sharding, optimizer):
  def step(params, state, rows):
    def loss(params):
      logp = loss_terms(params, config, sharding, rows)
      ratio = jnp.exp(logp - rows['old_logprob'])
      clipped = jnp.clip(ratio, 0.8, 1.28)
      advantage = rows['advantage']
      gain = jnp.minimum(ratio * advantage, clipped * advantage)
      return -(gain * rows['weight']).sum()

    value, grad = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(grad, state, params)
    return optax.apply_updates(params, updates), state, value

  return step


def arguments(config, sharding, rows: int, optimizer):
  """Shapes with shardings: parameters, optimiser state, rows."""
  places = sharding.of(qwen3.table(config))

  def placed(shapes, where):
    return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      where,
    )

  params = qwen3.abstract(config)
  state = jax.eval_shape(optimizer.init, params)
  slot = sharding.named(('batch', 'length'))
  term = sharding.named(('batch', None))
  data = {
    name: jax.ShapeDtypeStruct((rows, SLOTS), jnp.int32, sharding=slot)
    for name in ('tokens', 'depth', 'parent', 'subtree_end')
  }
  data['term_slot'] = jax.ShapeDtypeStruct(
    (rows, TERMS), jnp.int32, sharding=term
  )
  for name in ('old_logprob', 'advantage', 'weight'):
    data[name] = jax.ShapeDtypeStruct((rows, TERMS), jnp.float32, sharding=term)
  return (
    placed(params, places),
    placed(state, sharding.like(state, places)),
    data,
  )


def compiled(target: str, program: str, layers: int | None) -> dict[str, Any]:
  """Compiles one program; `layers` unrolled layers, or the whole, scanned."""
  model, topology, sizes, rows = TARGETS[target]
  config = Config.preset(
    model, param_dtype='float32', expert_impl='ragged', remat='full'
  )
  if layers is not None:
    config = config.replace(layers=layers, scan_layers=False)
  sharding = mesh_for(topology, sizes)
  optimizer = optax.adamw(1e-6, mu_dtype=jnp.bfloat16)
  params, state, data = arguments(config, sharding, rows, optimizer)
  began = time.monotonic()
  if program == 'step':
    step = jax.jit(
      grpo_step(config, sharding, optimizer), donate_argnums=(0, 1)
    )
    lowered = step.lower(params, state, data)
  elif program == 'old':
    score = jax.jit(
      lambda params, rows: loss_terms(params, config, sharding, rows)
    )
    lowered = score.lower(params, data)
  else:
    raise ValueError(f'unknown program {program!r}')
  program_ = lowered.compile()
  memory = program_.memory_analysis()
  cost = program_.cost_analysis()
  seconds = cost.get('optimal_seconds', -1.0)
  return {
    'compile_s': round(time.monotonic() - began, 1),
    'argument_bytes': memory.argument_size_in_bytes,
    'temp_bytes': memory.temp_size_in_bytes,
    'alias_bytes': memory.alias_size_in_bytes,
    'flops': cost.get('flops', 0.0),
    'bytes': cost.get('bytes accessed', 0.0),
    'seconds': seconds if seconds >= 0 else None,
    'collectives': collectives(program_.as_text()),
  }


_KINDS = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all',
          'ragged-all-to-all', 'collective-permute')  # fmt: skip
_SIZES = {'bf16': 2, 'f32': 4, 's32': 4, 'u32': 4, 'pred': 1, 's8': 1}


def collectives(hlo: str) -> dict[str, list[int]]:
  """Kind -> [count, result bytes per device], loop bodies once."""
  found: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
  pattern = re.compile(r' = (.*?) (' + '|'.join(_KINDS) + r')(-start)?\(')
  for shapes, kind, _ in pattern.findall(hlo):
    size = 0
    for dtype, dims in re.findall(r'(\w+)\[([\d,]*)\]', shapes):
      count = math.prod(int(d) for d in dims.split(',') if d)
      size += count * _SIZES.get(dtype, 4)
    found[kind][0] += 1
    found[kind][1] += size
  return dict(found)


def summary(target: str, program: str, whole: bool) -> dict[str, Any]:
  """One row of the table: head + L x layer, per trained token."""
  model, topology, sizes, rows = TARGETS[target]
  config = Config.preset(model)
  hbm, peak = CHIPS[topology.split(':')[0]]
  one, two = (compiled(target, program, n) for n in (1, 2))
  devices = math.prod(sizes.values())

  def total(key):
    if one[key] is None or two[key] is None:
      return None
    return one[key] + (config.layers - 1) * (two[key] - one[key])

  # Worst case: causal rows. Backward with remat runs the forward twice.
  pairs = rows * SLOTS * (SLOTS + 1) / 2
  per_pair = 4 * config.heads * config.head_size
  per_pair *= 1 if program == 'old' else 2 + 2.5
  attention = config.layers * pairs * per_pair / devices
  flops = total('flops') + attention
  out = {
    'target': target,
    'program': program,
    'mesh': sizes,
    'slots': rows * SLOTS,
    'flops_per_device': flops,
    'attention_share': attention / flops,
    'flops_per_slot': flops * devices / (rows * SLOTS),
    'bytes_per_device': total('bytes'),
    'seconds_without_attention': total('seconds'),
    'seconds_at_peak': flops / (peak * 1e12),
    'layer': {
      kind: [two['collectives'].get(kind, [0, 0])[i]
             - one['collectives'].get(kind, [0, 0])[i] for i in (0, 1)]
      for kind in two['collectives']
    },
    'compile_s': one['compile_s'] + two['compile_s'],
    'whole': None,
  }  # fmt: skip
  if whole:
    full = compiled(target, program, None)
    used = full['argument_bytes'] + full['temp_bytes']
    out['whole'] = {
      'argument_gib': full['argument_bytes'] / 2**30,
      'temp_gib': full['temp_bytes'] / 2**30,
      'hbm_gib': hbm,
      'margin_gib': hbm - used / 2**30,
      'compile_s': full['compile_s'],
    }
  return out


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--only', nargs='*', default=sorted(TARGETS))
  parser.add_argument('--programs', nargs='*', default=['step', 'old'])
  parser.add_argument('--whole', action='store_true')
  args = parser.parse_args()
  table = []
  for target in args.only:
    for program in args.programs:
      try:
        table.append(summary(target, program, args.whole))
      except Exception as e:
        table.append(
          {'target': target, 'program': program, 'error': str(e)[:2000]}
        )
      print(json.dumps(table[-1]), file=sys.stderr)
  if args.json:
    print(json.dumps({'jax': jax.__version__, 'programs': table}))


if __name__ == '__main__':
  main()
