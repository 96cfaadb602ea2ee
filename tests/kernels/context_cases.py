"""Runs in a process of its own with 8 CPU devices; prints one JSON object.

Context-parallel attention on several meshes against one device: largest
differences of output and gradients, and how even the work was dealt.
"""

import json
import os

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from clawjax.kernels import context, tree_attention

B, T, H, K, C = 2, 256, 4, 2, 8


def ends(rng):
  """A stem of 100, forks of 60 and 30, one of them forked again; a second tree
  and padding behind. Rows differ."""
  out = np.tile(np.arange(1, T + 1, dtype=np.int32), (B, 1))
  for b in range(B):
    shift = int(rng.integers(0, 9))
    out[b, : 100 - shift] = 200
    out[b, 100 - shift : 160] = 160
    out[b, 120:140] = 140
    out[b, 140:160] = 160
    out[b, 160:200] = 200
    out[b, 200:240] = 240
  return out


def case(data, parts, block, tensor, impl):
  rng = np.random.default_rng(parts)
  end = ends(rng)
  order = context.deal(end, parts=parts, block=block)
  place = (order[:, :, None] * block + np.arange(block)).reshape(B, T)
  back = np.argsort(place, axis=1)
  draw = lambda n: jnp.asarray(rng.normal(size=(B, T, n, C)), jnp.float32)  # noqa: E731
  q, k, v, d_out = draw(H), draw(K), draw(K), draw(H)
  mesh = Mesh(
    np.array(jax.devices()).reshape(data, parts, tensor),
    ('data', 'context', 'tensor'),
    axis_types=(AxisType.Auto,) * 3,
  )

  def moved(x, index):
    return jnp.take_along_axis(x, index[:, :, None, None], axis=1)

  def spread(q, k, v):
    out = context.context_attention(
      *(moved(x, place) for x in (q, k, v)),
      jnp.asarray(end),
      jnp.asarray(order * block),
      mesh=mesh,
      rows=('data',),
      heads=('tensor',),
      impl=impl,
    )
    return moved(out, back)

  def one(q, k, v):
    return tree_attention(q, k, v, jnp.asarray(end), impl='naive')

  def run(f):
    out, pull = jax.vjp(jax.jit(f), q, k, v)
    return out, *pull(d_out)

  gaps = [
    float(jnp.abs(a - b).max())
    for a, b in zip(run(spread), run(one), strict=True)
  ]
  first = np.arange(0, T, block)
  last = end.reshape(B, -1, block).max(-1)
  live = (first <= first[:, None]) & (first[:, None] < last[:, None, :])
  work = np.take_along_axis(live.sum(-1), order, axis=1)
  load = work.reshape(B, parts, -1).sum(-1)
  return {'gap': max(gaps), 'load': float((load.max(1) / load.mean(1)).max())}


if __name__ == '__main__':
  print(
    json.dumps(
      {
        'context 8': case(1, 8, 16, 1, 'chunked'),
        'data 2, context 4': case(2, 4, 8, 1, 'chunked'),
        'context 4, tensor 2': case(1, 4, 8, 2, 'naive'),
        'kernel': case(2, 4, 16, 1, 'pallas_interpret'),
      }
    )
  )
