"""The Pallas kernels against the oracle (interpreted), and compiled for TPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax import trie
from clawjax.kernels import pallas_tree, tree_attention
from clawjax.models import qwen3
from clawjax.train import rows as rows_lib
from clawjax.types import Call, Sample


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

  def run(end, pairs):
    return tree_attention(
      x, x, x, end, impl='pallas_interpret', block=8, pairs=pairs
    )

  with pytest.raises(ValueError, match='at most 9'):
    run(jnp.asarray(end), 9)
  # A traced tree cannot raise: the whole output is nan, never half of it.
  traced = jax.jit(run, static_argnums=1)
  assert np.isnan(traced(end, 9)).all()
  np.testing.assert_allclose(traced(end, 10), 1.0, atol=1e-6)


def test_a_batch_with_too_many_pairs_is_refused_before_it_runs():
  """Rows of two blocks of 512, causal: 3 pairs each."""
  rows = trie.pack(
    [
      trie.build(
        [
          Call(
            'c', f'r{i}', 0, np.zeros(1000, np.int32),
            Sample(np.ones(2, np.int32), np.zeros(2, np.float32), 'stop'),
          )
        ]
      )
      for i in range(2)
    ],
    row_tokens=1024,
    row_buckets=(1024,),
  )  # fmt: skip
  model = qwen3.Config.tiny(vocab=16)

  def first(pairs):
    setting = rows_lib.Setting(
      model, rows_lib.ForwardConfig(rows=2, pairs=pairs)
    )
    return next(rows_lib.microbatches(rows, setting))

  assert len(first(6)[0]) == 2
  with pytest.raises(ValueError, match='at most 5'):
    first(5)


def test_pairs_on_the_host_equal_pairs_on_the_device(ends):
  end = ends(np.random.default_rng(0), 3, 50)
  got = pallas_tree.check_pairs(end, block=16, pairs=1000)
  padded = np.concatenate(
    [end, np.tile(np.arange(51, 65, dtype=np.int32), (3, 1))], axis=1
  )
  q, k = np.indices((64, 64))
  seen = (k <= q) & (q < padded[:, None, :])
  assert got == seen.reshape(3, 4, 16, 4, 16).any((2, 4)).sum()


@pytest.mark.slow
@pytest.mark.parametrize('chip', ['v5p:2x2x1', 'v5e:2x2', 'v6e:2x2'])
@pytest.mark.parametrize('slots', [8192, 65536])
def test_compiles_for_a_tpu(monkeypatch, chip, slots):
  """Forward and backward through XLA's TPU compiler, with the head shapes of
  Qwen3-8B (32 of 8) at 8k and Qwen3-30B-A3B (32 of 4) at 64k."""
  pytest.importorskip('libtpu', reason="no TPU compiler; install '.[tpu]'")
  monkeypatch.setenv('TPU_SKIP_MDS_QUERY', '1')
  monkeypatch.setenv('TPU_ACCELERATOR_TYPE', 'v5p-8')
  monkeypatch.setenv('TPU_WORKER_HOSTNAMES', 'localhost')
  from jax.experimental import topologies

  topology = topologies.get_topology_desc(platform='tpu', topology_name=chip)
  mesh = jax.sharding.Mesh(np.array(topology.devices)[:1], ('x',))
  place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

  def shape(*dims, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dims, dtype, sharding=place)

  def run(q, k, v, end, d_out):
    out, back = jax.vjp(
      lambda *x: pallas_tree.pallas_attention(*x, end, scale=0.1), q, k, v
    )
    return out, *back(d_out)

  H, K = (32, 8) if slots == 8192 else (32, 4)
  compiled = (
    jax.jit(run)
    .lower(
      shape(1, slots, H, 128),
      shape(1, slots, K, 128),
      shape(1, slots, K, 128),
      shape(1, slots, dtype=jnp.int32),
      shape(1, slots, H, 128),
    )
    .compile()
  )
  # 64k x 32 heads in float32 is 1 GiB; a [T, T] mask would be 4 GiB of bytes.
  assert compiled.memory_analysis().temp_size_in_bytes < 3.5 * 2**30
