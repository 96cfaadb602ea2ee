"""A path longer than a row: relayed rows equal one long row.

Two rollouts of one task, each a chain of calls up to 120 tokens, in rows of 48:
the long ones go on over three rows, with forks in them, calls that end at every
place, and a parent in another row. Loss, log-probs and gradients against the
same calls in one row of 256, which is not relayed.
"""

import dataclasses

import jax
import numpy as np
import pytest

from clawjax import trie
from clawjax.losses import grpo
from clawjax.models import qwen3
from clawjax.train import state, step, value
from clawjax.types import Call, Sample

V = 61
MODELS = {
  'dense': qwen3.Config.tiny(
    vocab=V, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
    mlp_width=48, experts=0,
  ),
  'moe, scanned': qwen3.Config.tiny(
    vocab=V, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
    experts=4, experts_per_token=2, expert_width=24, scan_layers=True,
    remat='full',
  ),
}  # fmt: skip
# The sequence level needs all terms of a call together, wherever they stand.
LOSS = grpo.PolicyLossConfig(ratio='sequence', entropy_coef=0.01)


def _tries():
  rng = np.random.default_rng(0)
  tries, prompt = [], rng.integers(0, V, 20).tolist()
  for r in range(2):
    calls, ids = [], list(prompt)

    def add(prompt, count, calls=calls, r=r):
      out = rng.integers(0, V, count)
      logprobs = rng.normal(-4.0, 0.3, count).astype(np.float32)
      calls.append(
        Call(
          f'c{len(calls)}',
          f'r{r}',
          len(calls),
          np.array(prompt, np.int32),
          Sample(out.astype(np.int32), logprobs, 'stop'),
        )
      )
      return [*prompt, *out.tolist()]

    for turn in range(7):
      ids = add(ids, int(rng.integers(5, 13)))
      if turn in (1, 4):  # a fork: one short, one in the middle of a long path
        add([*ids[:-2], 3], 4)
      ids = ids + rng.integers(0, V, 6).tolist()
    tries.append(trie.build(calls, group='task'))
  return tries


def _filled(batch):
  rng = np.random.default_rng(1)
  noise = {key: rng.normal(size=40) for key in sorted(batch.call_keys)}
  old, advantage, target = (
    np.zeros(batch.mask.shape, np.float32) for _ in '123'
  )
  seen: dict = {}
  for b, e in np.argwhere(batch.mask):
    key = batch.call_keys[batch.term_call[b, e]]
    t = seen[key] = seen.get(key, -1) + 1  # terms of a call stand in order
    old[b, e] = batch.rollout_logprob[b, e] + 0.2 * noise[key][t]
    advantage[b, e] = noise[key][39] + (key[0] == 'r0')
    target[b, e] = noise[key][38]
  weight = batch.mask / batch.mask.sum()
  return batch.replace(
    old_logprob=old,
    advantage=advantage,
    value_target=target,
    weight=weight.astype(np.float32),
  )


def _terms(batch, array):
  found, seen = {}, {}
  for b, e in np.argwhere(batch.mask):
    key = batch.call_keys[batch.term_call[b, e]]
    seen[key] = seen.get(key, -1) + 1
    found[(*key, seen[key])] = float(array[b, e])
  return found


def _distance(one, two):
  leaves = list(zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
  square = sum(float(((a - b) ** 2).sum()) for a, b in leaves)
  size = sum(float((b**2).sum()) for _, b in leaves)
  assert size > 0
  return (square / size) ** 0.5


@pytest.fixture(scope='module')
def batches():
  tries = _tries()
  whole = _filled(trie.pack(tries, row_tokens=256, row_buckets=(256,)))
  relay = _filled(trie.pack(tries, row_tokens=48, row_buckets=(48,), relay=4))
  assert whole.row_offset is None and whole.stats['rows'] == 1
  assert relay.stats['too_long_calls'] == 0
  assert relay.stats['relayed_rows'] >= 2
  assert relay.mask.sum() == whole.mask.sum()
  return whole, relay


def test_without_relay_the_long_calls_are_left_out():
  batch = trie.pack(_tries(), row_tokens=48)
  assert batch.stats['too_long_calls'] > 4
  assert batch.row_offset is None


def test_terms_of_a_call_stay_in_one_row(batches):
  _, relay = batches
  for number in range(len(relay.call_keys)):
    assert len(np.unique(np.nonzero(relay.term_call == number)[0])) == 1


def test_some_terms_are_read_in_another_row(batches):
  """Otherwise the test below would not test what it should."""
  _, relay = batches
  T = relay.tokens.shape[1]
  first = relay.row_offset[:, None]
  assert (relay.mask & (relay.term_slot < first)).any()
  assert (relay.parent[1:, 0] == relay.row_offset[1:] - 1).any()
  assert relay.subtree_end.max() > 2 * T


@pytest.mark.parametrize('name', list(MODELS))
def test_relayed_rows_equal_one_long_row(batches, name):
  whole, relay = batches
  model = MODELS[name]
  params = qwen3.init(model, jax.random.key(1))
  # Attention that prefers some tokens. The rounding of float32 grows with it: the
  # gradients of three models are 1e-6 apart at 1, and 0.9 to 1.9e-5 at 2.
  params = jax.tree.map(lambda x: x * 1.4 if x.ndim > 1 else x, params)
  learner = step.Learner(
    model,
    state.make_optimizer(state.OptimConfig()),
    forward=step.ForwardConfig(chunk=64),
    loss=LOSS,
  )
  want = _terms(whole, learner.score(params, whole))
  got = _terms(relay, learner.score(params, relay))
  assert set(got) == set(want)
  assert max(abs(got[k] - want[k]) for k in want) < 5e-6
  grad, sums = learner._policy_gradient(params, whole)
  relayed_grad, relayed_sums = learner._policy_gradient(params, relay)
  assert float(relayed_sums['loss']) == pytest.approx(
    float(sums['loss']), abs=2e-6
  )
  assert _distance(relayed_grad, grad) < 1e-5


def test_a_relayed_value_model_equals_one_long_row(batches):
  whole, relay = batches
  model = MODELS['dense']
  critic = value.Critic(model, value.CriticConfig())
  params = critic.init(qwen3.init(model, jax.random.key(1))).params
  head = jax.random.normal(jax.random.key(2), params['head'].shape)
  params['head'] = 0.1 * head  # values of size 1
  want = _terms(whole, critic.score(params, whole))
  got = _terms(relay, critic.score(params, relay))
  assert max(abs(got[k] - want[k]) for k in want) < 5e-6
  grad, _ = critic._gradient(params, whole)
  relayed, _ = critic._gradient(params, relay)
  assert _distance(relayed, grad) < 1e-5


def test_cutting_the_relay_would_be_seen(batches):
  """Rows run without the rows before them must not pass."""
  _, relay = batches
  model = MODELS['dense']
  params = qwen3.init(model, jax.random.key(1))
  learner = step.Learner(model, state.make_optimizer(state.OptimConfig()))
  right = learner.score(params, relay)
  T = relay.tokens.shape[1]
  cut = dataclasses.replace(
    relay,
    row_offset=None,
    parent=relay.parent % T,
    term_slot=relay.term_slot % T,
    subtree_end=np.clip(
      relay.subtree_end - relay.row_offset[:, None],
      np.arange(1, T + 1),
      T,
    ).astype(np.int32),
  )
  wrong = learner.score(params, cut)
  assert np.abs(wrong - right)[relay.mask].max() > 1e-3
