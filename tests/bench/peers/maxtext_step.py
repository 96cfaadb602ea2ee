"""MaxText's own training step, compiled for the targets of ../tpu_compile.py.

  PYTHON peers/maxtext_step.py --json [--only TARGET ...] [--results FILE]

PYTHON is one with `maxtext[tpu]==0.2.5` (Python 3.12; it needs no TPU). Its
default config of the same models, the same tokens in a step (4 rows of 64K,
causal, random tokens), full remat, float32 parameters and AdamW; the mesh is the
best we found for it, rows over fsdp and slots over context. One program holds
forward, backward and optimiser. The fields are those of tpu_compile.py, read
from the compiled text in the same way; all its tokens have a loss term, so the
head is larger than ours: `head_terms` says for how many.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')
os.environ.setdefault('TPU_ACCELERATOR_TYPE', 'v5p-8')
os.environ.setdefault('TPU_WORKER_HOSTNAMES', 'localhost')
os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import chips
import jax
import maxtext
from absl import logging
from flax.core.spmd import logical_axis_rules
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train, train_compile
from maxtext.utils import maxtext_utils, sharding

SLOTS, ROWS = 65536, 4
# model, its name for the topology, ours, mesh
TARGETS = {
  '30b-v5p': ('qwen3-30b-a3b', 'v5p-128', 'v5p:4x4x4', (4, 16)),
  '30b-v6e': ('qwen3-30b-a3b', 'v6e-64', 'v6e:8x8', (4, 16)),
  '8b-v5p': ('qwen3-8b', 'v5p-32', 'v5p:2x2x4', (4, 4)),
  '8b-v5e': ('qwen3-8b', 'v5e-64', 'v5e:8x8', (4, 16)),
}


def configured(name: str, options: list[str]):
  model, topology, _, (fsdp, context) = TARGETS[name]
  folder = pathlib.Path(maxtext.__file__).parent
  return pyconfig.initialize(
    [
      '',
      str(folder / 'configs' / 'base.yml'),
      f'model_name={model}',
      f'compile_topology={topology}',
      'compile_topology_num_slices=1',
      f'per_device_batch_size={ROWS / (fsdp * context)}',
      f'max_target_length={SLOTS}',
      f'ici_fsdp_parallelism={fsdp}',
      f'ici_context_parallelism={context}',
      'remat_policy=full',
      'attention=flash',
      'dataset_type=synthetic',
      'enable_checkpointing=False',
      'skip_jax_distributed_system=True',
      *options,
    ]
  )


def compiled(config):
  """The step as `train_compile` of MaxText compiles it."""
  train_compile.validate_config(config)
  mesh = train_compile.get_topology_mesh(config)
  inputs, named, places, _, model = train_compile.get_shaped_inputs(
    mesh, config
  )
  params, places = sharding.maybe_update_params_sharding_with_opt(
    config, places
  )
  # The order and the meaning of these are train_compile.main's.
  given = sharding.build_zero1_input_state_mesh_shardings(
    config, places, params
  )
  step, into, out, static, donated = (
    maxtext_utils.get_functional_train_with_signature(
      train.train_step,
      sharding.get_input_data_sharding(config, mesh),
      given,
      model,
      config,
      params,
    )
  )
  return train_compile.jit_and_compile(
    step,
    inputs,
    named,
    mesh,
    into,
    out,
    static,
    donated,
    config,
    logical_axis_rules(config.logical_axis_rules),
  )


def report(name: str, options: list[str], keep: pathlib.Path | None):
  config = configured(name, options)
  began, cpu = time.monotonic(), time.process_time()
  program = compiled(config)
  took, cpu = time.monotonic() - began, time.process_time() - cpu
  facts = chips.facts(program, keep=keep)
  model, _, topology, (fsdp, context) = TARGETS[name]
  return {
    'model': model,
    'topology': topology,
    'mesh': {'fsdp': fsdp, 'context': context},
    'options': options,
    'head_terms': ROWS * SLOTS,
    **chips.row(
      [facts],
      chips.chip_of(topology),
      devices=fsdp * context,
      slots=ROWS * SLOTS,
      trained=ROWS * SLOTS,
      peak=chips.live(facts),
    ),
    'temp_GiB': round(facts['temp'] / 2**30, 2),
    'compile_s': round(took, 1),
    'compile_cpu_s': round(cpu, 1),
    'facts': facts,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true', help='(always)')
  parser.add_argument('--only', nargs='*', default=list(TARGETS))
  parser.add_argument('--results', help='JSON lines, written')
  parser.add_argument('--hlo', help='folder for the compiled texts')
  parser.add_argument('options', nargs='*', help="MaxText's own, NAME=VALUE")
  args = parser.parse_args()
  jax.config.update('jax_default_prng_impl', 'unsafe_rbg')
  logging.set_verbosity(logging.ERROR)
  table = []
  for name in args.only:
    keep = pathlib.Path(args.hlo, f'maxtext.{name}.gz') if args.hlo else None
    try:
      row = report(name, args.options, keep)
    except Exception as error:  # a target that does not compile is a row too
      row = {'error': f'{type(error).__name__}: {error}'[:2000]}
    table.append({'target': name, 'program': 'maxtext step', **row})
    chips.append(args.results, table[-1])
    print(json.dumps(table[-1]), file=sys.stderr, flush=True)
  print(json.dumps({'jax': jax.__version__, 'programs': table}))


if __name__ == '__main__':
  main()
