"""Collectives of a compiled program, and the bytes that a device sends for them.

XLA names the result of a collective and the devices that take part. With n
devices in a group and a result of S bytes on each, a ring sends per device

  all-gather            S (n - 1) / n      (S is the gathered array)
  reduce-scatter        S (n - 1)          (S is the part that stays)
  all-reduce            2 S (n - 1) / n
  all-to-all            S (n - 1) / n
  ragged-all-to-all     S (n - 1) / n      at most: buffers may be part full
  collective-permute    S

A loop's body stands once in the text, so it is counted once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

BYTES = {
  'pred': 1, 's8': 1, 'u8': 1, 'f8e4m3fn': 1, 'f8e5m2': 1,
  'bf16': 2, 'f16': 2, 's16': 2, 'u16': 2,
  'f32': 4, 's32': 4, 'u32': 4, 'f64': 8, 's64': 8, 'u64': 8,
}  # fmt: skip
SENT = {
  'all-gather': lambda size, n: size * (n - 1) / n,
  'reduce-scatter': lambda size, n: size * (n - 1),
  'all-reduce': lambda size, n: 2 * size * (n - 1) / n,
  'all-to-all': lambda size, n: size * (n - 1) / n,
  'ragged-all-to-all': lambda size, n: size * (n - 1) / n,
  'collective-permute': lambda size, n: size,
}
# The longer names first: 'all-to-all' ends 'ragged-all-to-all'.
_KINDS = '|'.join(sorted(SENT, key=len, reverse=True))
_OP = re.compile(rf' = (.*?) ({_KINDS})(-start)?\((.*)')
_SHAPE = re.compile(r'(\w+)\[([\d,]*)\]')
_LISTED = re.compile(r'replica_groups=\{\{([\d,]*)\}')
_TILED = re.compile(r'replica_groups=\[(\d+),(\d+)\]')
# replica_groups=mesh['fsdp'=4,'context'=16] {'context'}: along those axes.
_NAMED = re.compile(r'replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}')


def _size(dtype: str, dims: str) -> int:
  return BYTES.get(dtype, 4) * math.prod(int(d) for d in dims.split(',') if d)


def _group(rest: str, devices: int) -> int:
  if found := _LISTED.search(rest):
    return found[1].count(',') + 1
  if found := _TILED.search(rest):
    return int(found[2])
  if found := _NAMED.search(rest):
    sizes = dict(re.findall(r"'([^']*)'=(\d+)", found[1]))
    return math.prod(
      int(part or sizes[name])
      for name, part in re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", found[2])
    )
  return devices


def collectives(
  lines: Iterable[str], devices: int
) -> dict[str, tuple[int, float]]:
  """Kind -> (how many, bytes sent per device).

  Args:
    lines: of the HLO text after partitioning.
    devices: of the mesh; the size of a group where the text names none.
  """
  found: dict[str, tuple[int, float]] = {}
  for line in lines:
    op = _OP.search(line)
    if op is None:
      continue
    shapes, kind, start, rest = op.groups()
    sizes = [_size(*shape) for shape in _SHAPE.findall(shapes)]
    if start and kind in ('all-gather', 'all-to-all', 'ragged-all-to-all'):
      size = max(sizes)  # (operand, result, ...)
    elif start and kind == 'reduce-scatter':
      size = min(s for s in sizes if s > 4)
    elif start and kind == 'collective-permute':
      size = sizes[0]
    else:
      size = sum(sizes)
    n = 2 if kind == 'collective-permute' else _group(rest, devices)
    count, total = found.get(kind, (0, 0.0))
    found[kind] = count + 1, total + (SENT[kind](size, n) if n > 1 else 0.0)
  return found
