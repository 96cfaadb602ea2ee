"""Chunked log-probs and entropies against the whole table of logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.losses import logprobs

B, T, D, V, E = 2, 9, 8, 13, 7


@pytest.fixture(scope='module')
def data():
  keys = jax.random.split(jax.random.key(0), 5)
  parent = jnp.broadcast_to(jnp.arange(-1, T - 1), (B, T)).at[:, 5].set(2)
  return {
    'hidden': jax.random.normal(keys[0], (B, T, D)),
    'unembed': jax.random.normal(keys[1], (D, V)),
    'tokens': jax.random.randint(keys[2], (B, T), 0, V),
    'parent': parent,
    'slot': jax.random.randint(keys[3], (B, E), 1, T),
    'weights': jax.random.normal(keys[4], (2, B, E)),
  }


def plain(hidden, unembed, data, temperature):
  table = jax.nn.log_softmax(hidden @ unembed / temperature)
  before = jnp.take_along_axis(data['parent'], data['slot'], 1)
  rows = jnp.take_along_axis(table, before[..., None], 1)
  target = jnp.take_along_axis(data['tokens'], data['slot'], 1)
  logp = jnp.take_along_axis(rows, target[..., None], 2)[..., 0]
  return logp, -(jnp.exp(rows) * rows).sum(-1)


@pytest.mark.parametrize(
  ('chunk', 'vocab_chunk', 'temperature'),
  [(1024, None, 1.0), (4, None, 1.0), (2, 5, 1.0), (6, 4, 0.7)],
)
def test_values_and_gradients(data, chunk, vocab_chunk, temperature):
  def total(f):
    def g(hidden, unembed):
      out = f(hidden, unembed)
      return sum(
        (w * x).sum() for w, x in zip(data['weights'], out, strict=True)
      )

    return g

  def ours(hidden, unembed):
    return logprobs.term_logprobs(
      hidden,
      unembed,
      data['tokens'],
      data['parent'],
      data['slot'],
      chunk=chunk,
      vocab_chunk=vocab_chunk,
      temperature=temperature,
    )

  def theirs(hidden, unembed):
    return plain(hidden, unembed, data, temperature)

  args = data['hidden'], data['unembed']
  for a, b in zip(jax.jit(ours)(*args), theirs(*args), strict=True):
    np.testing.assert_allclose(a, b, atol=5e-6)
  got = jax.jit(jax.grad(total(ours), (0, 1)))(*args)
  want = jax.grad(total(theirs), (0, 1))(*args)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, atol=2e-5)


def test_a_term_without_cotangent_contributes_nothing_even_if_nan(data):
  hidden = data['hidden'].at[0, 2].set(jnp.nan)
  slot = jnp.array([[5, 1, 1], [1, 1, 1]])  # slot 5 hangs on slot 2: nan

  def f(hidden, unembed):
    logp, _ = logprobs.term_logprobs(
      hidden, unembed, data['tokens'], data['parent'], slot
    )
    return jnp.where(jnp.array([[0, 1, 1], [1, 1, 1]]) > 0, logp, 0).sum()

  for grad in jax.grad(f, (0, 1))(hidden, data['unembed']):
    assert np.isfinite(grad).all()


def test_bfloat16_inputs_keep_float32_sums(data):
  logp, entropy = logprobs.term_logprobs(
    data['hidden'].astype(jnp.bfloat16),
    data['unembed'].astype(jnp.bfloat16),
    data['tokens'],
    data['parent'],
    data['slot'],
  )
  assert logp.dtype == entropy.dtype == jnp.float32
  want, _ = plain(
    data['hidden'].astype(jnp.bfloat16).astype(jnp.float32),
    data['unembed'].astype(jnp.bfloat16).astype(jnp.float32),
    data,
    1.0,
  )
  np.testing.assert_allclose(logp, want, atol=1e-5)


def test_memory_does_not_grow_with_slots_times_vocabulary():
  """8,192 slots, vocabulary of 32,768 (1 GiB of logits), 1,024 terms."""
  slots, vocab, terms, width = 8192, 32768, 1024, 16
  f = jax.jit(
    jax.grad(
      lambda h, w, t, p, s: logprobs.term_logprobs(
        h, w, t, p, s, chunk=128, vocab_chunk=8192
      )[0].sum(),
      (0, 1),
    )
  )
  shape = jax.ShapeDtypeStruct
  ints = shape((1, slots), jnp.int32)
  compiled = f.lower(
    shape((1, slots, width), jnp.float32),
    shape((width, vocab), jnp.float32),
    ints,
    ints,
    shape((1, terms), jnp.int32),
  ).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 64 * 2**20


def test_no_terms():
  logp, _ = logprobs.row_logprobs(
    jnp.zeros((2, 0, 4)), jnp.zeros((4, 5)), jnp.zeros((2, 0), jnp.int32)
  )
  assert logp.shape == (2, 0)
