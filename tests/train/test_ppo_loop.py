"""PPO through the loop: the critic learns, the policy waits, resume is exact."""

import dataclasses
import importlib.util
import pathlib

import jax
import numpy as np
import pytest

from clawjax import metrics
from clawjax.models import value as value_model
from clawjax.train import checkpoint, credit, loop, state, value

HERE = pathlib.Path(__file__).parent
_spec = importlib.util.spec_from_file_location('toy_run', HERE / 'toy_run.py')
toy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toy)

STEPS = 4
PRETRAIN = 2


class Recorder(toy.ToyScheduler):
  """Keeps a copy of every policy that it was given."""

  def __init__(self):
    super().__init__()
    self.policies = []

  def load_params(self, params, version):
    super().load_params(params, version)
    self.policies.append([np.asarray(x) for x in jax.tree.leaves(params)])


class Interrupted(Exception):
  """What stops a run in the middle of a step."""


class Service(toy.ToyService):
  """Odd tasks are always solved, even ones never, and the prompt says which."""

  def __init__(self, scheduler, stop_at=0):
    super().__init__(scheduler)
    self.stop_at = stop_at

  def groups(self, requests, **options):
    for number, group in enumerate(super().groups(requests, **options)):
      if number == 2 and group[0].rollout_id.startswith(
        f'train/{self.stop_at}/'
      ):
        raise Interrupted
      yield group


def _rollout(task, rollout_id, index, version):
  odd = int(task.id[-1], 36) % 2
  plain = toy_rollout(task, rollout_id, index, version)
  calls = tuple(
    dataclasses.replace(
      c, prompt_ids=np.concatenate([[30 + odd] * 2, c.prompt_ids])
    )
    for c in plain.calls
  )
  return dataclasses.replace(plain, calls=calls, reward=float(odd))


toy_rollout = toy.rollout
toy.rollout = _rollout


def _parts(run_dir, *, stop_at=0):
  parts = toy.parts(run_dir)
  critic = value.Critic(
    parts.learner.model,
    value.CriticConfig(
      pretrain_steps=PRETRAIN,
      pretrain_epochs=6,
      optim=state.OptimConfig(learning_rate=3e-2),
    ),
    forward=parts.learner.forward,
  )
  scheduler = Recorder()
  return dataclasses.replace(
    parts,
    critic=critic,
    state=state.ActorCriticState(parts.state, critic.init(parts.state.params)),
    serving=scheduler,
    service=Service(scheduler, stop_at),
  )


def _config(steps):
  """Every task once in every step, two in a chunk, two minibatches."""
  config = toy.config(
    steps, credit=credit.CreditConfig(estimator='value', whiten=True)
  )
  return dataclasses.replace(
    config,
    collect=loop.CollectConfig(tasks=8, group=1, groups_per_chunk=2),
    evaluate=loop.EvalConfig(tasks=3, greedy=False),
  )


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('ppo')
  parts = _parts(folder)
  loop.train(parts, _config(STEPS))
  rows = [r for r in metrics.read(folder) if 'train/value_loss' in r]
  return folder, parts, rows


def test_the_critic_learns_what_the_prompt_tells(run):
  _, parts, rows = run
  rewards = {t.id: int(t.id[-1], 36) % 2 for t in parts.train_tasks}
  assert len(set(rewards.values())) == 2, rewards
  assert len(rows) == STEPS
  # A fresh value model says 0 of everything: it explains nothing.
  assert rows[0]['train/value_explained_variance'] == pytest.approx(0, abs=1e-6)
  assert rows[-1]['train/value_explained_variance'] > 0.9
  assert rows[-1]['train/value_loss'] < 0.1 * rows[0]['train/value_loss']


def test_the_policy_waits_for_the_critic(run):
  _, parts, rows = run
  fresh = toy.parts(parts.run_dir).state.params
  start = [np.asarray(x) for x in jax.tree.leaves(fresh)]
  served = parts.serving.policies
  assert parts.serving.versions == [1, 2, 3, 4]
  for policy in served[:PRETRAIN]:
    for got, want in zip(policy, start, strict=True):
      np.testing.assert_array_equal(got, want)
  assert any((a != b).any() for a, b in zip(served[2], start, strict=True))
  for row in rows[:PRETRAIN]:
    assert row['train/optimizer_steps'] == 0
    assert 'train/loss' not in row
  for row in rows[PRETRAIN:]:
    assert row['train/optimizer_steps'] == 4
    assert row['train/first_max_ratio'] < 1e-5


def test_whitened_advantages_have_mean_zero(run):
  _, _, rows = run
  # Means over terms of every minibatch, and they hold the same terms twice.
  for row in rows[PRETRAIN:]:
    assert abs(row['train/advantage']) < 0.2
    assert row['train/advantage_abs'] <= 1.0


def test_an_interrupted_run_resumes_to_the_same_state(run, tmp_path):
  whole, _, rows = run
  with pytest.raises(Interrupted):
    loop.train(_parts(tmp_path, stop_at=3), _config(STEPS))
  again = _parts(tmp_path)
  loop.train(again, _config(STEPS))
  stores = [
    checkpoint.Checkpoints(folder / 'checkpoints')
    for folder in (whole, tmp_path)
  ]
  like = _parts(tmp_path).state
  (step, one, _), (other, two, _) = (s.restore(like) for s in stores)
  for store in stores:
    store.close()
  assert step == other == STEPS
  assert isinstance(one, state.ActorCriticState)
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
    np.testing.assert_array_equal(a, b)
  resumed = [r for r in metrics.read(tmp_path) if 'train/value_loss' in r]
  names = [k for k in rows[-1] if k.startswith('train/')]
  assert [[r.get(k) for k in names] for r in resumed] == [
    [r.get(k) for k in names] for r in rows
  ]


def test_a_clipped_critic_moves_less(tmp_path):
  """From V = 0 towards G = 1: with clip c the gradient ends beyond c.

  Without momentum a step with no gradient moves nothing.
  """
  parts = _parts(tmp_path)
  parts.critic = value.Critic(
    parts.learner.model,
    value.CriticConfig(
      clip=0.05, optim=state.OptimConfig(learning_rate=3e-3, b1=0.0)
    ),
    forward=parts.learner.forward,
  )
  rows = [
    toy.rollout(parts.train_tasks[0], 'r', 0, 0),
    toy.rollout(parts.train_tasks[1], 's', 0, 0),
  ]
  batch = _filled(rows)
  free = clipped = parts.state.critic
  for _ in range(30):
    free, _ = parts.critic.fit(_copy(free), batch, pretraining=True)
    clipped, _ = parts.critic.fit(_copy(clipped), batch)
  far = parts.critic.score(free.params, batch)[batch.mask].mean()
  near = parts.critic.score(clipped.params, batch)[batch.mask].mean()
  assert far > 0.5
  assert 0.05 <= near < 0.5 * far


def _copy(tree):
  return jax.tree.map(lambda x: x.copy(), tree)


def _filled(rollouts):
  from clawjax.train import harvest
  from clawjax.trie import FilterConfig, PackConfig

  chunk = harvest.gather(
    rollouts,
    filter_config=FilterConfig(),
    pack_config=PackConfig(row_tokens=64, row_buckets=(64,)),
  )
  weight = chunk.batch.mask / chunk.batch.mask.sum()
  return chunk.batch.replace(
    weight=weight.astype(np.float32),
    value_target=chunk.batch.mask.astype(np.float32),
  )


def test_a_fresh_critic_is_the_policy_s_trunk_and_says_zero():
  parts = toy.parts(pathlib.Path('unused'))
  critic = value.Critic(parts.learner.model, value.CriticConfig())
  fresh = critic.init(parts.state.params)
  policy = dict(parts.state.params)
  policy.pop('head', None)
  for a, b in zip(
    jax.tree.leaves(fresh.params['trunk']), jax.tree.leaves(policy), strict=True
  ):
    np.testing.assert_array_equal(a, b)
  batch = _filled([toy.rollout(parts.train_tasks[0], 'r', 0, 0)])
  assert not critic.score(fresh.params, batch).any()


def test_values_are_of_the_state_before_the_token():
  """Against the value model run on the plain sequence, token by token."""
  parts = toy.parts(pathlib.Path('unused'))
  model = parts.learner.model
  critic = value.Critic(model, value.CriticConfig())
  params = critic.init(parts.state.params).params
  params['head'] = jax.random.normal(jax.random.key(1), params['head'].shape)
  rollout = toy.rollout(parts.train_tasks[0], 'r', 0, 0)
  batch = _filled([rollout])
  got = critic.score(params, batch)[batch.mask]
  call = rollout.calls[-1]
  ids = np.concatenate([call.prompt_ids, call.sample.token_ids])
  plain = value_model.apply(params, model, ids[None], np.arange(len(ids))[None])
  depth = batch.depth[0][batch.term_slot[0]][batch.mask[0]]
  np.testing.assert_allclose(got, np.asarray(plain)[0, depth - 1], atol=1e-5)


def test_estimator_and_critic_go_together(tmp_path):
  with pytest.raises(ValueError, match='critic'):
    loop.train(toy.parts(tmp_path), _config(1))
  with pytest.raises(ValueError, match='critic'):
    loop.train(_parts(tmp_path), toy.config(1))
