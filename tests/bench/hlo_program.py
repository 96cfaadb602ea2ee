"""What one run of a compiled TPU program costs a device, read from its HLO text.

XLA's own `cost_analysis` counts the body of a loop once. Here each computation
is counted as often as it runs: the trip count of a `while` stands in its
condition (loops made by `lax.scan` count from 0 by 1). Of each operation that
runs:

  flops     of matmuls (convolutions on a TPU, inside fusions), 2 per product
            of two numbers; what is padding of a batch dimension is not counted
  kernel    a Pallas kernel's own estimate (flops, bytes); those without one are
            only counted (`unknown_kernels`)
  grouped   the same of matmuls of rows grouped by expert, which XLA and others
            estimate as if every row of their buffers were used
  bytes     without kernels, read from and written to HBM: operands and results, less those in
            VMEM (memory space 1); of an operand that is only sliced or gathered
            from, what is taken; of one that is updated in place, the update
  cycles    XLA's estimate for each fusion and copy that it has one for; the
            bytes of the others, but for collectives and prefetches, are
            `unmodelled`
  sent      collectives, see hlo.py
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import hlo

_HEAD = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{')
_OP = re.compile(r'^\s+(ROOT )?%?([\w.\-]+) = (.*)$')
_SHAPE = re.compile(r'(\w+)\[([\d,]*)\](\{[^}]*\})?')
_NAME = re.compile(r'%([\w.\-]+)')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# An operation without a model (on a sparse core) says about 2^63 cycles.
_UNKNOWN = 10**15
_GROUPED = re.compile(r'ragged-dot|gmm')
_KERNEL = 'custom_call_target="tpu_custom_call"'
# A custom call that moves nothing.
_ALLOCATED = 'custom_call_target="AllocateBuffer"'
_SLICES = ('dynamic-slice', 'slice', 'gather')
# Operations that write part of their first operand in place, and which operand
# is that part. (Where XLA cannot write in place it copies first, in an
# operation of its own.)
_UPDATES = {'dynamic-update-slice': 1, 'scatter': 2}
_CALLING = ('call', 'conditional', 'call-start', 'async-start')
_FREE = (
  *_CALLING, 'call-update', 'async-update',
  'parameter', 'constant', 'get-tuple-element', 'tuple', 'bitcast', 'while',
  'partition-id', 'after-all', 'iota', 'opt-barrier',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Op:
  """One operation.

  Attributes:
    name, kind: of the operation, e.g. 'fusion'.
    shapes: results, (dtype, dimensions, in HBM) each.
    operands: names.
    rest: the text after the operands.
    line: all of it.
    root: whether it is its computation's result.
  """

  name: str
  kind: str
  shapes: tuple[tuple[str, tuple[int, ...], bool], ...]
  operands: tuple[str, ...]
  rest: str
  line: str
  root: bool


@dataclasses.dataclass
class Costs:
  """Sums over all that runs; per device."""

  flops: float = 0.0
  kernel_flops: float = 0.0
  kernel_bytes: float = 0.0
  grouped_flops: float = 0.0
  grouped_bytes: float = 0.0
  bytes: float = 0.0
  cycles: float = 0.0
  unmodelled: float = 0.0
  unknown_kernels: int = 0
  sent: dict[str, float] = dataclasses.field(default_factory=dict)
  collectives: dict[str, int] = dataclasses.field(default_factory=dict)


class Program:
  """A parsed program."""

  def __init__(self, text: str):
    self.computations: dict[str, dict[str, Op]] = {}
    self.entry = ''
    current: dict[str, Op] | None = None
    for line in _logical(text):
      if head := _HEAD.match(line):
        current = self.computations[head[2]] = {}
        if head[1]:
          self.entry = head[2]
      elif line.startswith('}'):
        current = None
      elif current is not None and (found := _OP.match(line)):
        op = _parsed(found[2], found[3], line, bool(found[1]))
        current[op.name] = op
    if not self.entry:
      raise ValueError('wanted HLO text with an ENTRY computation')

  def runs(
    self, *, once: bool = False, untaken: bool = False, outer: int = 1
  ) -> dict[str, int]:
    """Computation -> how often it runs (fused ones are not listed).

    Args:
      once: each loop's body once, as XLA's own analysis has it.
      outer: with `once`, how often loops of the entry computation run.
      untaken: of each conditional the first branch only, the one that
        `jax.lax.cond` takes when its predicate is false; else all branches.

    Raises:
      ValueError: a loop's trips cannot be counted (not with `once`).
    """
    counts: collections.Counter[str] = collections.Counter()
    self._visit(self.entry, 1, once, counts, untaken, outer)
    return dict(counts)

  def costs(self, **options: Any) -> Costs:
    """The sums; for the options see `runs`."""
    return self._sum(self.runs(**options))

  def loops(self) -> list[tuple[int, Costs]]:
    """(trips, costs of all trips) of each loop of the entry computation."""
    found = []
    for op in self.computations[self.entry].values():
      if op.kind == 'while':
        trips = self._trips(self.entry, op)
        counts: collections.Counter[str] = collections.Counter()
        self._visit(self._called(op, 'body'), trips, False, counts)
        found.append((trips, self._sum(counts)))
    return found

  # ---- inside ----

  def _visit(self, name, times, once, counts, untaken=False, outer=1) -> None:
    counts[name] += times
    for op in self.computations[name].values():
      if op.kind == 'while':
        trips = outer if once else self._trips(name, op)
        body = self._called(op, 'body')
        self._visit(body, times * trips, once, counts, untaken)
      elif op.kind in _CALLING:
        inside = self._all_called(op)
        if untaken and op.kind == 'conditional':
          inside = inside[:1]
        for inner in inside:
          self._visit(inner, times, once, counts, untaken)

  def _sum(self, runs: Mapping[str, int]) -> Costs:
    total = Costs()
    for name, times in runs.items():
      ops = self.computations[name]
      for op in ops.values():
        total.flops += times * self._flops(name, op)
        for kind, count, size in self._sent(op, ops):
          total.sent[kind] = total.sent.get(kind, 0.0) + times * size
          total.collectives[kind] = (
            total.collectives.get(kind, 0) + times * count
          )
        if kernel := _estimate(op):
          flops, size = times * kernel[0], times * kernel[1]
          if _GROUPED.search(op.line):
            total.grouped_flops += flops
            total.grouped_bytes += size
          else:
            total.kernel_flops += flops
            total.kernel_bytes += size
          continue
        if _KERNEL in op.rest:
          total.unknown_kernels += times
          continue
        size = self._bytes(name, op)
        total.bytes += times * size
        cycles = _CYCLES.search(op.rest)
        if cycles and int(cycles[1]) < _UNKNOWN:
          total.cycles += times * int(cycles[1])
        elif not op.kind.endswith('-start') and op.kind not in hlo.SENT:
          total.unmodelled += times * size
    return total

  def _sent(self, op: Op, ops: Mapping[str, Op]):
    """(kind, how many, bytes sent) of an operation."""
    name, lines = '', [op.line]
    if op.kind == 'fusion':
      name = self._called(op)
      lines = [inner.line for inner in self.computations[name].values()]
    for kind, (count, size) in hlo.collectives(lines, 0).items():
      if kind == 'ragged-all-to-all':
        size *= _share(op, ops)
      # An all-reduce of which each device keeps its part: half of the way.
      if kind == 'all-reduce' and name.startswith('all-reduce-scatter'):
        kind, size = 'reduce-scatter', size / 2
      yield kind, count, size

  def _called(self, op: Op, role: str = 'calls') -> str:
    found = re.search(rf'\b{role}=%([\w.\-]+)', op.rest)
    if found is None:
      raise ValueError(f'no {role} in {op.line[:200]}')
    return found[1]

  def _all_called(self, op: Op) -> list[str]:
    found = re.findall(r'\b(?:calls|to_apply)=%([\w.\-]+)', op.rest)
    if branches := re.search(r'branch_computations=\{([^}]*)\}', op.rest):
      found += _NAME.findall(branches[1])
    return found

  def _trips(self, name: str, loop: Op) -> int:
    """How often a loop runs: i = start; while i < limit: i += step."""
    condition = self.computations[self._called(loop, 'condition')]
    (test,) = (op for op in condition.values() if op.root)
    if test.kind == 'fusion':
      condition = self.computations[self._called(test)]
      (test,) = (op for op in condition.values() if op.root)
    limits = [
      int(found[1])
      for op in self.computations[self._called(loop, 'condition')].values()
      if (found := re.search(r' constant\((\d+)\)', op.line))
    ]
    indices = [
      int(found[1])
      for op in self.computations[self._called(loop, 'condition')].values()
      if (found := re.search(r'get-tuple-element\(.*index=(\d+)', op.line))
    ]
    if 'direction=LT' not in test.rest or len(limits) != 1 or len(indices) != 1:
      raise ValueError(f'cannot count the loop {loop.line[:200]}')
    body = self._called(loop, 'body')
    step = self._number(body, self._result(body, indices[0]))
    ops = self.computations[name]
    given = ops[loop.operands[0]]
    start = 0
    if given.kind == 'tuple':
      start = self._number(name, ops[given.operands[indices[0]]])
    return -(-(limits[0] - start) // step)

  def _result(self, computation: str, index: int) -> Op:
    ops = self.computations[computation]
    (root,) = (op for op in ops.values() if op.root)
    return ops[root.operands[index]]

  def _number(self, computation: str, op: Op) -> int:
    """Sum of the constants that `op` adds to what its computation is given."""
    ops = self.computations[computation]
    if found := re.search(r' constant\((-?\d+)\)', op.line):
      return int(found[1])
    if op.kind in ('add', 'copy', 'bitcast'):
      return sum(self._number(computation, ops[n]) for n in op.operands)
    if op.kind in ('copy-done', 'copy-start'):
      return self._number(computation, ops[op.operands[0]])
    if op.kind == 'fusion':
      inner = self._called(op)
      (root,) = (x for x in self.computations[inner].values() if x.root)
      return self._number(inner, root)
    if op.kind in ('get-tuple-element', 'parameter'):
      return 0
    raise ValueError(f'no simple counter: {op.line[:200]}')

  def _flops(self, computation: str, op: Op) -> float:
    if op.kind == 'fusion':
      name = self._called(op)
      return sum(
        self._flops(name, inner) for inner in self.computations[name].values()
      )
    if op.kind not in ('convolution', 'dot'):
      return 0.0
    ops = self.computations[computation]
    left, right = (ops[name].shapes[0][1] for name in op.operands[:2])
    out = op.shapes[0][1]
    if op.kind == 'dot':
      (axes,) = re.findall(r'lhs_contracting_dims=\{([\d,]*)\}', op.rest)
      inner = math.prod(left[int(a)] for a in axes.split(',') if a)
      return 2.0 * math.prod(out) * inner
    return _convolution(op.rest, left, right, out)

  def _bytes(self, computation: str, op: Op) -> float:
    if op.kind in _FREE or op.kind.endswith('-done') or _ALLOCATED in op.rest:
      return 0.0
    ops = self.computations[computation]
    if op.kind in _UPDATES:
      return 2.0 * _size(ops[op.operands[_UPDATES[op.kind]]].shapes)
    if op.kind in _SLICES:
      return 2.0 * _size(op.shapes)
    if op.kind.endswith('-start'):
      # (operand, result, ...): both, and not twice.
      return float(_size(op.shapes))
    if op.kind == 'fusion':
      return self._fused(self._called(op), op, ops)
    read = sum(_size(ops[n].shapes) for n in op.operands if n in ops)
    return float(read + _size(op.shapes))

  def _fused(self, name: str, op: Op, ops: dict[str, Op]) -> float:
    inner = self.computations[name]
    users: dict[str, list[Op]] = collections.defaultdict(list)
    for other in inner.values():
      for operand in other.operands:
        users[operand].append(other)
    total = 0.0
    parameters = sorted(
      (int(re.search(r'parameter\((\d+)\)', p.line)[1]), p)  # type: ignore[index]
      for p in inner.values()
      if p.kind == 'parameter'
    )
    for index, parameter in parameters:
      source = ops.get(op.operands[index]) if index < len(op.operands) else None
      shapes = source.shapes if source else parameter.shapes
      if not any(hbm for *_, hbm in shapes):
        continue
      total += self._taken(parameter, users, _size(shapes))
    (root,) = (x for x in inner.values() if x.root)
    results = [root]
    if root.kind == 'tuple':
      results = [inner[n] for n in root.operands]
    for result, shape in zip(results, op.shapes, strict=False):
      while result.kind == 'bitcast':
        result = inner[result.operands[0]]
      if result.kind in _UPDATES and shape[2]:
        update = inner[result.operands[_UPDATES[result.kind]]]
        total += _size(update.shapes, anywhere=True)
      else:
        total += _size((shape,))
    return total

  def _taken(self, value: Op, users: dict[str, list[Op]], whole: int) -> float:
    """Bytes of `value` that its users inside a fusion read."""
    taken = 0.0
    for user in users[value.name]:
      if user.kind in _SLICES and user.operands[0] == value.name:
        taken += _size(user.shapes, anywhere=True)
      elif user.kind in _UPDATES and user.operands[0] == value.name:
        pass
      elif user.kind == 'bitcast':
        taken += self._taken(user, users, whole)
      else:
        return float(whole)
    return min(taken, float(whole))


def _logical(text: str) -> Iterable[str]:
  """Lines, with those of an operation that is written over several joined.

  (Kernels may carry JSON with line breaks in it.)
  """
  whole: list[str] = []
  for line in text.splitlines():
    if _OP.match(line) or _HEAD.match(line) or re.match(r'\}(,|$)', line):
      if whole:
        yield ''.join(whole)
      whole = [line]
    else:
      whole.append(line)
  yield ''.join(whole)


def _share(op: Op, ops: Mapping[str, Op]) -> float:
  """What part of its larger array a ragged all-to-all sends, on average.

  A device sends no more than its operand holds and gets no more than its result
  holds; one of the two has room for the worst case, so the mean over devices is
  the smaller.
  """
  given, result = (_size(ops[n].shapes, anywhere=True) for n in op.operands[:2])
  seen = max(given, result) if op.kind.endswith('-start') else result
  return min(given, result) / seen


def _parsed(name: str, text: str, line: str, root: bool) -> Op:
  shape, rest = _split_shape(text)
  kind, _, rest = rest.partition('(')
  inside = _until_closed('(' + rest)
  rest = rest[len(inside) - 1 :]
  return Op(
    name, kind.strip(), _shapes(shape), tuple(_NAME.findall(inside)), rest,
    line, root,
  )  # fmt: skip


def _split_shape(text: str) -> tuple[str, str]:
  """'(f32[2]{0}, s32[]) add(...' -> the shape, and what follows it."""
  if not text.startswith('('):
    shape, _, rest = text.partition(' ')
    return shape, rest
  shape = _until_closed(text)
  return shape, text[len(shape) + 1 :]


def _until_closed(text: str) -> str:
  """'(a (b)) c' -> '(a (b))'."""
  depth = 0
  for i, c in enumerate(text):
    depth += (c == '(') - (c == ')')
    if not depth:
      return text[: i + 1]
  raise ValueError(f'unbalanced: {text[:80]}')


def _shapes(text: str) -> tuple[tuple[str, tuple[int, ...], bool], ...]:
  return tuple(
    (
      dtype,
      tuple(int(d) for d in dims.split(',') if d),
      not re.search(r'S\([1-9]', layout),
    )
    for dtype, dims, layout in _SHAPE.findall(text)
    if dtype in hlo.BYTES
  )


def _size(
  shapes: Iterable[tuple[str, tuple[int, ...], bool]], anywhere: bool = False
) -> int:
  """Bytes of those of the shapes that are in HBM."""
  return sum(
    hlo.BYTES[dtype] * math.prod(dims)
    for dtype, dims, hbm in shapes
    if hbm or anywhere
  )


def _convolution(rest, left, right, out) -> float:
  (a, b, c) = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', rest).groups()
  window = re.search(r'window=\{([^}]*)\}', rest)
  fields = dict(f.split('=', 1) for f in (window[1].split() if window else ()))
  spatial = [x for x in c if x.isdigit()]
  get = lambda name, i, default: (  # noqa: E731
    fields[name].split('x')[i] if name in fields else default
  )
  total = 2.0 * out[c.index('b')] * out[c.index('f')] * right[b.index('i')]
  for i, label in enumerate(spatial):
    low = get('pad', i, '0_0').split('_')[0]
    total *= _valid(
      left[a.index(label)],
      int(get('size', i, 1)),
      out[c.index(label)],
      int(get('stride', i, 1)),
      int(low),
      int(get('lhs_dilate', i, 1)),
      int(get('rhs_dilate', i, 1)),
    )
  # (The kernel's input features are already those of one feature group.)
  if groups := re.search(r'batch_group_count=(\d+)', rest):
    total /= int(groups[1])
  return total


@functools.lru_cache(maxsize=4096)
def _valid(size, window, out, stride, low, spread, hole) -> int:
  """Pairs (output place, window place) that meet a number, not padding."""
  extent = (size - 1) * spread + 1
  return sum(
    0 <= (at := o * stride + w * hole - low) < extent and not at % spread
    for o in range(out)
    for w in range(window)
  )


def _estimate(op: Op) -> tuple[float, float] | None:
  """(flops, bytes) of a Pallas kernel, or None."""
  if op.kind != 'custom-call' or 'cost_estimate' not in op.rest:
    return None
  found = re.search(r'"?cost_estimate"?:\s*(\{[^}]*\})', op.rest)
  fields = json.loads(found[1]) if found else {}
  return float(fields.get('flops', 0)), float(fields.get('bytes_accessed', 0))
