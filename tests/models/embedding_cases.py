"""Embeddings on meshes of 8 CPU devices; one JSON line per mesh.

Each has the largest differences from one device (embeddings, gradient of the
table) and the bytes that a device sends per kind of collective.
"""

import json
import os

os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'
os.environ['JAX_PLATFORMS'] = 'cpu'

import jax
import jax.numpy as jnp
from hlo import collectives

from clawjax.models.embedding import look_up
from clawjax.models.sharding import Sharding, make_mesh

V, D, B, T = 64, 32, 8, 16
MESHES = (
  {'fsdp': 8},
  {'fsdp': 4, 'context': 2},
  {'fsdp': 2, 'expert': 2, 'context': 2},
  {'fsdp': 2, 'context': 2, 'tensor': 2},
  {'data': 2, 'tensor': 4},
)


def main():
  keys = jax.random.split(jax.random.key(0), 3)
  table = jax.random.normal(keys[0], (V, D))
  tokens = jax.random.randint(keys[1], (B, T), 0, V)
  weight = jax.random.normal(keys[2], (B, T, D))

  def loss(table, tokens, weight, sharding=None):
    x_BTD = look_up(table, tokens, jnp.float32, sharding)
    return (jnp.sin(x_BTD) * weight).sum(), x_BTD

  (_, want), want_grad = jax.value_and_grad(loss, has_aux=True)(
    table, tokens, weight
  )
  for sizes in MESHES:
    sharding = Sharding(make_mesh(**sizes))
    where = sharding.named(('vocab', 'embed'))
    whole = sharding.named(('batch', 'length', None))
    arguments = (
      jax.device_put(table, where),
      jax.device_put(tokens, sharding.named(('batch', 'length'))),
      jax.device_put(weight, whole),
    )
    run = jax.jit(
      jax.value_and_grad(
        lambda *x, sharding=sharding: loss(*x, sharding), has_aux=True
      ),
      out_shardings=((None, whole), where),
    )
    program = run.lower(*arguments).compile()
    (_, got), grad = program(*arguments)
    print(
      json.dumps(
        {
          'mesh': sizes,
          'embeddings': float(abs(got - want).max()),
          'gradient': float(abs(grad - want_grad).max()),
          'sent': {
            kind: sent
            for kind, (_, sent) in collectives(
              program.as_text().splitlines(), 8
            ).items()
          },
        }
      )
    )


if __name__ == '__main__':
  main()
