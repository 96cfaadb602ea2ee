"""Costs of a small program, by hand, from text as XLA's TPU compiler writes it."""

import importlib.util
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).parent
TEXT = """HloModule jit_f, is_scheduled=true

%multiply (a: bf16[8,16], b: bf16[16,4]) -> bf16[8,4] {
  %a = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[16,4]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  ROOT %product = bf16[8,4]{1,0:T(8,128)(2,1)} convolution(%a, %b), dim_labels=bf_io->bf, metadata={op_name="dot"}
}

%put (all: f32[6,8,4], at: s32[], new: bf16[8,4]) -> f32[6,8,4] {
  %all = f32[6,8,4]{2,1,0:T(8,128)} parameter(0)
  %new = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(2)
  %wide = f32[1,8,4]{2,1,0:T(8,128)} convert(%new)
  %at = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  ROOT %into = f32[6,8,4]{2,1,0:T(8,128)} dynamic-update-slice(%all, %wide, %at, %zero, %zero)
}

%take (every: bf16[6,16,4], at.1: s32[]) -> bf16[16,4] {
  %every = bf16[6,16,4]{2,1,0:T(8,128)(2,1)} parameter(0)
  %at.1 = s32[]{:T(128)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  %one = bf16[1,16,4]{2,1,0:T(8,128)(2,1)} dynamic-slice(%every, %at.1, %zero.1, %zero.1), dynamic_slice_sizes={1,16,4}
  ROOT %flat = bf16[16,4]{1,0:T(8,128)(2,1)S(1)} bitcast(%one)
}

%body (carry: (s32[], bf16[8,16], f32[6,8,4], bf16[6,16,4])) -> (s32[], bf16[8,16], f32[6,8,4], bf16[6,16,4]) {
  %carry = (s32[]{:T(128)}, bf16[8,16]{1,0}, f32[6,8,4]{2,1,0}, bf16[6,16,4]{2,1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%carry), index=0
  %step = s32[]{:T(128)} constant(2)
  %next = s32[]{:T(128)} add(%i, %step)
  %x = bf16[8,16]{1,0:T(8,128)(2,1)} get-tuple-element(%carry), index=1
  %out = f32[6,8,4]{2,1,0:T(8,128)} get-tuple-element(%carry), index=2
  %weights = bf16[6,16,4]{2,1,0:T(8,128)(2,1)} get-tuple-element(%carry), index=3
  %weight = bf16[16,4]{1,0:T(8,128)(2,1)S(1)} fusion(%weights, %i), kind=kLoop, calls=%take, backend_config={"window_config":{"estimated_cycles":"10"}}
  %y = bf16[8,4]{1,0:T(8,128)(2,1)} fusion(%x, %weight), kind=kOutput, calls=%multiply, backend_config={"window_config":{"estimated_cycles":"100"}}
  %gathered = bf16[16,4]{1,0:T(8,128)(2,1)} all-gather(%y), channel_id=1, replica_groups=mesh['fsdp'=2,'context'=4] {'fsdp'}, dimensions={0}
  %put.1 = f32[6,8,4]{2,1,0:T(8,128)} fusion(%out, %i, %y), kind=kLoop, calls=%put, backend_config={"window_config":{"estimated_cycles":"1000"}}
  ROOT %tuple.1 = (s32[]{:T(128)}, bf16[8,16]{1,0}, f32[6,8,4]{2,1,0}, bf16[6,16,4]{2,1,0}) tuple(%next, %x, %put.1, %weights)
}

%condition (carry.1: (s32[], bf16[8,16], f32[6,8,4], bf16[6,16,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(6)
  %carry.1 = (s32[]{:T(128)}, bf16[8,16]{1,0}, f32[6,8,4]{2,1,0}, bf16[6,16,4]{2,1,0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%carry.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit), direction=LT
}

ENTRY %main (x.1: bf16[8,16], w.1: bf16[6,16,4]) -> f32[6,8,4] {
  %x.1 = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %w.1 = bf16[6,16,4]{2,1,0:T(8,128)(2,1)} parameter(1)
  %start = s32[]{:T(128)} constant(0)
  %empty = f32[6,8,4]{2,1,0:T(8,128)} custom-call(), custom_call_target="AllocateBuffer", backend_config={"flag_configs":[]}
  %kernel = bf16[8,16]{1,0:T(8,128)(2,1)} custom-call(%x.1), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"cost_estimate":{"flops":"700","transcendentals":"3","bytes_accessed":"50"}}}
  %sorted = bf16[8,16]{1,0:T(8,128)(2,1)} sort(%kernel), dimensions={1}
  %tuple.2 = (s32[]{:T(128)}, bf16[8,16]{1,0}, f32[6,8,4]{2,1,0}, bf16[6,16,4]{2,1,0}) tuple(%start, %sorted, %empty, %w.1)
  %loop = (s32[]{:T(128)}, bf16[8,16]{1,0}, f32[6,8,4]{2,1,0}, bf16[6,16,4]{2,1,0}) while(%tuple.2), condition=%condition, body=%body
  ROOT %result = f32[6,8,4]{2,1,0:T(8,128)} get-tuple-element(%loop), index=2
}
"""


@pytest.fixture(scope='module')
def hlo_program():
  sys.path.insert(0, str(HERE))
  try:
    spec = importlib.util.spec_from_file_location(
      'hlo_program', HERE / 'hlo_program.py'
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules['hlo_program'] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
  finally:
    sys.path.remove(str(HERE))


def test_a_loop_of_three_turns(hlo_program):
  """From 0 below 6 by 2."""
  program = hlo_program.Program(TEXT)
  assert program.runs() == {'main': 1, 'body': 3}
  costs = program.costs()
  assert costs.flops == 3 * 2 * 8 * 16 * 4
  assert (costs.kernel_flops, costs.kernel_bytes) == (700, 50)
  assert costs.cycles == 3 * 1110
  # Of two devices each lacks half of 16 x 4 numbers.
  assert costs.sent == {'all-gather': 3 * 16 * 4 * 2 / 2}
  assert costs.collectives == {'all-gather': 3}
  take = 16 * 4 * 2  # one of six; the result is in VMEM
  multiply = (8 * 16 + 8 * 4) * 2  # the weight is in VMEM
  gather = (8 * 4 + 16 * 4) * 2
  put = 8 * 4 * 2 + 8 * 4 * 4  # in place
  add = 2 * 4  # of the counter: read, and the constant
  add += 4
  sort = 2 * 8 * 16 * 2
  at = 2 * 4  # the counter, read by take and put
  assert costs.bytes == sort + 3 * (take + multiply + gather + put + add + at)
  assert costs.unmodelled == sort + 3 * add


def test_bodies_once(hlo_program):
  program = hlo_program.Program(TEXT)
  assert program.costs(once=True).flops == 2 * 8 * 16 * 4
  assert program.costs(once=True, outer=5).flops == 5 * 2 * 8 * 16 * 4


def test_an_operation_over_several_lines(hlo_program):
  program = hlo_program.Program(
    """ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %k = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"cost_estimate":{"flops":"7","bytes_accessed":"5"},
"notes":"{}"
}}, metadata={op_name="k"}
  ROOT %sorted = f32[8]{0} sort(%k), dimensions={0}
}
"""
  )
  costs = program.costs()
  assert (costs.kernel_flops, costs.kernel_bytes) == (7, 5)
  assert costs.bytes == 2 * 8 * 4


def test_a_scatter_writes_in_place(hlo_program):
  """2 of 6 rows of 4 numbers, alone and inside a fusion."""
  program = hlo_program.Program(
    """%put (all: f32[6,4], at: s32[2], new: f32[2,4]) -> f32[6,4] {
  %all = f32[6,4]{1,0} parameter(0)
  %at = s32[2]{0} parameter(1)
  %new = f32[2,4]{1,0} parameter(2)
  ROOT %into = f32[6,4]{1,0} scatter(%all, %at, %new), to_apply=%second
}

ENTRY %main (x: f32[6,4], i: s32[2], y: f32[2,4]) -> f32[6,4] {
  %x = f32[6,4]{1,0} parameter(0)
  %i = s32[2]{0} parameter(1)
  %y = f32[2,4]{1,0} parameter(2)
  %z = f32[6,4]{1,0} scatter(%x, %i, %y), to_apply=%second
  ROOT %f = f32[6,4]{1,0} fusion(%z, %i, %y), kind=kCustom, calls=%put
}
"""
  )
  update, places = 2 * 4 * 4, 2 * 4
  assert program.costs().bytes == 2 * update + (update + places + update)


def test_branches_that_are_not_taken(hlo_program):
  program = hlo_program.Program(
    """%no (a: f32[8]) -> f32[8] {
  ROOT %a = f32[8]{0} parameter(0)
}

%yes (b: f32[8]) -> f32[8] {
  %b = f32[8]{0} parameter(0)
  ROOT %sorted = f32[8]{0} sort(%b), dimensions={0}
}

ENTRY %main (p: pred[], x: f32[8]) -> f32[8] {
  %p = pred[] parameter(0)
  %x = f32[8]{0} parameter(1)
  ROOT %c = f32[8]{0} conditional(%p, %x, %x), branch_computations={%no, %yes}
}
"""
  )
  assert program.runs() == {'main': 1, 'no': 1, 'yes': 1}
  assert program.costs().bytes == 2 * 8 * 4
  assert program.runs(untaken=True) == {'main': 1, 'no': 1}
  assert program.costs(untaken=True).bytes == 0


def test_a_ragged_exchange_sends_what_its_operand_holds(hlo_program):
  """2 rows of 4 numbers into room for 8 rows, four devices."""
  program = hlo_program.Program(
    """ENTRY %main (x: f32[2,4], r: f32[8,4], n: s32[4]) -> f32[8,4] {
  %x = f32[2,4]{1,0} parameter(0)
  %r = f32[8,4]{1,0} parameter(1)
  %n = s32[4]{0} parameter(2)
  ROOT %e = f32[8,4]{1,0} ragged-all-to-all(%x, %r, %n, %n, %n, %n), replica_groups={{0,1,2,3}}
}
"""
  )
  assert program.costs().sent == {'ragged-all-to-all': 2 * 4 * 4 * 3 / 4}


def test_an_all_reduce_that_keeps_a_part(hlo_program):
  """8 numbers summed over two devices, 4 of them kept on each: 4 are sent."""
  program = hlo_program.Program(
    """%all-reduce-scatter.1 (p: f32[8]) -> f32[4] {
  %p = f32[8]{0} parameter(0)
  %r = f32[8]{0} all-reduce(%p), replica_groups={{0,1}}, to_apply=%add
  %i = s32[] constant(0)
  ROOT %s = f32[4]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={4}
}

ENTRY %main (x: f32[8]) -> f32[4] {
  %x = f32[8]{0} parameter(0)
  ROOT %f = f32[4]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
}
"""
  )
  assert program.costs().sent == {'reduce-scatter': 4 * 4}


@pytest.mark.parametrize(
  ('rest', 'left', 'right', 'out', 'flops'),
  [
    # 5 products of [8, 16] and [16, 4], the batch as a spatial dimension that is
    # spread so far that every window meets one of them.
    (
      'window={size=5 stride=4 pad=0_0 lhs_dilate=5}, dim_labels=0bf_0io->0bf',
      (5, 8, 16),
      (5, 16, 4),
      (5, 8, 4),
      2 * 5 * 8 * 16 * 4,
    ),
    # Heads as places: [8, 16] x [16, 3 heads, 4]; 3 of 9 windows meet a number.
    (
      'window={size=3 pad=2_2 rhs_reversal=1}, dim_labels=bf0_i0o->b0f',
      (8, 16, 1),
      (16, 3, 4),
      (8, 3, 4),
      2 * 8 * 16 * 3 * 4,
    ),
    # The other way: 3 heads of 4 are summed.
    (
      'window={size=3}, dim_labels=b0f_0io->bf0',
      (8, 3, 4),
      (3, 4, 16),
      (8, 16, 1),
      2 * 8 * 16 * 3 * 4,
    ),
  ],
)
def test_matmuls_that_a_tpu_writes_as_convolutions(
  hlo_program, rest, left, right, out, flops
):
  assert hlo_program._convolution(rest, left, right, out) == flops
