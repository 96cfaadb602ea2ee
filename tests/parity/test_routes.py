"""Routing replay (R3): packed rows with recorded experts equal each call alone.

Each call carries the experts that the sampler used for every token of prompt and
answer. A call that goes on from another was served by its cache, so it has the
same experts there; one that was computed anew may have others, and shares only
the tokens up to the first difference. Some experts are unknown (-1) and are
chosen by the router in both ways.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax import trie
from clawjax.models import qwen3
from clawjax.train import state, step
from clawjax.types import Call, Sample

V = 61
MODEL = qwen3.Config.tiny(
  vocab=V, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
  experts=6, experts_per_token=2, expert_width=24,
)  # fmt: skip
L, A, X = MODEL.layers, MODEL.experts_per_token, MODEL.experts


def _experts(rng, count):
  """Two different experts per token and layer, int16 [count, L, A]."""
  scores = rng.random((count, L, X))
  return np.argsort(scores, axis=-1)[:, :, :A].astype(np.int16)


def _calls():
  rng = np.random.default_rng(0)
  calls = []

  def add(prompt, routes, count):
    out, used = rng.integers(0, V, count), _experts(rng, count)
    calls.append(
      Call(
        f'c{len(calls)}',
        'r',
        len(calls),
        np.array(prompt, np.int32),
        Sample(
          out.astype(np.int32),
          rng.normal(-4.0, 0.3, count).astype(np.float32),
          'stop',
          prompt_routes=routes,
          routes=used,
        ),
      )
    )
    return [*prompt, *out.tolist()], np.concatenate([routes, used])

  prompt = rng.integers(0, V, 12).tolist()
  routes = _experts(rng, 12)
  routes[3] = -1  # not recorded
  ids, known = add(prompt, routes, 6)
  more, new = rng.integers(0, V, 4).tolist(), _experts(rng, 4)
  add([*ids, *more], np.concatenate([known, new]), 5)
  # The same tokens prefilled anew: other experts from token 7 on.
  other = known.copy()
  other[7:] = _experts(rng, len(known) - 7)
  add([*ids, *more], np.concatenate([other, new]), 3)
  add(prompt, routes, 4)
  return calls


def _packed(calls, routes):
  batch = trie.pack([trie.build(calls, routes=routes)], row_tokens=64)
  weight = np.where(batch.mask, 1.0, 0.0).astype(np.float32)
  return batch.replace(weight=weight)


def _alone(params, calls, replay):
  """-sum of log-probs, every call alone; also log-probs by (call, depth)."""
  found = {}

  def loss(params):
    total = 0.0
    for call in calls:
      ids = np.concatenate([call.prompt_ids, call.sample.token_ids])
      routes = np.concatenate([call.sample.prompt_routes, call.sample.routes])
      hidden, _, _ = qwen3.apply(
        params,
        MODEL,
        jnp.asarray(ids)[None],
        jnp.arange(len(ids))[None],
        replay_routes=jnp.asarray(routes)[None] if replay else None,
      )
      table = jax.nn.log_softmax(hidden[0] @ qwen3.unembed(params, MODEL))
      for t in range(len(call.prompt_ids), len(ids)):
        logp = table[t - 1, ids[t]]
        found[call.call_id, t] = logp
        total -= logp
    return total

  grad = jax.grad(loss)(params)
  loss(params)  # once more without tracing, for `found`
  return grad, {k: float(v) for k, v in found.items()}


def _by_call(batch, logp):
  return {
    (
      batch.call_keys[batch.term_call[b, e]][1],
      int(batch.depth[b, batch.term_slot[b, e]]),
    ): float(logp[b, e])
    for b, e in np.argwhere(batch.mask)
  }


@pytest.fixture(scope='module')
def setup():
  params = qwen3.init(MODEL, jax.random.key(1))
  params = jax.tree.map(lambda x: x * 2 if x.ndim > 1 else x, params)
  learner = step.Learner(
    MODEL,
    state.make_optimizer(state.OptimConfig()),
    forward=step.ForwardConfig(chunk=64),
  )
  return params, learner, _calls()


def test_replayed_rows_equal_each_call_alone(setup):
  params, learner, calls = setup
  batch = _packed(calls, 'split')
  # 22 slots of the first two calls, 15 more from the difference on, 3 + 4.
  assert batch.stats['tokens'] == 12 + 6 + 4 + 5 + (18 - 7) + 4 + 3 + 4
  grad, found = _alone(params, calls, replay=True)
  got = _by_call(batch, learner.score(params, batch))
  assert set(got) == set(found)
  assert max(abs(got[k] - found[k]) for k in found) < 5e-6
  packed, _ = learner._likelihood_gradient(params, batch)
  square = jax.tree.map(lambda a, b: float(((a - b) ** 2).sum()), packed, grad)
  size = jax.tree.map(lambda b: float((b**2).sum()), grad)
  ratio = sum(jax.tree.leaves(square)) / sum(jax.tree.leaves(size))
  assert ratio**0.5 < 1e-5


def test_replay_changes_what_is_computed(setup):
  """Without it the router's own choice is taken, which is another one."""
  params, learner, calls = setup
  _, found = _alone(params, calls, replay=True)
  batch = _packed(calls, 'ignore')
  assert batch.routes is None
  got = _by_call(batch, learner.score(params, batch))
  assert max(abs(got[k] - found[k]) for k in found) > 1e-3
  _, fresh = _alone(params, calls, replay=False)
  assert max(abs(got[k] - fresh[k]) for k in fresh) < 5e-6
