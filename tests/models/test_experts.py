"""The forward-only way to run experts against the oracle, under any skew."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout

from clawjax.models import experts, qwen3


@functools.cache
def both_ways():
  def run(impl):
    return jax.jit(functools.partial(experts.run, impl=impl))

  return run('dense'), run('roomy')


def weights(count=8, width=12, hidden=10):
  rng = np.random.default_rng(0)
  shapes = [(count, width, hidden)] * 2 + [(count, hidden, width)]
  return experts.Weights(
    *(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)
  )


@pytest.mark.parametrize(
  ('tokens', 'bias'),
  [
    (1, [0] * 8),  # gathers
    (3, [0] * 8),
    (64, [0] * 8),
    # 64 tokens share a room of 24: all on two experts, one alone, some empty.
    (64, [99, 99, 0, 0, 0, 0, 0, 0]),
    (64, [0, 0, 0, 0, 0, 0, 0, 99]),
    (64, [2, 1, 0, -1, -99, -99, 1, 2]),
  ],
)
def test_room_is_never_a_limit(tokens, bias):
  rng = np.random.default_rng(tokens)
  x_ND = jnp.asarray(rng.normal(size=(tokens, 12)), jnp.float32)
  logits_NX = jnp.asarray(rng.normal(size=(tokens, 8)), jnp.float32)
  routing = experts.route(
    logits_NX + jnp.asarray(bias, jnp.float32), 2, norm_topk=True
  )
  dense, roomy = both_ways()
  np.testing.assert_allclose(
    roomy(x_ND, weights(), routing),
    dense(x_ND, weights(), routing),
    rtol=1e-5,
    atol=1e-4,
  )


def test_weights_are_laid_out_by_rows():
  """Those of experts, and nothing else; a program takes them as they lie."""
  config = qwen3.Config.tiny(experts=4, layers=2, scan_layers=False)
  params = qwen3.init(config, jax.random.key(0))
  places = jax.tree.map(lambda x: x.sharding, params)
  wanted = experts.formats(places)
  changed = [
    jax.tree_util.keystr(path, simple=True, separator='.')
    for path, place in jax.tree_util.tree_leaves_with_path(wanted)
    if isinstance(place, Format)
  ]
  assert changed == [
    f'layers.{i}.{name}' for i in range(2) for name in ('down', 'gate', 'up')
  ]
  columns_first = Format(Layout(major_to_minor=(2, 1, 0)), places['embed'])
  gate = jax.device_put(params['layers'][0]['gate'], columns_first)
  assert gate.format.layout.major_to_minor == (2, 1, 0)
  params['layers'][0]['gate'] = gate
  moved = jax.device_put(params, wanted)
  got = moved['layers'][0]['gate']
  assert got.format.layout.major_to_minor == (0, 1, 2)
  np.testing.assert_array_equal(got, gate)
