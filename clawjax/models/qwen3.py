"""Qwen3 and Qwen3-MoE, top to bottom.

Tokens and their positions go in; hidden states, per-layer states and the
experts used come out. Everything that attends is handed in:

  attend(state, q_BTHC, k_BTKC, v_BTKC) -> (out_BTHC, new_state)

Training passes tree attention (no state); serving passes its cache (a state
per layer). q and k arrive normed and rotated by `positions_BT`, so a slot's
index in its row never matters, only its position.

Parameters are a plain nested dict described by one table, `table(config)`:

  embed [V, D]   final_norm [D]   head [D, V] (absent when tied)
  layers: a list of L dicts, or, with `config.scan_layers`, one dict whose
  arrays have a leading L (`stack_layers` and `unstack_layers` convert). `apply`
  looks at what it is given: a list is unrolled, a dict is scanned.
    attention_norm [D]  q [D, H, C]  k, v [D, K, C]  o [H, C, D]
    q_norm, k_norm [C]  (q_bias [H, C]  k_bias, v_bias [K, C]  o_bias [D])
    mlp_norm [D]  gate, up [D, F]  down [F, D], or for a mixture of experts
    router [D, X]  (router_bias [X])  gate, up [X, D, F]  down [X, F, D]

`init`, `apply`, `unembed` and `logits` work on that dict; the Flax module
`Qwen3` holds the same parameters under the same names.

Number formats: matmuls and the residual stream are in `config.dtype`. float32
whatever the dtype: the mean of squares in RMS norm (bf16 keeps 8 bits, and D
squares are summed), rotary angles (position 40,000 needs 16 bits), router
(a near-tie flips experts), softmax over experts, and logits (bf16 logits near
20 are 0.125 apart, and that spacing is what a log-prob would be good to).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from clawjax.errors import ConfigError
from clawjax.models import embedding, exchange, experts, rope
from clawjax.models.config import PRESETS, Config, RopeScaling

__all__ = [
  'PRESETS',
  'Config',
  'Qwen3',
  'RopeScaling',
  'abstract',
  'apply',
  'causal_attend',
  'init',
  'logits',
  'stack_layers',
  'table',
  'unembed',
  'unstack_layers',
]

Params = dict[str, Any]
Attend = Callable[[Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]


# ---- parameters ------------------------------------------------------------


class Leaf(NamedTuple):
  """One parameter: its shape, its logical axes and how it begins.

  Attributes:
    shape: dimensions.
    axes: a logical axis name per dimension (see `sharding.py`).
    scale: standard deviation of a truncated normal; 0: all zero; None: ones.
  """

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  scale: float | None


def _is_leaf(x: Any) -> bool:
  return isinstance(x, Leaf)


def table(config: Config) -> Params:
  """The parameters of a model as a nested dict of `Leaf`."""
  c = config
  # Projections begin at 1/sqrt(fan in); those that write to the residual
  # stream are divided by sqrt(2 L), so that its size does not grow with L.
  inner = 1 / math.sqrt(c.width)
  deep = 1 / math.sqrt(2 * c.layers)
  layer = {
    'attention_norm': Leaf((c.width,), ('embed',), None),
    'q': Leaf(
      (c.width, c.heads, c.head_size), ('embed', 'heads', 'head_size'), inner
    ),
    'k': Leaf(
      (c.width, c.kv_heads, c.head_size),
      ('embed', 'kv_heads', 'head_size'),
      inner,
    ),
    'v': Leaf(
      (c.width, c.kv_heads, c.head_size),
      ('embed', 'kv_heads', 'head_size'),
      inner,
    ),
    'o': Leaf(
      (c.heads, c.head_size, c.width),
      ('heads', 'head_size', 'embed'),
      deep / math.sqrt(c.heads * c.head_size),
    ),
    'mlp_norm': Leaf((c.width,), ('embed',), None),
  }
  if c.qk_norm:
    layer['q_norm'] = Leaf((c.head_size,), ('head_size',), None)
    layer['k_norm'] = Leaf((c.head_size,), ('head_size',), None)
  if c.qkv_bias:
    layer['q_bias'] = Leaf((c.heads, c.head_size), ('heads', 'head_size'), 0.0)
    for name in ('k_bias', 'v_bias'):
      layer[name] = Leaf(
        (c.kv_heads, c.head_size), ('kv_heads', 'head_size'), 0.0
      )
  if c.out_bias:
    layer['o_bias'] = Leaf((c.width,), ('embed',), 0.0)
  if c.experts:
    x, f = c.experts, c.expert_width
    layer['router'] = Leaf((c.width, x), ('embed', None), inner)
    if c.router_bias:
      layer['router_bias'] = Leaf((x,), (None,), 0.0)
    wide = Leaf(
      (x, c.width, f), ('expert', 'expert_embed', 'expert_mlp'), inner
    )
    layer['gate'] = layer['up'] = wide
    layer['down'] = Leaf(
      (x, f, c.width),
      ('expert', 'expert_mlp', 'expert_embed'),
      deep / math.sqrt(f),
    )
  else:
    f = c.mlp_width
    wide = Leaf((c.width, f), ('embed', 'mlp'), inner)
    layer['gate'] = layer['up'] = wide
    layer['down'] = Leaf((f, c.width), ('mlp', 'embed'), deep / math.sqrt(f))
  out = {
    'embed': Leaf((c.vocab, c.width), ('vocab', 'embed'), 0.02),
    'final_norm': Leaf((c.width,), ('embed',), None),
  }
  if not c.tied:
    out['head'] = Leaf((c.width, c.vocab), ('embed', 'vocab'), 0.02)
  if c.scan_layers:
    out['layers'] = {
      name: Leaf((c.layers, *leaf.shape), ('layer', *leaf.axes), leaf.scale)
      for name, leaf in layer.items()
    }
  else:
    out['layers'] = [dict(layer) for _ in range(c.layers)]
  return out


def init(config: Config, key: jax.Array) -> Params:
  """Random parameters in `config.param_dtype`."""
  leaves, tree = jax.tree.flatten(table(config), is_leaf=_is_leaf)
  dtype = jnp.dtype(config.param_dtype)

  keys = jax.random.split(key, len(leaves))
  return tree.unflatten(
    [_draw(x, dtype, k) for x, k in zip(leaves, keys, strict=True)]
  )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draw(leaf: Leaf, dtype: jnp.dtype, key: jax.Array) -> jax.Array:
  if leaf.scale is None:
    return jnp.ones(leaf.shape, dtype)
  if leaf.scale == 0:
    return jnp.zeros(leaf.shape, dtype)
  # 0.87962566: standard deviation of a normal cut at +-2.
  unit = jax.random.truncated_normal(key, -2.0, 2.0, leaf.shape)
  return (unit * (leaf.scale / 0.87962566)).astype(dtype)


def abstract(config: Config) -> Params:
  """The parameters as `jax.ShapeDtypeStruct`s."""
  dtype = jnp.dtype(config.param_dtype)
  return jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype),
    table(config),
    is_leaf=_is_leaf,
  )


def stack_layers(params: Params) -> Params:
  """A list of layers -> one dict of arrays with a leading L (for scan)."""
  if isinstance(params['layers'], dict):
    return params
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *params['layers'])
  return {**params, 'layers': stacked}


def unstack_layers(params: Params) -> Params:
  """The inverse of `stack_layers` (for unrolling)."""
  if not isinstance(params['layers'], dict):
    return params
  count = params['layers']['attention_norm'].shape[0]
  layers = [
    jax.tree.map(lambda x, i=i: x[i], params['layers']) for i in range(count)
  ]
  return {**params, 'layers': layers}


# ---- the forward pass ------------------------------------------------------


def apply(
  params: Params,
  config: Config,
  tokens_BT: jax.Array,
  positions_BT: jax.Array,
  *,
  attend: Attend | None = None,
  layer_states: Any = None,
  replay_routes: jax.Array | None = None,
  sharding: Any = None,
) -> tuple[jax.Array, Any, jax.Array | None]:
  """Runs the decoder.

  Args:
    params: nested dict as in `table(config)`; layers listed or stacked.
    config: sizes and switches.
    tokens_BT: int32 token ids.
    positions_BT: int32 rotary positions.
    attend: see the top of this file; None: causal within each row by index.
    layer_states: what `attend` gets as state: a list of L (unrolled) or a
      pytree of arrays with a leading L (scanned); None: each layer gets None.
    replay_routes: int [B, T, L, A], experts to use; a token whose entries of a
      layer are -1 is routed afresh there.
    sharding: a `sharding.Sharding`: pins activations to its mesh and runs the
      experts on it (`attend` must suit it, see `Sharding.attend`); None: one
      device.

  Returns:
    (hidden_BTD after the final norm, new layer states in the form of
    `layer_states`, routes int32 [B, T, L, A] or None for a dense model).
  """
  pin = sharding.constrain if sharding else lambda x, axes: x
  attend = attend or causal_attend
  dtype = jnp.dtype(config.dtype)
  x_BTD = embedding.look_up(params['embed'], tokens_BT, dtype, sharding)
  x_BTD = pin(x_BTD, ('batch', 'length', None))
  cos_sin = rope.angles(positions_BT, config)

  def block(x_BTD, layer, state, replay_BTA):
    with jax.named_scope('attention'):
      h_BTD = rms_norm(x_BTD, layer['attention_norm'], config.norm_eps)
      mixed_BTD, state = _attention(
        layer, config, h_BTD, cos_sin, attend, state, pin
      )
      x_BTD = pin(x_BTD + mixed_BTD, ('batch', 'length', None))
    with jax.named_scope('mlp'):
      h_BTD = rms_norm(x_BTD, layer['mlp_norm'], config.norm_eps)
      if config.experts:
        y_BTD, routes_BTA = _moe(layer, config, h_BTD, replay_BTA, sharding)
      else:
        y_BTD, routes_BTA = _mlp(layer, h_BTD, pin), None
      x_BTD = pin(x_BTD + y_BTD, ('batch', 'length', None))
    return x_BTD, state, routes_BTA

  block = _remat(block, config.remat)
  layers = params['layers']
  replay = replay_routes if config.experts else None
  if isinstance(layers, dict):
    if replay is not None:
      replay = jnp.moveaxis(replay, 2, 0)

    def step(x_BTD, xs):
      x_BTD, state, routes_BTA = block(x_BTD, *xs)
      return x_BTD, (state, routes_BTA)

    x_BTD, (states, routes) = jax.lax.scan(
      step, x_BTD, (layers, layer_states, replay)
    )
    if routes is not None:
      routes = jnp.moveaxis(routes, 0, 2)
  else:
    states, routes = [], []
    for i, layer in enumerate(layers):
      x_BTD, state, routes_BTA = block(
        x_BTD,
        layer,
        None if layer_states is None else layer_states[i],
        None if replay is None else replay[:, :, i],
      )
      states.append(state)
      routes.append(routes_BTA)
    states = None if layer_states is None else states
    routes = jnp.stack(routes, axis=2) if config.experts else None
  x_BTD = rms_norm(x_BTD, params['final_norm'], config.norm_eps)
  return x_BTD, states, routes


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
  """x / rms(x) * scale over the last axis, the rms in float32."""
  wide = x.astype(jnp.float32)
  mean = jnp.mean(wide * wide, axis=-1, keepdims=True)
  return (wide * jax.lax.rsqrt(mean + eps)).astype(x.dtype) * scale.astype(
    x.dtype
  )


def _attention(layer, config, x_BTD, cos_sin, attend, state, pin):
  dtype = x_BTD.dtype

  def project(name: str, heads: str) -> jax.Array:
    y = jnp.einsum('btd,dhc->bthc', x_BTD, layer[name].astype(dtype))
    if config.qkv_bias:
      y += layer[name + '_bias'].astype(dtype)
    return pin(y, ('batch', 'length', heads, None))

  q_BTHC = project('q', 'heads')
  k_BTKC = project('k', 'kv_heads')
  v_BTKC = project('v', 'kv_heads')
  if config.qk_norm:
    q_BTHC = rms_norm(q_BTHC, layer['q_norm'], config.norm_eps)
    k_BTKC = rms_norm(k_BTKC, layer['k_norm'], config.norm_eps)
  q_BTHC = rope.rotate(q_BTHC, cos_sin)
  k_BTKC = rope.rotate(k_BTKC, cos_sin)
  out_BTHC, state = attend(state, q_BTHC, k_BTKC, v_BTKC)
  out_BTHC = pin(out_BTHC.astype(dtype), ('batch', 'length', 'heads', None))
  out_BTHC = checkpoint_name(out_BTHC, 'attention')
  y_BTD = jnp.einsum('bthc,hcd->btd', out_BTHC, layer['o'].astype(dtype))
  if config.out_bias:
    y_BTD += layer['o_bias'].astype(dtype)
  return y_BTD, state


def _mlp(layer, x_BTD, pin):
  dtype = x_BTD.dtype
  gate_BTF = x_BTD @ layer['gate'].astype(dtype)
  up_BTF = x_BTD @ layer['up'].astype(dtype)
  hidden_BTF = pin(jax.nn.silu(gate_BTF) * up_BTF, ('batch', 'length', 'mlp'))
  return hidden_BTF @ layer['down'].astype(dtype)


def _moe(layer, config, x_BTD, replay_BTA, sharding):
  dtype = x_BTD.dtype
  logits_BTX = jnp.einsum(
    'btd,dx->btx',
    x_BTD.astype(jnp.float32),
    layer['router'].astype(jnp.float32),
    precision=jax.lax.Precision.HIGHEST,
  )
  routing = experts.route(
    logits_BTX,
    config.experts_per_token,
    norm_topk=config.norm_topk,
    bias_X=layer['router_bias'] if config.router_bias else None,
    replay_NA=replay_BTA,
  )
  weights = experts.Weights(
    *(layer[name].astype(dtype) for name in ('gate', 'up', 'down'))
  )
  if sharding is not None:
    y_BTD = exchange.run_sharded(
      x_BTD, weights, routing, sharding, impl=config.expert_impl
    )
    return y_BTD, routing.expert_NA
  flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), routing)
  y_ND = experts.run(
    x_BTD.reshape(-1, x_BTD.shape[-1]), weights, flat, impl=config.expert_impl
  )
  return y_ND.reshape(x_BTD.shape), routing.expert_NA


def _remat(block, policy: str):
  """Wraps a layer so that its backward pass keeps only what `policy` says.

  none: everything; full: the layer's input; dots: results of matmuls;
  attention: the layer's input and the output of attention (and what a kernel
  names 'attention_residuals'), so that attention is not run twice.
  """
  policies = jax.checkpoint_policies
  match policy:
    case 'none':
      return block
    case 'full':
      return jax.checkpoint(block)
    case 'dots':
      return jax.checkpoint(
        block, policy=policies.dots_with_no_batch_dims_saveable
      )
    case 'attention':
      return jax.checkpoint(
        block,
        policy=policies.save_only_these_names(
          'attention', 'attention_residuals'
        ),
      )
  raise ConfigError(
    f'unknown remat policy {policy!r}; wanted none, full, dots or attention'
  )


def causal_attend(
  state: Any, q_BTHC: jax.Array, k_BTKC: jax.Array, v_BTKC: jax.Array
) -> tuple[jax.Array, Any]:
  """Plain causal attention by index: the slow twin, for tests and small T."""
  batch, length, heads, size = q_BTHC.shape
  kv_heads = k_BTKC.shape[2]
  q_BTKGC = q_BTHC.reshape(batch, length, kv_heads, heads // kv_heads, size)
  score = jnp.einsum(
    'btkgc,bskc->bkgts', q_BTKGC, k_BTKC, preferred_element_type=jnp.float32
  )
  slot = jnp.arange(length)
  score = jnp.where(
    slot[:, None] >= slot[None, :], score / math.sqrt(size), -jnp.inf
  )
  weight = jax.nn.softmax(score, axis=-1).astype(v_BTKC.dtype)
  out = jnp.einsum('bkgts,bskc->btkgc', weight, v_BTKC)
  return out.reshape(q_BTHC.shape), state


def unembed(params: Params, config: Config) -> jax.Array:
  """The output matrix [D, V], whether tied or not."""
  return params['embed'].T if config.tied else params['head']


def logits(params: Params, config: Config, hidden: jax.Array) -> jax.Array:
  """Float32 logits [..., V] of hidden states [..., D]."""
  dtype = jnp.dtype(config.dtype)
  hidden = hidden.astype(dtype)
  if config.tied and hidden.size == config.width:
    # One row: from the other side, or XLA:CPU copies the table to transpose it
    # (decode at batch 1 took twice as long).
    logits_V = jnp.dot(
      params['embed'].astype(dtype),
      hidden.reshape(-1),
      preferred_element_type=jnp.float32,
    )
    return logits_V.reshape(*hidden.shape[:-1], -1)
  return jnp.dot(
    hidden,
    unembed(params, config).astype(dtype),
    preferred_element_type=jnp.float32,
  )


# ---- the Flax module -------------------------------------------------------


class Qwen3(nnx.Module):
  """The decoder as a Flax module; the same parameters as `init`'s dict.

  `nnx.Optimizer(model, ..., wrt=nnx.Param)` and the rest of Flax work on it;
  `params()` gives the plain dict and `update_params` takes one back.
  """

  def __init__(
    self,
    config: Config,
    *,
    rngs: nnx.Rngs | None = None,
    params: Params | None = None,
  ):
    if (rngs is None) == (params is None):
      raise ConfigError('wanted exactly one of rngs and params')
    self.config = config
    if params is None:
      params = init(config, rngs.params())
    for name, value in params.items():
      setattr(self, name, _boxed(value))

  def params(self) -> Params:
    """The parameters as a plain nested dict (no copies)."""
    names = [n for n in table(self.config) if hasattr(self, n)]
    return {name: _plain(getattr(self, name)) for name in names}

  def update_params(self, params: Params) -> None:
    """Takes over the values of a plain nested dict."""
    for name, value in params.items():
      setattr(self, name, _boxed(value))

  def __call__(
    self,
    tokens_BT: jax.Array,
    positions_BT: jax.Array,
    *,
    attend: Attend | None = None,
    layer_states: Any = None,
    replay_routes: jax.Array | None = None,
    sharding: Any = None,
  ) -> tuple[jax.Array, Any, jax.Array | None]:
    """See `apply`."""
    return apply(
      self.params(),
      self.config,
      tokens_BT,
      positions_BT,
      attend=attend,
      layer_states=layer_states,
      replay_routes=replay_routes,
      sharding=sharding,
    )

  def unembed(self) -> jax.Array:
    """The output matrix [D, V], whether tied or not."""
    return unembed(self.params(), self.config)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """Float32 logits [..., V]."""
    return logits(self.params(), self.config, hidden)


def _boxed(value: Any) -> Any:
  if isinstance(value, dict):
    return nnx.Dict({k: _boxed(v) for k, v in value.items()})
  if isinstance(value, list):
    return nnx.List([_boxed(v) for v in value])
  return nnx.Param(value)


def _plain(value: Any) -> Any:
  if isinstance(value, nnx.Variable):
    return value[...]
  if isinstance(value, nnx.List):
    return [_plain(v) for v in value]
  return {k: _plain(v) for k, v in value.items()}
