"""Pairs sent to their experts' devices, as on a TPU, against one device.

XLA:CPU has no ragged all-to-all, so the devices are the rows of a `vmap` and the
collective is written here from its documentation: slices `start`, `size` of a
device's array go to `place` in the array of the peer they are numbered for.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.models import exchange, experts

PEERS, WIDTH, EXPERTS, PICKS, INNER = 4, 8, 8, 3, 4


def ragged_all_to_all(x, out, start, size, place, coming, *, axis_name):
  x, start, size, place = (
    jax.lax.all_gather(y, axis_name) for y in (x, start, size, place)
  )
  per_peer = coming.shape[0] // PEERS
  me = jax.lax.axis_index(axis_name)
  for peer in range(PEERS):
    for j in range(per_peer):
      i = me * per_peer + j
      row = jnp.arange(out.shape[0]) - place[peer, i]
      here = (row >= 0) & (row < size[peer, i])
      got = x[peer][jnp.clip(start[peer, i] + row, 0, x.shape[1] - 1)]
      out = jnp.where(here[:, None], got, out)
  return out


@pytest.mark.parametrize(
  ('tokens', 'crowded'), [(6, False), (8, False), (8, True)]
)
def test_equal_to_one_device(monkeypatch, tokens, crowded):
  """8 tokens a device go in four turns, 6 in one.

  Crowded: all tokens choose the three experts 0, 1 and 5.
  """
  monkeypatch.setattr(jax.lax, 'ragged_all_to_all', ragged_all_to_all)
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
  x = draw(PEERS, tokens, WIDTH)
  weights = experts.Weights(
    draw(EXPERTS, WIDTH, INNER),
    draw(EXPERTS, WIDTH, INNER),
    draw(EXPERTS, INNER, WIDTH),
  )
  chosen = np.argsort(rng.random((PEERS, tokens, EXPERTS)))[..., :PICKS]
  if crowded:
    chosen = np.broadcast_to([0, 1, 5], chosen.shape)
  chosen = jnp.asarray(chosen, jnp.int32)
  gates = jnp.asarray(rng.random(chosen.shape), jnp.float32)
  direction = draw(PEERS, tokens, WIDTH)

  def routing(chosen, gates):
    return experts.Routing(chosen, gates, jnp.zeros(0))

  def device(x, weights, gates, chosen, direction):
    out = exchange._sent_in_turns(x, weights, routing(chosen, gates), 'expert')
    return (out * direction).sum(), out

  def alone(x, weights, gates):
    flat = lambda y: y.reshape(PEERS * tokens, -1)  # noqa: E731
    out = experts.run(
      flat(x), weights, routing(flat(chosen), flat(gates)), impl='dense'
    ).reshape(x.shape)
    return (out * direction).sum(), out

  split = lambda w: w.reshape(PEERS, EXPERTS // PEERS, *w.shape[1:])  # noqa: E731
  apart = jax.tree.map(split, weights)
  # The gradient of the sum of all devices' losses, on each device its own part.
  found = jax.vmap(
    jax.grad(device, argnums=(0, 1, 2), has_aux=True), axis_name='expert'
  )(x, apart, gates, chosen, direction)
  (dx, dw, dg), out = jax.grad(alone, argnums=(0, 1, 2), has_aux=True)(
    x, weights, gates
  )
  wanted = (dx, jax.tree.map(split, dw), dg), out
  for a, b in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
