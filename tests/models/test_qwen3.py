"""The decoder against rules that hold for any weights."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from clawjax.errors import ConfigError
from clawjax.models import experts, qwen3, value
from clawjax.models.config import PRESETS, Config

SMALL = Config.tiny(
  vocab=64, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
  mlp_width=48, experts=4, experts_per_token=2, expert_width=16,
)  # fmt: skip
DENSE = SMALL.replace(
  experts=0, experts_per_token=0, expert_width=0, family='qwen3', tied=False
)


# Compiled as a whole: op by op, each test would compile a hundred programs.
RUN = jax.jit(qwen3.apply, static_argnums=1, static_argnames='attend')


@pytest.fixture(params=['moe', 'dense'])
def config(request):
  return SMALL if request.param == 'moe' else DENSE


def _inputs(key=0, length=10, batch=2):
  tokens = jax.random.randint(jax.random.key(key), (batch, length), 0, 64)
  positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
  return tokens, positions


def _same_gradient(one, two):
  def compare(x, y):
    assert np.abs(x - y).max() <= 1e-5 * (np.abs(x).max() + 1e-3)

  jax.tree.map(compare, one, two)


def test_a_later_token_changes_no_earlier_state(config):
  params = qwen3.init(config, jax.random.key(1))
  tokens, positions = _inputs()
  one, _, _ = RUN(params, config, tokens, positions)
  other = tokens.at[:, 6].set((tokens[:, 6] + 1) % 64)
  two, _, _ = RUN(params, config, other, positions)
  np.testing.assert_allclose(one[:, :6], two[:, :6], atol=1e-6)
  assert np.abs(one[:, 6:] - two[:, 6:]).max() > 1e-3


def test_only_differences_of_positions_matter(config):
  params = qwen3.init(config, jax.random.key(1))
  tokens, positions = _inputs()
  one, _, _ = RUN(params, config, tokens, positions)
  two, _, _ = RUN(params, config, tokens, positions + 100)
  np.testing.assert_allclose(one, two, atol=2e-5)
  three, _, _ = RUN(params, config, tokens, positions * 2)
  assert np.abs(one - three).max() > 1e-3


def test_scan_and_unroll_agree(config):
  params = qwen3.init(config, jax.random.key(1))
  stacked = qwen3.stack_layers(params)
  tokens, positions = _inputs()
  replay = None
  if config.experts:
    replay = jnp.full((2, 10, 2, 2), -1).at[:, ::2].set(jnp.array([3, 1]))

  def loss(params):
    hidden, _, routes = qwen3.apply(
      params, config, tokens, positions, replay_routes=replay
    )
    return (hidden**2 * jnp.arange(32)).mean(), routes

  grad = jax.jit(jax.value_and_grad(loss, has_aux=True))
  (a, routes_a), grad_a = grad(params)
  (b, routes_b), grad_b = grad(stacked)
  np.testing.assert_allclose(a, b, rtol=1e-6)
  _same_gradient(grad_a, qwen3.unstack_layers(grad_b))
  if config.experts:
    np.testing.assert_array_equal(routes_a, routes_b)
    assert (np.asarray(routes_a)[:, ::2] == [3, 1]).all()


def test_states_pass_through_attend_in_both_forms():
  def attend(state, q, k, v):
    out, _ = qwen3.causal_attend(None, q, k, v)
    return out, state + k.sum()

  params = qwen3.init(DENSE, jax.random.key(1))
  tokens, positions = _inputs()
  listed = RUN(
    params, DENSE, tokens, positions, attend=attend,
    layer_states=[jnp.float32(0), jnp.float32(10)],
  )[1]  # fmt: skip
  stacked = RUN(
    qwen3.stack_layers(params), DENSE, tokens, positions, attend=attend,
    layer_states=jnp.array([0.0, 10.0]),
  )[1]  # fmt: skip
  np.testing.assert_allclose(np.stack(listed), stacked, atol=1e-4)


def test_remat_changes_no_gradient(config):
  config = config.replace(layers=1)
  params = qwen3.init(config, jax.random.key(1))
  tokens, positions = _inputs()

  def loss(params, config):
    hidden, _, _ = qwen3.apply(params, config, tokens, positions)
    return (hidden * jnp.arange(32)).mean()

  @jax.jit
  def all_policies(params):
    return [
      jax.grad(loss)(params, config.replace(remat=policy))
      for policy in ('none', 'full', 'dots', 'attention')
    ]

  plain, *rest = all_policies(params)
  for remat in rest:
    _same_gradient(plain, remat)


WAYS = ('dense', 'loop', 'gather', 'block', 'ragged')


@pytest.mark.parametrize('tokens', [1, 150])
def test_expert_paths_agree(tokens):
  rng = np.random.default_rng(0)
  shapes = ((tokens, 16), (8, 16, 12), (8, 16, 12), (8, 12, 16), (16, 8))
  args = [jnp.asarray(rng.normal(size=s) / 4, jnp.float32) for s in shapes]

  def loss(args, impl):
    x, gate, up, down, router = args
    routing = experts.route(x @ router, 2, norm_topk=True)
    y = experts.run(x, experts.Weights(gate, up, down), routing, impl=impl)
    return (y * jnp.arange(16)).mean(), y

  @jax.jit
  def all_ways(args):
    grad = jax.value_and_grad(loss, has_aux=True)
    return [grad(args, impl) for impl in WAYS]

  ((_, want), want_grad), *rest = all_ways(args)
  for (_, got), got_grad in rest:
    np.testing.assert_allclose(got, want, atol=1e-6)
    _same_gradient(want_grad, got_grad)


def test_one_token_by_hand_through_its_two_experts():
  # Logits 0, ln 2, ln 4 -> probabilities 1/7, 2/7, 4/7; top two renormed:
  # expert 2 gets 2/3, expert 1 gets 1/3. Expert i multiplies by i + 1:
  # silu(1 * 1) * 1 * (i + 1).
  logits = jnp.log(jnp.array([[1.0, 2.0, 4.0]]))
  routing = experts.route(logits, 2, norm_topk=True)
  assert routing.expert_NA.tolist() == [[2, 1]]
  np.testing.assert_allclose(routing.gate_NA, [[2 / 3, 1 / 3]], rtol=1e-6)
  plain = experts.route(logits, 2, norm_topk=False)
  np.testing.assert_allclose(plain.gate_NA, [[4 / 7, 2 / 7]], rtol=1e-6)
  one = jnp.ones((3, 1, 1))
  down = jnp.array([1.0, 2.0, 3.0])[:, None, None]
  silu = 1 / (1 + np.exp(-1))
  weights = experts.Weights(one, one, down)
  for y in jax.jit(
    lambda x: [experts.run(x, weights, routing, impl=i) for i in WAYS]
  )(jnp.ones((1, 1))):
    np.testing.assert_allclose(y, [[silu * (3 * 2 / 3 + 2 / 3)]], rtol=1e-6)


def test_a_router_bias_chooses_but_does_not_weigh():
  logits = jnp.log(jnp.array([[1.0, 2.0, 4.0]]))
  bias = jnp.array([1.0, 0.0, 0.0])
  routing = experts.route(logits, 2, norm_topk=False, bias_X=bias)
  assert routing.expert_NA.tolist() == [[0, 2]]
  np.testing.assert_allclose(routing.gate_NA, [[1 / 7, 4 / 7]], rtol=1e-6)


def test_replayed_routes_are_used_where_known():
  logits = jnp.log(jnp.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]))
  replay = jnp.array([[0, 1], [-1, -1]], jnp.int16)
  routing = experts.route(logits, 2, norm_topk=True, replay_NA=replay)
  assert routing.expert_NA.tolist() == [[0, 1], [2, 1]]
  np.testing.assert_allclose(routing.gate_NA[0], [1 / 3, 2 / 3], rtol=1e-6)


def test_replaying_own_routes_changes_nothing():
  params = qwen3.init(SMALL, jax.random.key(1))
  tokens, positions = _inputs()
  one, _, routes = RUN(params, SMALL, tokens, positions)
  assert routes.shape == (2, 10, 2, 2) and routes.dtype == jnp.int32
  two, _, again = RUN(
    params, SMALL, tokens, positions, replay_routes=routes.astype(jnp.int16)
  )
  np.testing.assert_allclose(one, two, atol=1e-6)
  np.testing.assert_array_equal(routes, again)


def test_bfloat16_stays_near_float32(config):
  params = qwen3.init(config, jax.random.key(1))
  tokens, positions = _inputs()
  half = config.replace(dtype='bfloat16')
  hidden, _, routes = RUN(params, config, tokens, positions)
  low, _, _ = RUN(params, half, tokens, positions, replay_routes=routes)
  assert low.dtype == jnp.bfloat16
  assert qwen3.logits(params, half, low).dtype == jnp.float32
  # Norm output has unit size: 2 layers of bf16 (8 bits) err by a few 1/256.
  assert np.abs(np.asarray(low, np.float32) - hidden).mean() < 0.02


def test_flax_module_is_the_functional_twin(config):
  model = qwen3.Qwen3(config, rngs=nnx.Rngs(0))
  tokens, positions = _inputs()
  hidden, _, _ = nnx.jit(lambda m, *x: m(*x))(model, tokens, positions)
  want, _, _ = RUN(model.params(), config, tokens, positions)
  np.testing.assert_allclose(hidden, want, atol=1e-6)
  np.testing.assert_allclose(
    model.logits(hidden), hidden @ model.unembed(), atol=1e-5
  )
  leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
  assert sum(x.size for x in leaves) == config.total_params
  grad = nnx.jit(nnx.grad(lambda m: (m(tokens, positions)[0] ** 2).sum()))(
    model
  )
  assert np.isfinite(np.asarray(grad['embed'][...])).all()
  fresh = qwen3.init(config, jax.random.key(9))
  model.update_params(fresh)
  np.testing.assert_array_equal(model.params()['embed'], fresh['embed'])


def test_parameter_counts_of_published_sizes():
  # Model cards: 0.6B (0.44B without embedding), 8.2B (6.95B), 30.5B with 3.3B
  # active, 235B with 22B active.
  billions = {n: PRESETS[n].total_params / 1e9 for n in PRESETS}
  assert round(billions['qwen3-0.6b'], 1) == 0.6
  assert round(billions['qwen3-1.7b'], 1) == 1.7
  assert round(billions['qwen3-4b'], 1) == 4.0
  assert round(billions['qwen3-8b'], 1) == 8.2
  assert round(billions['qwen3-14b'], 1) == 14.8
  assert round(billions['qwen3-32b'], 1) == 32.8
  assert round(billions['qwen3-30b-a3b'], 1) == 30.5
  assert round(billions['qwen3-235b-a22b']) == 235
  for name, total in itertools.islice(billions.items(), 8):
    leaves = jax.tree.leaves(qwen3.abstract(PRESETS[name]))
    assert sum(x.size for x in leaves) / 1e9 == total


def test_value_model_starts_at_zero_and_learns():
  params = value.init(SMALL, jax.random.key(0))
  assert 'head' not in params['trunk']
  tokens, positions = _inputs()
  run = jax.jit(value.apply, static_argnums=1)
  values = run(params, SMALL, tokens, positions)
  assert values.shape == (2, 10) and values.dtype == jnp.float32
  assert np.abs(values).max() == 0
  grad = jax.grad(
    lambda p: ((run(p, SMALL, tokens, positions) - 1) ** 2).mean()
  )(params)
  # d/dbias mean((0 - 1)^2) = -2.
  np.testing.assert_allclose(grad['bias'], -2, rtol=1e-6)


def test_wrong_configs_are_refused():
  with pytest.raises(ConfigError, match='heads divisible'):
    SMALL.replace(heads=3)
  with pytest.raises(ConfigError, match='unknown model preset'):
    Config.preset('qwen3-9b')
  hf = DENSE.to_hf()
  with pytest.raises(ConfigError, match='sliding'):
    Config.from_hf({**hf, 'use_sliding_window': True})
  with pytest.raises(ConfigError, match='model_type'):
    Config.from_hf({**hf, 'model_type': 'gemma'})
  with pytest.raises(ConfigError, match='rope scaling'):
    Config.from_hf({**hf, 'rope_scaling': {'rope_type': 'longrope'}})


@pytest.mark.parametrize('name', PRESETS)
def test_presets_survive_hf_and_back(name):
  config = PRESETS[name]
  back = Config.from_hf(config.to_hf())
  fields = ('dtype', 'param_dtype', 'scan_layers', 'remat')
  want = config.replace(**{f: getattr(back, f) for f in fields})
  if config.experts:
    want = want.replace(mlp_width=back.mlp_width)
  assert back == want
