"""TPU chips, and what a compiled program says of one of them.

Used for our programs (tpu_compile.py) and for those of others (peers/).
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import hlo_program


@dataclasses.dataclass(frozen=True)
class Chip:
  """From the public data sheets.

  Attributes:
    hbm: bytes.
    flops: bf16 per second.
    bandwidth: HBM bytes per second.
    links: bytes per second that all links of a chip send together.
    clock: cycles per second (flops = cores x units x side^2 x 2 x clock).
  """

  hbm: float
  flops: float
  bandwidth: float
  links: float
  clock: float


CHIPS = {
  'v5p': Chip(95 * 2**30, 459e12, 2.765e12, 600e9, 1.75e9),
  'v5e': Chip(16 * 2**30, 197e12, 0.819e12, 200e9, 1.5e9),
  'v6e': Chip(32 * 2**30, 918e12, 1.64e12, 448e9, 1.75e9),
}


def chip_of(topology: str) -> Chip:
  """The chip of a topology such as 'v5p:4x4x4'."""
  return CHIPS[topology.split(':')[0]]


COUNTED: Mapping[str, Mapping[str, Any]] = {'costs': {}, 'once': {'once': True}}


def facts(
  compiled: Any,
  *,
  keep: pathlib.Path | None = None,
  counted: Mapping[str, Mapping[str, Any]] = COUNTED,
) -> dict[str, Any]:
  """What a compiled program says of itself; bytes and FLOPs per device.

  Args:
    compiled: `jax.stages.Compiled`.
    keep: file for its HLO text (gzip).
    counted: name -> options of `hlo_program.Program.runs`.
  """
  memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
  text = compiled.as_text()
  if keep is not None:
    keep.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(keep, 'wt') as file:
      file.write(text)
  program = hlo_program.Program(text)
  return {
    'arguments': memory.argument_size_in_bytes,
    'outputs': memory.output_size_in_bytes,
    'aliased': memory.alias_size_in_bytes,
    'temp': memory.temp_size_in_bytes,
    'xla_once': {
      name: cost.get(name)
      for name in ('flops', 'bytes accessed', 'optimal_seconds')
    },
    **{
      name: dataclasses.asdict(program.costs(**options))
      for name, options in counted.items()
    },
  }


def live(part: Mapping[str, Any]) -> int:
  """Bytes of one program while it runs."""
  return part['arguments'] + part['temp'] + part['outputs'] - part['aliased']


def row(
  parts: Iterable[Mapping[str, Any]],
  chip: Chip,
  *,
  devices: int,
  slots: int,
  trained: int,
  peak: float,
  filled: float = 1.0,
) -> dict[str, Any]:
  """One line of the table: programs that run one after the other.

  `modelled_s` is XLA's cycles, kernels by the roofline of their estimate, the
  HBM bytes of what has neither, and collectives at the rate of all links,
  nothing overlapping; `floor_s` the
  largest of FLOPs / peak, HBM bytes / bandwidth and bytes sent / links.

  Args:
    parts: see `facts`.
    chip: of each device.
    devices: of the slice.
    slots, trained: tokens of the step, and those with a loss term.
    peak: bytes of a device at the worst moment.
    filled: of the rows of grouped matmuls, the share that is used: buffers have
      room for the worst case, and kernels pass over what is empty.
  """
  costs = [part['costs'] for part in parts]
  add = lambda name: sum(c[name] for c in costs)  # noqa: E731
  sent: dict[str, float] = {}
  for c in costs:
    for kind, size in c['sent'].items():
      sent[kind] = sent.get(kind, 0.0) + size
  wire = sum(sent.values())
  kernels = [
    (add('kernel_flops'), add('kernel_bytes')),
    tuple(filled * add(f'grouped_{x}') for x in ('flops', 'bytes')),
  ]
  matmul = add('flops') + kernels[1][0]
  flops = matmul + kernels[0][0]
  size = add('bytes') + sum(b for _, b in kernels)
  times = {
    'cycles_s': add('cycles') / chip.clock,
    'kernels_s': sum(
      max(f / chip.flops, b / chip.bandwidth) for f, b in kernels
    ),
    'unmodelled_s': add('unmodelled') / chip.bandwidth,
    'links_s': wire / chip.links,
  }
  modelled = sum(times.values())
  return {
    'devices': devices,
    'slots': slots,
    'trained_tokens': trained,
    'peak_GiB': round(peak / 2**30, 2),
    'hbm_GiB': chip.hbm / 2**30,
    'margin_GiB': round((chip.hbm - peak) / 2**30, 2),
    'fits': peak < chip.hbm,
    'matmul_TFLOP_per_device': matmul / 1e12,
    'attention_TFLOP_per_device': kernels[0][0] / 1e12,
    'GFLOP_per_slot_without_attention': matmul * devices / slots / 1e9,
    'GFLOP_per_trained_token': flops * devices / trained / 1e9,
    'hbm_MB_per_trained_token': size * devices / trained / 1e6,
    'sent_GB_per_device': {k: round(v / 1e9, 3) for k, v in sent.items()},
    'sent_KB_per_slot': wire * devices / slots / 1e3,
    'modelled_s': modelled,
    **times,
    'floor_s': max(flops / chip.flops, size / chip.bandwidth, times['links_s']),
    'modelled_use_of_peak': flops / chip.flops / modelled,
    'unknown_kernels': add('unknown_kernels'),
  }


def append(path: str | None, record: Mapping[str, Any]) -> None:
  """Adds one JSON line to a file, so that a stop loses nothing."""
  if path:
    with open(path, 'a') as file:
      file.write(json.dumps(record) + '\n')
