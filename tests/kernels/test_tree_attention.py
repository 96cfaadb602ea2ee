"""Blocks by brute force; every implementation against a plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.kernels import tree_attention
from clawjax.kernels.blocks import (
  DEAD,
  FULL,
  block_kinds,
  block_list,
  tree_mask,
)


@pytest.mark.parametrize('block', [2, 4, 8])
def test_block_kinds_are_exact(ends, block):
  end = ends(np.random.default_rng(block), 40, 32)
  got = np.asarray(block_kinds(jnp.asarray(end), block, block))
  for row, kinds in zip(end, got, strict=True):
    q, k = np.indices((32, 32))
    seen = (k <= q) & (q < row[k])
    n = 32 // block
    cells = seen.reshape(n, block, n, block)
    assert ((kinds != DEAD) == cells.any((1, 3))).all()
    assert ((kinds == FULL) == cells.all((1, 3))).all()


def test_block_list_orders_live_blocks(ends):
  end = ends(np.random.default_rng(0), 3, 64)
  plan = jax.device_get(block_list(jnp.asarray(end), 8, 8))
  for row in range(3):
    for q in range(8):
      live = np.flatnonzero(plan.kind[row, q])
      count = plan.count[row, q]
      assert plan.index[row, q, :count].tolist() == live.tolist()


def slow(q, k, v, end, scale):
  """One query at a time, in float64."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  B, T, H, _ = q.shape
  group = H // k.shape[2]
  out = np.zeros(q.shape)
  for b in range(B):
    for t in range(T):
      keys = [s for s in range(t + 1) if t < end[b, s]]
      for h in range(H):
        score = k[b, keys, h // group] @ q[b, t, h] * scale
        p = np.exp(score - score.max())
        out[b, t, h] = (p / p.sum()) @ v[b, keys, h // group]
  return out


def inputs(rng, B, T, H, K, C, dtype=jnp.float32):
  def draw(heads):
    return jnp.asarray(rng.normal(size=(B, T, heads, C)), dtype)

  return draw(H), draw(K), draw(K)


@pytest.mark.parametrize('impl', ['naive', 'chunked'])
@pytest.mark.parametrize(('H', 'K'), [(4, 4), (4, 2), (3, 1)])
def test_against_a_plain_loop(ends, impl, H, K):
  rng = np.random.default_rng(H)
  q, k, v = inputs(rng, 2, 24, H, K, 8)
  end = ends(rng, 2, 24)
  got = tree_attention(q, k, v, jnp.asarray(end), impl=impl, block=8, scale=0.3)
  np.testing.assert_allclose(got, slow(q, k, v, end, 0.3), atol=2e-6)


@pytest.mark.parametrize(('T', 'block'), [(96, 16), (90, 32), (40, 64)])
def test_chunked_equals_naive_forward_and_backward(ends, T, block):
  """Also where T is no multiple of the block."""
  rng = np.random.default_rng(T)
  args = inputs(rng, 3, T, 4, 2, 16)
  end = jnp.asarray(ends(rng, 3, T))
  d_out = jnp.asarray(rng.normal(size=(3, T, 4, 16)), jnp.float32)

  def run(impl):
    out, back = jax.vjp(
      lambda *x: tree_attention(*x, end, impl=impl, block=block), *args
    )
    return out, *back(d_out)

  for got, want in zip(run('chunked'), run('naive'), strict=True):
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_bfloat16_stays_close_to_float32(ends):
  rng = np.random.default_rng(5)
  args = inputs(rng, 1, 64, 4, 2, 16, jnp.bfloat16)
  end = jnp.asarray(ends(rng, 1, 64))
  got = tree_attention(*args, end, impl='chunked', block=16)
  assert got.dtype == jnp.bfloat16
  want = tree_attention(
    *(x.astype(jnp.float32) for x in args), end, impl='naive'
  )
  # bf16 keeps 8 bits: outputs of size 1 are good to about 0.01
  np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.03)


def test_a_new_tree_is_not_a_new_compilation(ends):
  rng = np.random.default_rng(6)
  args = inputs(rng, 1, 64, 2, 1, 8)
  traces = []

  @jax.jit
  def run(q, k, v, end):
    traces.append(1)
    return tree_attention(q, k, v, end, block=16)

  for seed in range(3):
    run(*args, jnp.asarray(ends(np.random.default_rng(seed), 1, 64)))
  assert len(traces) == 1


def test_mask(ends):
  """1 - 2 with a sibling 3, then padding: ends 3 2 3 4."""
  got = tree_mask(jnp.array([3, 2, 3, 4])).astype(int).tolist()
  assert got == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]


def test_unknown_impl_is_refused():
  x = jnp.zeros((1, 4, 1, 2))
  with pytest.raises(ValueError, match='impl'):
    tree_attention(x, x, x, jnp.array([[1, 2, 3, 4]]), impl='fast')
