"""The value model: a trunk of its own and a scalar head.

The same decoder as the policy, without an output matrix, and one number per
slot: `value[t]` is read from the hidden state at t. Which slot belongs to which
token (the parent's) is the caller's business, as with log-probs. The head
begins at zero, so a fresh value model says 0 everywhere; the first update moves
the head, later ones the trunk too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from clawjax.models import qwen3
from clawjax.models.config import Config
from clawjax.models.qwen3 import Leaf, Params


def table(config: Config) -> Params:
  """Parameters of the value model: {'trunk': ..., 'head', 'bias'}."""
  trunk = qwen3.table(config)
  trunk.pop('head', None)
  return {
    'trunk': trunk,
    'head': Leaf((config.width,), ('embed',), 0.0),
    'bias': Leaf((), (), 0.0),
  }


def init(config: Config, key: jax.Array) -> Params:
  """A random trunk and a zero head."""
  return from_policy(qwen3.init(config, key), config)


def from_policy(params: Params, config: Config) -> Params:
  """A value model whose trunk begins as a copy of a policy's."""
  trunk = {name: x for name, x in params.items() if name != 'head'}
  dtype = jnp.dtype(config.param_dtype)
  return {
    'trunk': jax.tree.map(jnp.copy, trunk),
    'head': jnp.zeros((config.width,), dtype),
    'bias': jnp.zeros((), dtype),
  }


def apply(
  params: Params,
  config: Config,
  tokens_BT: jax.Array,
  positions_BT: jax.Array,
  *,
  attend: qwen3.Attend | None = None,
  layer_states: Any = None,
  replay_routes: jax.Array | None = None,
  sharding: Any = None,
) -> jax.Array:
  """Values, float32 [B, T]; arguments as in `qwen3.apply`."""
  hidden_BTD, _, _ = qwen3.apply(
    params['trunk'],
    config,
    tokens_BT,
    positions_BT,
    attend=attend,
    layer_states=layer_states,
    replay_routes=replay_routes,
    sharding=sharding,
  )
  return read(params, hidden_BTD)


def read(params: Params, hidden: jax.Array) -> jax.Array:
  """Float32 values [...] of trunk states [..., D]."""
  head = params['head'].astype(jnp.float32)
  out = jnp.einsum('...d,d->...', hidden.astype(jnp.float32), head)
  return out + params['bias'].astype(jnp.float32)
