"""Dealing blocks of a row to devices, and attention over them."""

import json
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from clawjax import trie
from clawjax.kernels import context, tree_attention
from clawjax.types import Call, Sample

HERE = pathlib.Path(__file__).parent


def test_blocks_are_dealt_evenly_and_all_of_them(ends):
  end = ends(np.random.default_rng(0), 3, 64)
  order = context.deal(end, parts=4, block=4)
  assert np.sort(order, axis=1).tolist() == [list(range(16))] * 3
  for row in order.reshape(3, 4, 4):
    assert (np.diff(row, axis=1) > 0).all()  # ascending on each device


def test_a_chain_is_dealt_by_hand():
  """Causal blocks cost 1 2 3 4: the heaviest and the lightest go together."""
  order = context.deal(np.full((1, 8), 8, np.int32), parts=2, block=2)
  assert order.tolist() == [[0, 3, 1, 2]]


def test_rows_that_cannot_be_dealt_are_refused():
  with pytest.raises(ValueError, match='2 x 3'):
    context.deal(np.full((1, 8), 8, np.int32), parts=2, block=3)


@pytest.mark.parametrize('impl', ['chunked', 'pallas_interpret'])
def test_some_queries_of_a_row(ends, impl):
  """Blocks 3 and 1 of the queries: forward and backward as in the whole row."""
  import jax

  rng = np.random.default_rng(1)
  B, T, block = 2, 64, 16
  draw = lambda n, size=T: jnp.asarray(  # noqa: E731
    rng.normal(size=(B, size, n, 8)), jnp.float32
  )
  q, k, v, d_out = draw(4), draw(2), draw(2), draw(4, 2 * block)
  end = jnp.asarray(ends(rng, B, T))
  starts = jnp.asarray([[48, 16]] * B, jnp.int32)
  pick = np.r_[48:64, 16:32]

  def some(q, k, v):
    return tree_attention(q, k, v, end, impl=impl, query_starts=starts)

  def whole(q, k, v):
    full = jnp.zeros((B, T, 4, 8)).at[:, pick].set(q)
    return tree_attention(full, k, v, end, impl='naive')[:, pick]

  def run(f):
    out, back = jax.vjp(f, q[:, pick], k, v)
    return out, *back(d_out)

  for got, want in zip(run(some), run(whole), strict=True):
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_reordered_rows_name_the_same_tokens():
  """Slots in dealt order: each term has its token and its parent's token."""
  calls = [
    Call(
      'c0', 'r', 0, np.arange(20, dtype=np.int32),
      Sample(np.arange(30, 36, dtype=np.int32), np.zeros(6, np.float32), 'stop'),
    )
  ]  # fmt: skip
  batch = trie.pack([trie.build(calls)], row_tokens=32, row_buckets=(32,))
  order = context.deal(batch.subtree_end, parts=2, block=4)
  moved = batch.reordered(order)
  assert (moved.tokens != batch.tokens).any()
  assert (moved.subtree_end == batch.subtree_end).all()
  for e in np.flatnonzero(batch.mask[0]):
    slot, at = batch.term_slot[0, e], moved.term_slot[0, e]
    assert moved.tokens[0, at] == batch.tokens[0, slot]
    assert moved.depth[0, at] == batch.depth[0, slot]
    assert (
      moved.tokens[0, moved.parent[0, at]]
      == batch.tokens[0, batch.parent[0, slot]]
    )


def test_eight_devices_equal_one():
  done = subprocess.run(
    [sys.executable, HERE / 'context_cases.py'],
    capture_output=True,
    text=True,
    env={'PYTHONPATH': str(HERE.parents[1]), 'PATH': '/usr/bin:/bin'},
  )
  assert done.returncode == 0, done.stderr[-4000:]
  result = json.loads(done.stdout.splitlines()[-1])
  assert len(result) == 4
  for name, numbers in result.items():
    assert numbers['gap'] < 2e-5, name
    # 32 or 16 blocks over 4 devices come out nearly even.
    assert numbers['load'] < 1.15, name
