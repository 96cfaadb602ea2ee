"""Compiles training and serving for real TPUs, on a machine that has none.

  python tests/bench/tpu_compile.py --json [--only TARGET ...] [--programs ...]
      [--remat NAME] [--mesh expert=4,context=16] [--moments DTYPE]
      [--results FILE] [--hlo FOLDER]

Needs `jax[tpu]` (its compiler, not a TPU). The programs are the Learner's own,
whole models with their layers scanned (minutes of a core each):

  step   the gradient of one batch of rows (`Gradient.of_one`) and the optimiser
         step (`Learner._apply`): GRPO, tree attention, remat, AdamW
  old    log-probs of all terms under given weights
  prefill, decode   see engine_tpu.py; their targets are those of MODELS there

Per target and program (see `chips.row`): bytes per device at the worst moment
against the chip's memory (the optimiser's state waits in memory while the other
programs run), FLOPs and bytes per trained token, modelled time and use of the
chip, collectives with the bytes that a device sends, compile time. Rows are
chains (causal), the worst case. Costs are read from the compiled text, bodies of
loops as often as they run (`hlo_program.py`); a Pallas kernel costs what its
estimate says, made from its live blocks. `xla_once` and `once` are the same
program by XLA's own analysis and by ours with each loop's body counted once.

`--results` takes up where a stopped run was: it holds a JSON line for each
compiled program (by the hash of what was compiled), and then for each row.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
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

import chips
import jax
import jax.numpy as jnp
from jax.experimental import topologies

from clawjax.models import qwen3
from clawjax.models.config import Config
from clawjax.models.sharding import Sharding, make_mesh
from clawjax.train import state as state_lib
from clawjax.train.rows import ForwardConfig
from clawjax.train.step import Learner


@dataclasses.dataclass(frozen=True)
class Target:
  """A model on a slice.

  Attributes:
    model: preset.
    topology: as JAX names it.
    mesh: sizes of the mesh's axes.
    rows: of a step.
    slots: of a row; half of them have a loss term.
    remat: see `Config.remat`.
    moments: number format of Adam's first moment.
  """

  model: str
  topology: str
  mesh: Mapping[str, int]
  rows: int = 4
  slots: int = 65536
  remat: str = 'full'
  moments: str = 'float32'

  @property
  def chip(self) -> chips.Chip:
    """What one device is."""
    return chips.chip_of(self.topology)

  @property
  def devices(self) -> int:
    """Chips of the slice."""
    return math.prod(self.mesh.values())

  @property
  def terms(self) -> int:
    """Trained tokens of a row."""
    return self.slots // 2


TARGETS = {
  '30b-v5p': Target('qwen3-30b-a3b', 'v5p:4x4x4', {'expert': 4, 'context': 16}),
  '30b-v6e': Target('qwen3-30b-a3b', 'v6e:8x8', {'expert': 4, 'context': 16}),
  '8b-v5p': Target('qwen3-8b', 'v5p:2x2x4', {'fsdp': 4, 'context': 4}),
  '8b-v5e': Target('qwen3-8b', 'v5e:8x8', {'fsdp': 4, 'context': 16}),
}
PARTS = {'step': ('gradient', 'apply'), 'old': ('old',)}


@contextlib.contextmanager
def as_on_a_tpu() -> Iterator[None]:
  """Code that asks for the platform while it is traced hears 'tpu'."""
  with mock.patch.object(jax, 'default_backend', lambda: 'tpu'):
    yield


class Programs:
  """The Learner's programs for one target, to be lowered by name.

  Args:
    target: where to.
    layers: unrolled; None: all of them, scanned.
    chunk: terms whose logits exist at once on a device.
  """

  def __init__(
    self,
    target: Target,
    *,
    layers: int | None = None,
    chunk: int = 1024,
  ):
    config = Config.preset(
      target.model, param_dtype='float32', remat=target.remat
    )
    if layers is not None:
      config = config.replace(layers=layers, scan_layers=False)
    described = topologies.get_topology_desc(
      platform='tpu', topology_name=target.topology
    )
    sharding = Sharding(make_mesh(described.devices, **target.mesh))
    optimizer = state_lib.make_optimizer(
      state_lib.OptimConfig(moment_dtype=target.moments)
    )
    self._learner = Learner(
      config,
      optimizer,
      forward=ForwardConfig(rows=target.rows, chunk=chunk),
      sharding=sharding,
    )
    places = sharding.of(qwen3.table(config))
    shapes = qwen3.abstract(config)
    self._params = _placed(shapes, places)
    state = jax.eval_shape(lambda p: state_lib.init(p, optimizer), shapes)
    self._state = _placed(state, sharding.like(state, places))
    row = sharding.named(('batch', None))
    kinds = {
      jnp.int32: {
        target.slots: ('tokens', 'depth', 'parent', 'subtree_end'),
        target.terms: ('term_slot', 'term_call'),
      },
      jnp.float32: {
        target.terms: ('rollout_logprob', 'old_logprob', 'advantage', 'weight')
      },
    }
    self._data = {
      name: jax.ShapeDtypeStruct((target.rows, size), dtype, sharding=row)
      for dtype, sizes in kinds.items()
      for size, names in sizes.items()
      for name in names
    }

  def lower(self, part: str) -> Any:
    """'gradient', 'apply' or 'old' as `jax.stages.Lowered`."""
    learner, params = self._learner, self._params
    with as_on_a_tpu():
      if part == 'gradient':
        gradient = learner._policy_gradient.of_one(params)
        return gradient.lower(params, self._data)
      if part == 'apply':
        return learner._apply.lower(self._state, params)
      assert part == 'old', part
      return learner._score._run.lower(params, self._data)

  @property
  def waiting(self) -> int:
    """Bytes per device of the optimiser's state."""
    return _bytes(self._state.opt_state)


def _placed(shapes, places):
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    shapes,
    places,
  )


def _bytes(tree: Any) -> int:
  return sum(
    x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape))
    for x in jax.tree.leaves(tree)
  )


def compiled(
  programs: Programs,
  part: str,
  *,
  results: str | None = None,
  keep: pathlib.Path | None = None,
) -> dict[str, Any]:
  """Compiles one program, or finds it in `results`; see `chips.facts`."""
  lowered = programs.lower(part)
  text = f'{jax.__version__} {lowered.as_text()}'
  key = hashlib.sha256(text.encode()).hexdigest()[:16]
  if results and os.path.exists(results):
    with open(results) as file:
      for line in file:
        if (found := json.loads(line)).get('key') == key:
          return found
  began, cpu = time.monotonic(), time.process_time()
  program = lowered.compile()
  record = {
    'key': key,
    'part': part,
    'compile_s': round(time.monotonic() - began, 1),
    'compile_cpu_s': round(time.process_time() - cpu, 1),
    **chips.facts(program, keep=keep),
  }
  chips.append(results, record)
  return record


def summary(
  target: Target,
  program: str,
  *,
  results: str | None = None,
  hlo: str | None = None,
) -> dict[str, Any]:
  """One row of the table."""
  programs = Programs(target)
  mesh = '-'.join(f'{k}{v}' for k, v in target.mesh.items())
  stem = f'{target.model}.{target.topology}.{mesh}.{target.remat}'
  stem = stem.replace(':', '-')
  parts = {
    part: compiled(
      programs,
      part,
      results=results,
      keep=pathlib.Path(hlo, f'{stem}.{part}.gz') if hlo else None,
    )
    for part in PARTS[program]
  }
  peaks = {
    part: chips.live(facts) + (0 if part == 'apply' else programs.waiting)
    for part, facts in parts.items()
  }
  return {
    'model': target.model,
    'topology': target.topology,
    'mesh': dict(target.mesh),
    'remat': target.remat,
    'moments': target.moments,
    **chips.row(
      parts.values(),
      target.chip,
      devices=target.devices,
      slots=target.rows * target.slots,
      trained=target.rows * target.terms,
      peak=max(peaks.values()),
      # Pairs that a device gets, on average, of the most that it could get.
      filled=1 / target.mesh.get('expert', 1),
    ),
    'peaks_GiB': {k: round(v / 2**30, 2) for k, v in peaks.items()},
    'temp_GiB': {
      k: round(facts['temp'] / 2**30, 2) for k, facts in parts.items()
    },
    'compile_s': {k: facts['compile_s'] for k, facts in parts.items()},
  }


def serving(program: str) -> Iterator[dict[str, Any]]:
  """Rows of engine_tpu.py."""
  import engine_tpu

  for model in engine_tpu.MODELS:
    for chip in engine_tpu.TARGETS:
      yield engine_tpu.report(model, chip, program)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true', help='(always)')
  parser.add_argument('--only', nargs='*', default=list(TARGETS))
  parser.add_argument('--programs', nargs='*', default=['step', 'old'])
  parser.add_argument('--remat')
  parser.add_argument('--moments')
  parser.add_argument('--mesh', help='e.g. expert=4,context=16')
  parser.add_argument('--results', help='JSON lines, read and written')
  parser.add_argument('--hlo', help='folder for the compiled texts')
  args = parser.parse_args()
  changes: dict[str, Any] = {
    k: v for k in ('remat', 'moments') if (v := getattr(args, k))
  }
  if args.mesh:
    pairs = (pair.split('=') for pair in args.mesh.split(','))
    changes['mesh'] = {name: int(size) for name, size in pairs}
  table = []

  def tell(name: str, program: str, row: Mapping[str, Any]) -> None:
    table.append({'target': name, 'program': program, **row})
    chips.append(args.results, table[-1])
    print(json.dumps(table[-1]), file=sys.stderr, flush=True)

  for program in args.programs:
    if program not in PARTS:
      for row in serving(program):
        tell(f'{row["model"]} {row["target"]}', program, row)
      continue
    for name in args.only:
      target = dataclasses.replace(TARGETS[name], **changes)
      try:
        row = summary(target, program, results=args.results, hlo=args.hlo)
      except Exception as error:  # a target that does not compile is a row too
        row = {
          'mesh': dict(target.mesh),
          'remat': target.remat,
          'error': f'{type(error).__name__}: {error}'[:2000],
        }
      tell(name, program, row)
  print(json.dumps({'jax': jax.__version__, 'programs': table}))


if __name__ == '__main__':
  main()
