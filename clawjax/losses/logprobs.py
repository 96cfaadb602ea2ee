"""Log-prob and entropy of the trained tokens, never as a full [T, V] array.

The shift by one lives here and nowhere else, and it follows the parent:

  logp[t] = log_softmax(h[parent[t]] @ W)[token[t]]

At a branch the children of one slot read the same row of logits. Only rows that
a term needs are computed, `chunk` of them at a time, forward and backward; with
`vocab_chunk` the vocabulary is cut too. Sums and the gradient of W are float32
whatever the dtype of the inputs.

With z the logits, lse = log sum exp z, p = exp(z - lse):

  logp = z[y] - lse          d logp / d z = onehot(y) - p
  H    = lse - sum p z       d H / d z    = -p (log p + H)

A term whose cotangents are zero contributes nothing, not even `0 * nan`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

# With at most this many logits in all the loop over chunks is unrolled: XLA:CPU
# runs the body of a while loop on one core only. Unrolled chunks may all be
# alive at once (here 64 MiB).
_UNROLLED_LOGITS = 2**24


def term_logprobs(
  hidden_BTD: jax.Array,
  unembed_DV: jax.Array,
  tokens_BT: jax.Array,
  parent_BT: jax.Array,
  term_slot_BE: jax.Array,
  *,
  chunk: int = 1024,
  vocab_chunk: int | None = None,
  temperature: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
  """Log-probs and entropies of loss terms.

  Args:
    hidden_BTD: final hidden states (after the last norm).
    unembed_DV: output matrix.
    tokens_BT: int32 token per slot.
    parent_BT: int32 slot before, -1 at roots.
    term_slot_BE: int32 slot of each trained token; its parent must not be -1
      (a padding term may point anywhere; its numbers mean nothing).
    chunk: terms, over all rows, whose logits exist at one time.
    vocab_chunk: columns of W that exist at one time; None: all.
    temperature: logits are divided by it.

  Returns:
    float32 [B, E] log-probs (natural log) and [B, E] entropies (nats) of the
    distribution that each token was drawn from.
  """
  assert hidden_BTD.ndim == 3 and unembed_DV.ndim == 2, (
    hidden_BTD.shape,
    unembed_DV.shape,
  )
  before_BE = jnp.take_along_axis(parent_BT, term_slot_BE, axis=1)
  target_BE = jnp.take_along_axis(tokens_BT, term_slot_BE, axis=1)
  rows_BED = jnp.take_along_axis(
    hidden_BTD, jnp.maximum(before_BE, 0)[..., None], axis=1
  )
  return row_logprobs(
    rows_BED,
    unembed_DV,
    target_BE,
    chunk=chunk,
    vocab_chunk=vocab_chunk,
    temperature=temperature,
  )


def row_logprobs(
  rows_BED: jax.Array,
  unembed_DV: jax.Array,
  target_BE: jax.Array,
  *,
  chunk: int = 1024,
  vocab_chunk: int | None = None,
  temperature: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
  """The same for rows of hidden states that are already gathered."""
  B, E, D = rows_BED.shape
  V = unembed_DV.shape[1]
  if E == 0:
    empty = jnp.zeros((B, 0), jnp.float32)
    return empty, empty
  per_row = min(E, max(1, chunk // B))
  pad = -E % per_row
  rows = jnp.pad(rows_BED, ((0, 0), (0, pad), (0, 0)))
  target = jnp.pad(target_BE, ((0, 0), (0, pad)))
  count = (E + pad) // per_row
  # [chunks, B, per_row, ...]: rows stay a leading axis, so a batch sharded
  # over devices stays where it is.
  rows = jnp.moveaxis(rows.reshape(B, count, per_row, D), 1, 0)
  target = jnp.moveaxis(target.reshape(B, count, per_row), 1, 0)
  vocab_chunk = V if vocab_chunk is None else min(vocab_chunk, V)
  logp, entropy = _chunked(rows, unembed_DV, target, vocab_chunk, temperature)

  def back(x: jax.Array) -> jax.Array:
    return jnp.moveaxis(x, 0, 1).reshape(B, E + pad)[:, :E]

  return back(logp), back(entropy)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _chunked(rows, unembed, target, vocab_chunk, temperature):
  return _forward(rows, unembed, target, vocab_chunk, temperature)[0]


def _forward(rows, unembed, target, vocab_chunk, temperature):
  def one(carry, xs):
    h, y = xs
    return carry, _one_forward(h, unembed, y, vocab_chunk, temperature)

  _, (logp, entropy, lse) = _loop(one, None, (rows, target), unembed.shape[1])
  return (logp, entropy), (rows, unembed, target, lse, entropy)


def _backward(vocab_chunk, temperature, saved, cotangents):
  rows, unembed, target, lse, entropy = saved
  g_logp, g_entropy = cotangents

  def one(d_unembed, xs):
    h, y, lse, entropy, g, e = xs
    live = (g != 0) | (e != 0)
    h = jnp.where(live[..., None], h, 0)
    lse = jnp.where(live, lse, 0)
    entropy = jnp.where(live, entropy, 0)
    d_h = jnp.zeros(h.shape, jnp.float32)
    for start, stop in _spans(unembed.shape[1], vocab_chunk):
      w = unembed[:, start:stop]
      z = _logits(h, w, temperature)
      logp = z - lse[..., None]
      p = jnp.where(live[..., None], jnp.exp(logp), 0)
      hot = (y[..., None] - start) == jnp.arange(stop - start)
      d_z = g[..., None] * (hot - p)
      d_z -= e[..., None] * p * (logp + entropy[..., None])
      d_z = jnp.where(live[..., None], d_z, 0) / temperature
      d_z = d_z.astype(w.dtype)
      d_h += jnp.einsum(
        'bev,dv->bed', d_z, w, preferred_element_type=jnp.float32
      )
      d_w = jnp.einsum(
        'bed,bev->dv', h, d_z, preferred_element_type=jnp.float32
      )
      d_unembed = d_unembed.at[:, start:stop].add(d_w)
    return d_unembed, d_h.astype(h.dtype)

  d_unembed, d_rows = _loop(
    one,
    jnp.zeros(unembed.shape, jnp.float32),
    (rows, target, lse, entropy, g_logp, g_entropy),
    unembed.shape[1],
  )
  return d_rows, d_unembed.astype(unembed.dtype), None


_chunked.defvjp(_forward, _backward)


def _one_forward(h, unembed, y, vocab_chunk, temperature):
  """(logp, entropy, lse), each float32 [B, e], of one chunk of terms."""
  top = jnp.full(y.shape, -jnp.inf, jnp.float32)
  mass = jnp.zeros(y.shape, jnp.float32)  # sum exp(z - top)
  moment = jnp.zeros(y.shape, jnp.float32)  # sum exp(z - top) z
  picked = jnp.zeros(y.shape, jnp.float32)  # z[y]
  for start, stop in _spans(unembed.shape[1], vocab_chunk):
    z = _logits(h, unembed[:, start:stop], temperature)
    new_top = jnp.maximum(top, z.max(-1))
    scale = jnp.exp(top - new_top)
    weights = jnp.exp(z - new_top[..., None])
    mass = mass * scale + weights.sum(-1)
    moment = moment * scale + (weights * z).sum(-1)
    top = new_top
    inside = (y >= start) & (y < stop)
    column = jnp.clip(y - start, 0, stop - start - 1)
    here = jnp.take_along_axis(z, column[..., None], axis=-1)[..., 0]
    picked = jnp.where(inside, here, picked)
  lse = top + jnp.log(mass)
  return picked - lse, lse - moment / mass, lse


def _logits(h, w, temperature):
  z = jnp.einsum('bed,dv->bev', h, w, preferred_element_type=jnp.float32)
  return z if temperature == 1.0 else z / temperature


def _spans(size: int, step: int) -> list[tuple[int, int]]:
  return [(i, min(i + step, size)) for i in range(0, size, step)]


def _loop(body, carry, xs, vocab):
  target = xs[1]
  small = target.size * vocab <= _UNROLLED_LOGITS
  return lax.scan(body, carry, xs, unroll=target.shape[0] if small else 1)
