"""Packed rows against each call run alone: loss, log-probs, gradient.

The reference is written plainly: one call at a time, tokens in a row, positions
0, 1, 2, ..., ordinary causal attention, log_softmax of all logits, a sum over
the sampled tokens. The packed side is trie -> rows -> tree attention -> chunked
log-probs. Float32; log-probs within 5e-6, gradients within 1e-5 relative L2.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax import trie
from clawjax.kernels import tree_attention
from clawjax.losses import advantages, grpo, logprobs, weights
from clawjax.models import qwen3
from clawjax.types import Call, Sample

V = 61
CONFIGS = {
  'dense': qwen3.Config.tiny(
    vocab=V,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=8,
    mlp_width=48,
    experts=0,
  ),
  'moe': qwen3.Config.tiny(
    vocab=V,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=8,
    experts=4,
    experts_per_token=2,
    expert_width=24,
  ),
}
LOSS = grpo.PolicyLossConfig(kl_coef=0.05, entropy_coef=0.01, clip_high=0.28)


def make_calls(rng):
  """Three rollouts of two tasks with every awkward shape in them.

  Branch in the middle of an answer, branch at the root, the same answer sampled
  twice, an empty answer, answers of one token, a second root.
  """

  def ids(n):
    return rng.integers(0, V, n).tolist()

  rollouts = []
  for task in range(2):
    prompt = ids(17)
    for r in range(3 - task):
      calls = []
      rollout_id = f'task{task}/{r}'

      def add(p, o, calls=calls, rollout_id=rollout_id):
        calls.append(
          Call(
            call_id=f'c{len(calls)}',
            rollout_id=rollout_id,
            index=len(calls),
            prompt_ids=np.array(p, np.int32),
            sample=Sample(
              np.array(o, np.int32),
              rng.normal(-4.0, 0.3, len(o)).astype(np.float32),
              'stop',
            ),
          )
        )
        return [*p, *o]

      answer = ids(7)
      first = add(prompt, answer)
      second = add([*first, *ids(4)], ids(6))
      add([*second, *ids(3)], ids(1))
      add([*prompt, *answer[:3], *ids(2)], ids(5))  # inside the first answer
      if r == 0:
        add(prompt, answer)  # the same tokens again
        add(prompt, ids(4))  # a sibling from the very start
        add([*first, *ids(2)], [])  # nothing sampled
        add(ids(9), ids(3))  # another root
      rollouts.append((f'task{task}', calls))
  return rollouts


@dataclasses.dataclass
class Case:
  tries: list
  rewards: dict
  old: dict  # (rollout, call, position) -> old log-prob
  ref: dict


@pytest.fixture(scope='module')
def case():
  return make_case()


def make_case():
  rng = np.random.default_rng(0)
  tries, old, ref, rewards = [], {}, {}, {}
  for group, calls in make_calls(rng):
    tries.append(trie.build(calls, group=group))
    rewards[calls[0].rollout_id] = float(rng.random())
    for c in calls:
      for t, logp in enumerate(c.sample.logprobs):
        key = (c.rollout_id, c.call_id, t)
        old[key] = float(logp + 0.2 * rng.normal())
        ref[key] = float(logp + 0.2 * rng.normal())
  return Case(tries, rewards, old, ref)


def fill(batch, case, aggregation='rollout_mean'):
  """Advantages, weights, old and reference log-probs by the code under test."""
  by_call = {(t.rollout_id, c.call_id): c for t in case.tries for c in t.calls}
  old = np.zeros(batch.mask.shape, np.float32)
  ref = np.zeros(batch.mask.shape, np.float32)
  for b, e in np.argwhere(batch.mask):
    key = batch.call_keys[batch.term_call[b, e]]
    slot = batch.term_slot[b, e]
    t = batch.depth[b, slot] - len(by_call[key].prompt_ids)
    old[b, e], ref[b, e] = case.old[(*key, t)], case.ref[(*key, t)]
  reward = [case.rewards[r] for r in batch.rollout_ids]
  adv = advantages.group_advantages(reward, batch.groups)
  return batch.replace(
    old_logprob=old,
    ref_logprob=ref,
    advantage=advantages.per_term(adv.advantage, batch.term_rollout),
    weight=weights.term_weights(
      batch.term_rollout, groups=batch.groups, aggregation=aggregation
    ),
  )


def packed_loss(params, config, rows, impl='chunked', block=16):
  def attend(state, q, k, v):
    out = tree_attention(q, k, v, rows['subtree_end'], impl=impl, block=block)
    return out, state

  hidden, _, _ = qwen3.apply(
    params, config, rows['tokens'], rows['depth'], attend=attend
  )
  logp, entropy = logprobs.term_logprobs(
    hidden,
    qwen3.unembed(params, config),
    rows['tokens'],
    rows['parent'],
    rows['term_slot'],
    chunk=32,
    vocab_chunk=25,
  )
  loss, _ = grpo.grpo_loss(
    logp,
    old_logprob=rows['old_logprob'],
    rollout_logprob=rows['rollout_logprob'],
    advantage=rows['advantage'],
    weight=rows['weight'],
    config=LOSS,
    ref_logprob=rows['ref_logprob'],
    entropy=entropy,
  )
  return loss, logp


def run_packed(params, config, batch, microbatch=None, **options):
  """(loss, {(call key, position): log-prob}, gradient), summed over pieces."""
  arrays = batch.arrays()
  size = microbatch or len(batch.tokens)
  step = jax.jit(
    jax.value_and_grad(
      lambda p, rows: packed_loss(p, config, rows, **options), has_aux=True
    )
  )
  loss, grad, found = 0.0, None, {}
  for start in range(0, len(batch.tokens), size):
    rows = {k: jnp.asarray(v[start : start + size]) for k, v in arrays.items()}
    (part, logp), g = step(params, rows)
    loss += float(part)
    grad = g if grad is None else jax.tree.map(jnp.add, grad, g)
    for b, e in np.argwhere(batch.mask[start : start + size]):
      row = start + b
      key = batch.call_keys[batch.term_call[row, e]]
      depth = int(batch.depth[row, batch.term_slot[row, e]])
      found[(*key, depth)] = float(logp[b, e])
  return loss, found, grad


def reference_loss(params, config, case):
  """Every call alone; formulas written out. Returns loss, log-probs, gradient.

  A call stands in a row of its own; behind it the row is filled with zeros,
  which come later and so cannot be seen.
  """
  longest = max(
    len(c.prompt_ids) + len(c.sample.token_ids)
    for t in case.tries
    for c in t.calls
  )

  def one_call(params, ids, target_at, numbers):
    """-> loss, log-probs [longest]; target_at: bool, sampled tokens."""
    hidden, _, _ = qwen3.apply(
      params, config, ids[None], jnp.arange(longest)[None]
    )
    table = jax.nn.log_softmax(hidden[0] @ qwen3.unembed(params, config))
    table = jnp.concatenate([table[:1], table[:-1]])  # row of the token before
    logp = jnp.take_along_axis(table, ids[:, None], axis=1)[:, 0]
    entropy = -(jnp.exp(table) * table).sum(-1)
    adv, weight = numbers['adv'], numbers['weight']
    ratio = jnp.exp(logp - numbers['old'])
    objective = jnp.minimum(
      ratio * adv, jnp.clip(ratio, 1 - 0.2, 1 + 0.28) * adv
    )
    gap = numbers['ref'] - logp
    kl = jnp.exp(gap) - 1 - gap
    tis = jnp.minimum(jnp.exp(numbers['old'] - numbers['rollout']), 2.0)
    each = weight * tis * (-objective + 0.05 * kl) - 0.01 * weight * entropy
    return jnp.where(target_at, each, 0).sum(), logp

  step = jax.jit(jax.value_and_grad(one_call, has_aux=True))
  groups = {}
  for t in case.tries:
    groups.setdefault(t.group, []).append(case.rewards[t.rollout_id])
  total, found, grad = 0.0, {}, None
  for t in case.tries:
    rewards = np.array(groups[t.group])
    spread = np.sqrt(((rewards - rewards.mean()) ** 2).mean())
    adv = (case.rewards[t.rollout_id] - rewards.mean()) / (spread + 1e-6)
    terms = sum(len(c.sample.token_ids) for c in t.calls)
    for c in t.calls:
      n, m = len(c.prompt_ids), len(c.sample.token_ids)
      if not m:
        continue
      ids = np.zeros(longest, np.int32)
      ids[: n + m] = [*c.prompt_ids, *c.sample.token_ids]
      numbers = {k: np.zeros(longest, np.float32) for k in ('old', 'ref')}
      numbers['rollout'] = np.zeros(longest, np.float32)
      for i in range(m):
        key = (t.rollout_id, c.call_id, i)
        numbers['old'][n + i] = case.old[key]
        numbers['ref'][n + i] = case.ref[key]
        numbers['rollout'][n + i] = c.sample.logprobs[i]
      numbers['adv'] = np.float32(adv)
      numbers['weight'] = np.float32(1 / (len(case.tries) * terms))
      at = (np.arange(longest) >= n) & (np.arange(longest) < n + m)
      (loss, logp), g = step(params, ids, at, numbers)
      total += float(loss)
      grad = g if grad is None else jax.tree.map(jnp.add, grad, g)
      for i in range(m):
        found[t.rollout_id, c.call_id, n + i] = float(logp[n + i])
  return total, found, grad


@pytest.fixture(scope='module', params=['dense', 'moe'])
def reference(request, case):
  config = CONFIGS[request.param]
  params = qwen3.init(config, jax.random.key(1))
  # Weights of size 0.02 would make all logits alike: sharpen.
  params = jax.tree.map(lambda x: x * 2 if x.ndim > 1 else x, params)
  return config, params, *reference_loss(params, config, case)


def check(reference, got):
  _, _, loss, found, grad = reference
  got_loss, got_found, got_grad = got
  assert got_loss == pytest.approx(loss, abs=2e-6)
  assert set(got_found) == set(found)
  worst = max(abs(got_found[k] - float(found[k])) for k in found)
  assert worst < 5e-6
  square = sum(
    float(((a - b) ** 2).sum())
    for a, b in zip(
      jax.tree.leaves(got_grad), jax.tree.leaves(grad), strict=True
    )
  )
  size = sum(float((b**2).sum()) for b in jax.tree.leaves(grad))
  assert size > 0
  assert (square / size) ** 0.5 < 1e-5


@pytest.mark.parametrize(
  'impl', ['chunked', pytest.param('naive', marks=pytest.mark.slow)]
)
def test_one_row(case, reference, impl):
  batch = fill(trie.pack(case.tries, row_tokens=512), case)
  assert batch.stats['rows'] == 1
  check(reference, run_packed(reference[1], reference[0], batch, impl=impl))


@pytest.mark.parametrize(
  'options',
  [
    {'row_tokens': 72},  # trees split, terms owned once
    pytest.param({'row_tokens': 128, 'share': False}, marks=pytest.mark.slow),
    {'row_tokens': 200, 'order': 'reversed', 'row_multiple': 3},
    pytest.param(
      {'row_tokens': 512, 'order': 'smallest', 'row_buckets': (512,)},
      marks=pytest.mark.slow,
    ),
  ],
)
def test_any_packing(case, reference, options):
  batch = fill(trie.pack(case.tries, **options), case)
  check(reference, run_packed(reference[1], reference[0], batch))


@pytest.mark.parametrize(
  'microbatch', [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_any_number_of_microbatches(case, reference, microbatch):
  batch = fill(trie.pack(case.tries[::-1], row_tokens=80, row_multiple=4), case)
  assert batch.stats['rows'] > 2
  check(
    reference,
    run_packed(reference[1], reference[0], batch, microbatch=microbatch),
  )


def test_calls_in_any_order(case, reference):
  shuffled = []
  for tree in case.tries:
    calls = [
      dataclasses.replace(c, index=len(tree.calls) - c.index)
      for c in tree.calls
    ]
    shuffled.append(trie.build(calls[::-1], group=tree.group))
  batch = fill(trie.pack(shuffled, row_tokens=160), case)
  check(reference, run_packed(reference[1], reference[0], batch))


@pytest.mark.slow
@pytest.mark.parametrize('bug', ['position', 'shift'])
def test_the_test_sees_bugs(case, reference, bug):
  """Positions by slot, or targets shifted by one, must not pass."""
  batch = fill(trie.pack(case.tries, row_tokens=512), case)
  T = batch.tokens.shape[1]
  if bug == 'position':
    broken = batch.replace(
      depth=np.broadcast_to(np.arange(T, dtype=np.int32), batch.depth.shape)
    )
  else:
    broken = batch.replace(
      parent=np.broadcast_to(
        np.arange(-1, T - 1, dtype=np.int32), batch.parent.shape
      )
    )
  _, found, _ = run_packed(reference[1], reference[0], broken)
  right = sorted(float(x) for x in reference[3].values())
  assert max(np.abs(np.array(sorted(found.values())) - right)) > 1e-3
