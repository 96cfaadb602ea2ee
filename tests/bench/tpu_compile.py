"""Compiles training and serving for real TPUs, on a machine that has none.

  python tests/bench/tpu_compile.py --json [--only TARGET ...] [--programs ...]
      [--whole] [--remat NAME] [--mesh expert=4,context=16] [--moments DTYPE]

Needs `jax[tpu]` (its compiler, not a TPU). The programs are the Learner's own:

  step   the gradient of one batch of rows (`Gradient._add`) and the optimiser
         step (`Learner._apply`): GRPO, tree attention, remat, AdamW
  old    log-probs of all terms under given weights
  prefill, decode   see engine_tpu.py; their targets are those of MODELS there

Per target and program: bytes per device against the chip's memory, FLOPs and
bytes per trained token, modelled time and use of the chip, collectives with the
bytes that a device sends, compile time. Rows are chains (causal), the worst
case. `--whole` compiles all layers, scanned, for the memory (minutes each); the
other options try alternatives.

What XLA's cost model counts and what not (so how the numbers are made):
  - A loop's body is counted once. So layers come from programs of one and two
    unrolled layers, and the head from one chunk of e and of 2 e terms; both are
    straight lines: cost = rest + L x layer + terms x term.
  - A Pallas kernel costs what its estimate says, made from its live blocks.
  - `modelled_s` is XLA's; below zero it marks an op without a model: None.
    `floor_s` is the larger of FLOPs / peak and HBM bytes / bandwidth.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5p-8')
os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
# Nothing here touches a device: several compilers may run side by side.
os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
from hlo import collectives
from jax.experimental import topologies

from clawjax.kernels.pallas_tree import most_pairs
from clawjax.models import qwen3
from clawjax.models.config import Config
from clawjax.models.sharding import Sharding, make_mesh
from clawjax.train import state as state_lib
from clawjax.train.rows import ForwardConfig
from clawjax.train.step import Learner

SLOTS = 65536
TERMS = 32768  # trained tokens of a row
COUNTED = 256  # terms of a row in the programs that are counted
BLOCK = 512  # of the attention kernels


@dataclasses.dataclass(frozen=True)
class Chip:
  """From the public data sheets: HBM bytes, bf16 FLOP/s, HBM bytes/s."""

  hbm: float
  flops: float
  bandwidth: float


CHIPS = {
  'v5p': Chip(95 * 2**30, 459e12, 2.765e12),
  'v5e': Chip(16 * 2**30, 197e12, 0.819e12),
  'v6e': Chip(32 * 2**30, 918e12, 1.64e12),
}


@dataclasses.dataclass(frozen=True)
class Target:
  """A model on a slice.

  Attributes:
    model: preset.
    topology: as JAX names it.
    mesh: sizes of the mesh's axes.
    rows: rows of `SLOTS` slots in a step.
    remat: see `Config.remat`.
    moments: number format of Adam's first moment.
  """

  model: str
  topology: str
  mesh: Mapping[str, int]
  rows: int = 4
  remat: str = 'full'
  moments: str = 'float32'

  @property
  def chip(self) -> Chip:
    """What one device is."""
    return CHIPS[self.topology.split(':')[0]]

  @property
  def devices(self) -> int:
    """Chips of the slice."""
    return math.prod(self.mesh.values())


TARGETS = {
  '30b-v5p': Target('qwen3-30b-a3b', 'v5p:4x4x4', {'expert': 4, 'context': 16}),
  '30b-v6e': Target('qwen3-30b-a3b', 'v6e:8x8', {'expert': 4, 'context': 16}),
  '8b-v5p': Target('qwen3-8b', 'v5p:2x2x4', {'fsdp': 4, 'context': 4}),
  '8b-v5e': Target('qwen3-8b', 'v5e:8x8', {'fsdp': 4, 'context': 16}),
}


@contextlib.contextmanager
def as_on_a_tpu() -> Iterator[None]:
  """Code that asks for the platform while it is traced hears 'tpu'."""
  with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
    yield


def mesh_for(target: Target) -> Sharding:
  described = topologies.get_topology_desc(
    platform='tpu', topology_name=target.topology
  )
  return Sharding(make_mesh(described.devices, **target.mesh))


def lowered(target: Target, *, layers: int | None, terms: int, chunk: int):
  """Name -> a function that lowers it.

  Args:
    target: where to.
    layers: unrolled; None: all of them, scanned.
    terms: of a row.
    chunk: terms whose logits exist at once on a device.
  """
  config = Config.preset(
    target.model, param_dtype='float32', remat=target.remat
  )
  if layers is not None:
    config = config.replace(layers=layers, scan_layers=False)
  sharding = mesh_for(target)
  optimizer = state_lib.make_optimizer(
    state_lib.OptimConfig(moment_dtype=target.moments)
  )
  learner = Learner(
    config,
    optimizer,
    forward=ForwardConfig(rows=target.rows, chunk=chunk),
    sharding=sharding,
  )
  places = sharding.of(qwen3.table(config))

  def placed(shapes, where):
    return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      shapes,
      where,
    )

  shapes = qwen3.abstract(config)
  params = placed(shapes, places)
  state = jax.eval_shape(lambda p: state_lib.init(p, optimizer), shapes)
  state = placed(state, sharding.like(state, places))
  row = sharding.named(('batch', None))
  data = {
    name: jax.ShapeDtypeStruct((target.rows, SLOTS), jnp.int32, sharding=row)
    for name in ('tokens', 'depth', 'parent', 'subtree_end')
  }
  for name in ('term_slot', 'term_call'):
    data[name] = jax.ShapeDtypeStruct(
      (target.rows, terms), jnp.int32, sharding=row
    )
  for name in ('rollout_logprob', 'old_logprob', 'advantage', 'weight'):
    data[name] = jax.ShapeDtypeStruct(
      (target.rows, terms), jnp.float32, sharding=row
    )
  return {
    'gradient': lambda: learner._policy_gradient._add.lower(
      params, params, data
    ),
    'apply': lambda: learner._apply.lower(state, params),
    'old': lambda: learner._score._run.lower(params, data),
  }


PARTS = {'step': ('gradient', 'apply'), 'old': ('old',)}


def measured(lower, devices: int) -> dict[str, Any]:
  """Compiles one program; what the compiler says of it, per device."""
  began = time.monotonic()
  with as_on_a_tpu():
    program = lower()
  program = program.compile()
  memory, cost = program.memory_analysis(), program.cost_analysis()
  seconds = cost.get('optimal_seconds', -1.0)
  found = collectives(program.as_text().splitlines(), devices)
  return {
    'compile_s': time.monotonic() - began,
    'arguments': memory.argument_size_in_bytes,
    'live': memory.argument_size_in_bytes
    + memory.temp_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes,
    'temp': memory.temp_size_in_bytes,
    'flops': cost.get('flops', 0.0),
    'bytes': cost.get('bytes accessed', 0.0),
    'seconds': seconds if seconds >= 0 else math.nan,
    'sent': {kind: size for kind, (_, size) in found.items()},
  }


def attention_flops(target: Target, program: str) -> float:
  """What the kernels' estimates add up to, per device and step.

  Two matmuls forward, three for dq, four for dk and dv; with remat 'full' the
  forward kernel runs again in the backward pass.
  """
  config = Config.preset(target.model)
  matmuls = 2
  if program == 'step':
    matmuls += 3 + 4 + (2 if target.remat == 'full' else 0)
  area = most_pairs(target.rows, SLOTS, BLOCK) * BLOCK**2
  wide = config.heads * config.head_size
  return 2 * matmuls * wide * area * config.layers / target.devices


def summary(target: Target, program: str, whole: bool) -> dict[str, Any]:
  """One row of the table."""
  config, chip = Config.preset(target.model), target.chip
  chunk = 2 * COUNTED
  total: dict[str, float] = {'flops': 0.0, 'bytes': 0.0, 'seconds': 0.0}
  sent: dict[str, float] = {}
  compile_s = 0.0
  for part in PARTS[program]:
    one, two, more = (
      measured(
        lowered(target, layers=n, terms=e, chunk=chunk)[part], target.devices
      )
      for n, e in ((1, COUNTED), (2, COUNTED), (1, 2 * COUNTED))
    )
    compile_s += sum(x['compile_s'] for x in (one, two, more))

    def line(a, b, c):
      layers = (config.layers - 1) * (b - a)
      return a + layers + (TERMS / COUNTED - 1) * (c - a)

    for key in total:
      total[key] += line(one[key], two[key], more[key])
    for kind in {*one['sent'], *two['sent'], *more['sent']}:
      three = [x['sent'].get(kind, 0.0) for x in (one, two, more)]
      sent[kind] = sent.get(kind, 0.0) + line(*three)
  trained = target.rows * TERMS
  attention = attention_flops(target, program)
  floor = max(total['flops'] / chip.flops, total['bytes'] / chip.bandwidth)
  modelled = total['seconds']
  out = {
    'program': program,
    'model': target.model,
    'topology': target.topology,
    'mesh': dict(target.mesh),
    'remat': target.remat,
    'moments': target.moments,
    'slots': target.rows * SLOTS,
    'trained_tokens': trained,
    'flops_per_device': total['flops'],
    'attention_flops_per_device': attention,
    'flops_per_trained_token': total['flops'] * target.devices / trained,
    'hbm_bytes_per_trained_token': total['bytes'] * target.devices / trained,
    'sent_GB_per_device': {k: round(v / 1e9, 3) for k, v in sent.items()},
    'sent_bytes_per_trained_token': sum(sent.values())
    * target.devices
    / trained,
    'modelled_s': None if math.isnan(modelled) else modelled,
    'floor_s': floor,
    'modelled_use_of_peak': None
    if math.isnan(modelled)
    else total['flops'] / chip.flops / modelled,
    'compile_s_small': round(compile_s, 1),
    'whole': whole_memory(target, program) if whole else None,
  }
  return out


def whole_memory(target: Target, program: str) -> dict[str, Any]:
  """Bytes per device of the whole model, all that is alive counted.

  During the gradient the optimiser's state waits in memory, though it is no
  argument of that program.
  """
  found = lowered(target, layers=None, terms=TERMS, chunk=1024)
  parts = {
    name: measured(found[name], target.devices) for name in PARTS[program]
  }
  if program == 'step':
    # Arguments of `apply`: parameters, their gradient and the optimiser's state.
    apply = parts['apply']
    waiting = apply['arguments'] - 2 * parameter_bytes(target)
    peaks = {
      'gradient': parts['gradient']['live'] + waiting,
      'apply': apply['live'],
    }
  else:
    peaks = {'old': parts['old']['live']}
  peak = max(peaks.values())
  return {
    **{f'{k}_GiB': round(v / 2**30, 2) for k, v in peaks.items()},
    'hbm_GiB': target.chip.hbm / 2**30,
    'margin_GiB': round((target.chip.hbm - peak) / 2**30, 2),
    'fits': peak < target.chip.hbm,
    'temp_GiB': {k: round(v['temp'] / 2**30, 2) for k, v in parts.items()},
    'compile_s': round(sum(v['compile_s'] for v in parts.values()), 1),
  }


def parameter_bytes(target: Target) -> int:
  """Float32 parameters on one device."""
  config = Config.preset(target.model)
  shapes = qwen3.abstract(config)
  places = mesh_for(target).of(qwen3.table(config))
  parts = jax.tree.map(
    lambda x, s: 4 * math.prod(s.shard_shape(x.shape)), shapes, places
  )
  return sum(jax.tree.leaves(parts))


def serving(program: str) -> list[dict[str, Any]]:
  """Rows of engine_tpu.py."""
  import engine_tpu

  return [
    {'program': program, **engine_tpu.report(model, chip, program)}
    for model in engine_tpu.MODELS
    for chip in engine_tpu.TARGETS
  ]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true', help='(always)')
  parser.add_argument('--only', nargs='*', default=list(TARGETS))
  parser.add_argument('--programs', nargs='*', default=['step', 'old'])
  parser.add_argument('--whole', action='store_true')
  parser.add_argument('--memory-only', action='store_true')
  parser.add_argument('--remat')
  parser.add_argument('--moments')
  parser.add_argument('--mesh', help='e.g. expert=4,context=16')
  args = parser.parse_args()
  changes: dict[str, Any] = {
    k: v for k in ('remat', 'moments') if (v := getattr(args, k))
  }
  if args.mesh:
    pairs = (pair.split('=') for pair in args.mesh.split(','))
    changes['mesh'] = {name: int(size) for name, size in pairs}
  table = []

  def tell(name, row):
    table.append({'target': name, **row})
    print(json.dumps(table[-1]), file=sys.stderr, flush=True)

  for program in args.programs:
    if program not in PARTS:
      for row in serving(program):
        tell(f'{row["model"]} {row["target"]}', row)
      continue
    for name in args.only:
      target = dataclasses.replace(TARGETS[name], **changes)
      try:
        if args.memory_only:
          row = {
            'program': program,
            'mesh': dict(target.mesh),
            'remat': target.remat,
            'whole': whole_memory(target, program),
          }
        else:
          row = summary(target, program, args.whole)
      except Exception as error:  # a target that does not compile is a row too
        row = {'program': program, 'error': f'{error}'[:2000]}
      tell(name, row)
  print(json.dumps({'jax': jax.__version__, 'programs': table}))


if __name__ == '__main__':
  main()
