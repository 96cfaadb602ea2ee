"""The Pallas kernels against the oracle (interpreted), and compiled for TPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.kernels import pallas_tree, tree_attention


@pytest.mark.parametrize(('H', 'K'), [(2, 2), (4, 2)])
def test_equals_the_oracle(ends, H, K):
  """Forward, dq, dk, dv; two rows; T no multiple of the block."""
  rng = np.random.default_rng(H)
  B, T, C = 2, 40, 8
  draw = lambda n: jnp.asarray(rng.normal(size=(B, T, n, C)), jnp.float32)  # noqa: E731
  args, d_out = (draw(H), draw(K), draw(K)), draw(H)
  end = jnp.asarray(ends(rng, B, T))

  def run(impl):
    @jax.jit
    def f(*x):
      out, back = jax.vjp(
        lambda *y: tree_attention(*y, end, impl=impl, block=16), *x
      )
      return out, *back(d_out)

    return f(*args)

  for got, want in zip(run('pallas_interpret'), run('naive'), strict=True):
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_too_few_pairs_are_an_error_not_garbage(ends):
  """A chain of 4 blocks needs 10 pairs."""
  end = np.full((1, 32), 32, np.int32)
  assert pallas_tree.check_pairs(end, block=8, pairs=10) == 10
  with pytest.raises(ValueError, match='at most 9'):
    pallas_tree.check_pairs(end, block=8, pairs=9)
  x = jnp.ones((1, 32, 1, 8))
  out = pallas_tree.pallas_attention(
    x, x, x, jnp.asarray(end), scale=1.0, block=8, pairs=9, interpret=True
  )
  assert np.isnan(out).all()


def test_pairs_on_the_host_equal_pairs_on_the_device(ends):
  end = ends(np.random.default_rng(0), 3, 50)
  got = pallas_tree.check_pairs(end, block=16, pairs=1000)
  padded = np.concatenate(
    [end, np.tile(np.arange(51, 65, dtype=np.int32), (3, 1))], axis=1
  )
  q, k = np.indices((64, 64))
  seen = (k <= q) & (q < padded[:, None, :])
  assert got == seen.reshape(3, 4, 16, 4, 16).any((2, 4)).sum()
