"""Bytes sent, by hand, from lines as XLA writes them."""

import importlib.util
import pathlib

import pytest

_spec = importlib.util.spec_from_file_location(
  'hlo', pathlib.Path(__file__).with_name('hlo.py')
)
hlo = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hlo)


@pytest.mark.parametrize(
  ('line', 'kind', 'sent'),
  [
    # 8 x 16 bf16 gathered from 4: each gets the other three quarters.
    (
      '%a = bf16[8,16]{1,0} all-gather(%p), replica_groups={{0,1,2,3},{4,5,6,7}}',
      'all-gather',
      8 * 16 * 2 * 3 / 4,
    ),
    (
      '%a = (bf16[2,16]{1,0}, bf16[8,16]{1,0}) all-gather-start(bf16[2,16] %p),'
      ' replica_groups=[2,4]<=[8], dimensions={0}',
      'all-gather',
      8 * 16 * 2 * 3 / 4,
    ),
    # A quarter of 32 numbers stays; three quarters are sent on.
    (
      '%r = f32[8]{0} reduce-scatter(%p), replica_groups=[2,4]<=[4,2]T(1,0)',
      'reduce-scatter',
      8 * 4 * 3,
    ),
    # No groups: all 8 devices. Two arrays at once.
    (
      '%r = (f32[8]{0}, f32[2]{0}) all-reduce(%p, %q), to_apply=%add',
      'all-reduce',
      2 * 10 * 4 * 7 / 8,
    ),
    (
      '%t = s32[4,2]{1,0} ragged-all-to-all(%p), replica_groups={{0,1}}',
      'ragged-all-to-all',
      4 * 2 * 4 / 2,
    ),
    (
      '%c = (f32[6]{0}, f32[6]{0}, u32[], u32[]) collective-permute-start(%p),'
      ' source_target_pairs={{0,1},{1,0}}',
      'collective-permute',
      24,
    ),
    # A group of one sends nothing.
    ('%r = f32[8]{0} all-reduce(%p), replica_groups={{0},{1}}', 'all-reduce', 0),
  ],
)  # fmt: skip
def test_one_line(line, kind, sent):
  assert hlo.collectives([line], 8) == {kind: (1, sent)}


def test_what_is_no_collective_is_left_out():
  lines = [
    '%d = f32[8]{0} all-gather-done(%a)',
    '%f = f32[8]{0} fusion(%all-reduce.1), kind=kLoop',
    'ENTRY %main {',
  ]
  assert hlo.collectives(lines, 8) == {}


def test_sums_by_kind():
  line = '%a = f32[4]{0} all-to-all(%p), replica_groups={{0,1}}'
  assert hlo.collectives([line, line], 2) == {'all-to-all': (2, 16.0)}
