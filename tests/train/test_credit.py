"""Credit by hand: values, KL in the reward, branches, roles."""

import dataclasses

import numpy as np
import pytest

from clawjax import types
from clawjax.train import credit
from clawjax.trie import FilterConfig, build, filter, pack  # noqa: A004


def _call(index, prompt, output, role='main'):
  sample = types.Sample(
    np.array(output, np.int32), np.full(len(output), -0.5, np.float32), 'stop'
  )
  return types.Call(
    f'c{index}', '', index, np.array(prompt, np.int32), sample, role=role
  )


def _rollout(name, reward, calls, task='a'):
  return types.Rollout(
    name, task, 'pi', index=0, calls=tuple(calls), reward=reward
  )


def _chunk(rollouts, auxiliary='exclude'):
  tries = [
    filter(build(r, group=r.group), FilterConfig(auxiliary=auxiliary))[0]
    for r in rollouts
  ]
  return pack(tries, row_tokens=64), rollouts


def _assign(chunks, **options):
  return credit.assign(
    chunks, credit.CreditConfig(**options), rng=np.random.default_rng(0)
  )


def _by_term(batch, name='advantage'):
  """(rollout id, position in the answer's context) -> number."""
  found = {}
  for b, e in np.argwhere(batch.mask):
    rollout = batch.rollout_ids[batch.term_rollout[b, e]]
    depth = int(batch.depth[b, batch.term_slot[b, e]])
    found[rollout, depth] = float(getattr(batch, name)[b, e])
  return found


def _set(batch, **fields):
  """Fields given as {(rollout, depth): number}."""
  arrays = {k: np.zeros(batch.mask.shape, np.float32) for k in fields}
  for b, e in np.argwhere(batch.mask):
    rollout = batch.rollout_ids[batch.term_rollout[b, e]]
    depth = int(batch.depth[b, batch.term_slot[b, e]])
    for name, numbers in fields.items():
      arrays[name][b, e] = numbers[rollout, depth]
  return batch.replace(**arrays)


TWO = [
  _rollout('r', 1.0, [_call(0, [1, 2], [3, 4])]),
  _rollout('s', 0.0, [_call(0, [1, 2], [5])]),
]


def test_advantage_is_reward_minus_value():
  """Eq. 8: 1 - .4, 1 - .7 and 0 - .4; targets are the rewards."""
  batch, rollouts = _chunk(TWO)
  batch = _set(batch, old_value={('r', 2): 0.4, ('r', 3): 0.7, ('s', 2): 0.4})
  out = _assign([(batch, rollouts)], estimator='value')
  assert _by_term(out.batches[0]) == pytest.approx(
    {('r', 2): 0.6, ('r', 3): 0.3, ('s', 2): -0.4}
  )
  assert _by_term(out.batches[0], 'value_target') == pytest.approx(
    {('r', 2): 1, ('r', 3): 1, ('s', 2): 0}
  )
  assert out.by_rollout == pytest.approx({'r': 0.45, 's': -0.4})
  assert out.statistics['reward_mean'] == 0.5
  # Residuals .6 .3 -.4 have variance .1756, targets 1 1 0 have 2/9.
  residual = np.var([0.6, 0.3, -0.4])
  assert out.statistics['value_explained_variance'] == pytest.approx(
    1 - residual / (2 / 9)
  )


def test_lambda_below_one_is_gae_on_the_chain():
  """gamma = 1, lambda = .5: A_3 = 1 - .7 = .3; A_2 = (.7 - .4) + .5 x .3."""
  batch, rollouts = _chunk(TWO)
  batch = _set(batch, old_value={('r', 2): 0.4, ('r', 3): 0.7, ('s', 2): 0.4})
  out = _assign([(batch, rollouts)], estimator='value', lam=0.5)
  assert _by_term(out.batches[0]) == pytest.approx(
    {('r', 2): 0.45, ('r', 3): 0.3, ('s', 2): -0.4}
  )


def test_whitening_is_over_the_terms_of_the_step():
  batch, rollouts = _chunk(TWO)
  batch = _set(batch, old_value={('r', 2): 0.4, ('r', 3): 0.7, ('s', 2): 0.4})
  gains = np.array([0.6, 0.3, -0.4])
  want = (gains - gains.mean()) / gains.std()
  out = _assign([(batch, rollouts)], estimator='value', whiten=True)
  assert _by_term(out.batches[0]) == pytest.approx(
    dict(zip([('r', 2), ('r', 3), ('s', 2)], want, strict=True)), abs=1e-4
  )
  assert out.batches[0].advantage[~batch.mask].any() == False  # noqa: E712


LOGPROBS = {
  'old_logprob': {('r', 2): -1.0, ('r', 3): -1.0, ('s', 2): -2.0},
  'ref_logprob': {('r', 2): -1.5, ('r', 3): -1.1, ('s', 2): -1.8},
}


def test_kl_in_the_reward_of_a_group():
  """k1 = old - ref: r has .5 + .1, s has -.2. With beta = .5 the rewards are
  1 - .3 = .7 and 0 + .1 = .1; without scaling, advantages +-.3."""
  batch, rollouts = _chunk(TWO)
  out = _assign(
    [(_set(batch, **LOGPROBS), rollouts)],
    reward_kl_coef=0.5,
    advantage=credit.advantages.AdvantageConfig(scale='none'),
  )
  assert _by_term(out.batches[0]) == pytest.approx(
    {('r', 2): 0.3, ('r', 3): 0.3, ('s', 2): -0.3}
  )
  assert out.statistics['reward_kl'] == pytest.approx(0.4 / 3)
  assert out.statistics['reward_mean'] == 0.5


def test_kl_in_the_reward_of_a_step():
  """V = 0, beta = .5: the last token of r earns 1 - .05, the first that and
  -.25 more; s earns 0 + .1."""
  batch, rollouts = _chunk(TWO)
  out = _assign(
    [(_set(batch, **LOGPROBS), rollouts)],
    estimator='value',
    reward_kl_coef=0.5,
  )
  assert _by_term(out.batches[0]) == pytest.approx(
    {('r', 2): 0.7, ('r', 3): 0.95, ('s', 2): 0.1}
  )


def test_a_share_of_the_reward_is_paid_call_by_call():
  """R = .75; calls earned .25, .2 (not trained: an error) and .3; c = .5, V = 0.

  The last call gets .15 + .375; the first .5 (.25 + .2) more. `s` has no process
  rewards and is paid at its end.
  """
  failed = dataclasses.replace(_call(1, [1, 2, 3, 4, 7], [8]), status='error')
  calls = [
    _call(0, [1, 2], [3, 4]), failed, _call(2, [1, 2, 3, 4, 7], [6])
  ]  # fmt: skip
  earned = {'rewards': {'c0': 0.25, 'c1': 0.2, 'c2': 0.3}}
  rollouts = [
    dataclasses.replace(_rollout('r', 0.75, calls), extra={'process': earned}),
    _rollout('s', 0.5, [_call(0, [1, 2], [5])]),
  ]
  out = _assign([_chunk(rollouts)], estimator='value', process_share=0.5)
  assert _by_term(out.batches[0]) == pytest.approx(
    {('r', 2): 0.75, ('r', 3): 0.75, ('r', 5): 0.525, ('s', 2): 0.5}
  )
  assert out.statistics['process_fraction'] == 0.5
  assert out.statistics['reward_mean'] == 0.625


# 1 2 - 3 - 4      r, 1.0
#         \\ 5      s, 0.0       all begin with 3 but u
#      \\ 6 - 7     u, 0.2
FORKS = [
  _rollout('r', 1.0, [_call(0, [1, 2], [3, 4])]),
  _rollout('s', 0.0, [_call(0, [1, 2], [3, 5])]),
  _rollout('u', 0.2, [_call(0, [1, 2], [6, 7])]),
]


def test_branch_advantages_compare_siblings():
  """Mean .4 of all. Token 3: (1 + 0) / 2 - .4 = .1, in both rollouts; 4:
  1 - .5; 5: 0 - .5; 6 and 7: .2 - .4."""
  out = _assign(
    [_chunk(FORKS)],
    level='branch',
    advantage=credit.advantages.AdvantageConfig(scale='none'),
  )
  assert _by_term(out.batches[0]) == pytest.approx(
    {
      ('r', 2): 0.1, ('r', 3): 0.5, ('s', 2): 0.1, ('s', 3): -0.5,
      ('u', 2): -0.2, ('u', 3): -0.2,
    }
  )  # fmt: skip


def test_a_token_that_all_share_decides_nothing():
  """Both begin with 3: it has advantage 0; what follows has +-1 (sigma 1/2)."""
  out = _assign([_chunk(FORKS[:2])], level='branch')
  assert _by_term(out.batches[0]) == pytest.approx(
    {('r', 2): 0, ('r', 3): 1, ('s', 2): 0, ('s', 3): -1}, abs=1e-4
  )


def test_without_shared_answers_branches_are_rollouts():
  plain = _assign([_chunk(TWO)])
  branch = _assign([_chunk(TWO)], level='branch')
  assert _by_term(branch.batches[0]) == pytest.approx(
    _by_term(plain.batches[0])
  )


def test_roles_are_groups_of_their_own():
  """Two of three rollouts called a subagent: its group has their rewards only.

  Main: 1 0 .5 with mean .5; subagents: 1 0 with mean .5 and sigma .5.
  """
  rollouts = [
    _rollout(
      'r', 1.0, [_call(0, [1, 2], [3]), _call(1, [8], [9], role='subagent')]
    ),
    _rollout(
      's', 0.0, [_call(0, [1, 2], [4]), _call(1, [8], [7], role='subagent')]
    ),
    _rollout('u', 0.8, [_call(0, [1, 2], [5])]),
  ]
  out = _assign([_chunk(rollouts, auxiliary='train')])
  found = _by_term(out.batches[0])
  mean, sigma = 0.6, np.std([1, 0, 0.8])
  assert found == pytest.approx(
    {
      ('r', 2): (1 - mean) / sigma, ('s', 2): (0 - mean) / sigma,
      ('u', 2): (0.8 - mean) / sigma, ('r', 1): 1.0, ('s', 1): -1.0,
    },
    abs=1e-4,
  )  # fmt: skip


def test_shuffling_without_groups_is_over_all():
  """With one rollout per task nothing could be dealt out within a group."""
  many = [
    _rollout(f'r{i}', float(i), [_call(0, [1, 2], [3 + i])], task=f't{i}')
    for i in range(6)
  ]
  chunks = [_chunk([r]) for r in many]
  out = _assign(chunks, estimator='value', shuffle_rewards=True)
  dealt = {k: v for b in out.batches for k, v in _by_term(b).items()}
  assert sorted(dealt.values()) == [0, 1, 2, 3, 4, 5]
  assert dealt != {(f'r{i}', 2): float(i) for i in range(6)}


@pytest.mark.parametrize(
  'options',
  [
    {'gamma': 0.9},
    {'whiten': True},
    {'process_share': 0.5},
    {'estimator': 'value', 'process_share': 1.5},
    {'estimator': 'value', 'level': 'branch'},
    {'estimator': 'value', 'lam': 1.5},
    {'level': 'branch', 'advantage': 'leave_one_out'},
  ],
)
def test_options_that_would_change_nothing_are_refused(options):
  if 'advantage' in options:
    options['advantage'] = credit.advantages.AdvantageConfig(
      baseline=options['advantage']
    )
  with pytest.raises(ValueError, match=r'wanted|estimator|baseline'):
    credit.CreditConfig(**options)
