"""Evaluation on a fleet that is a dozen lines."""

import asyncio
import dataclasses

import pytest

from clawjax import types
from clawjax.eval import run, scores
from clawjax.rollout import run as run_lib


@dataclasses.dataclass
class Named:
  name: str = 'pi'


class Fleet:
  """Answers `table[task id][sample]`, groups in reverse order."""

  def __init__(self, table):
    self.table = table
    self.limits = run_lib.RolloutLimits(sampling={'top_p': 0.9})
    self.seen = []

  async def run_groups(
    self, requests, *, concurrency, on_rollout, retry_budget
  ):
    self.seen.append((concurrency, retry_budget, dict(self.limits.sampling)))
    for request in reversed(requests):
      group = []
      for i in range(request.size):
        sample = int(request.prefix.rsplit('/', 1)[1])
        reward = self.table[request.task.id][sample]
        group.append(
          types.Rollout(
            f'{request.prefix}/{i}',
            request.task.id,
            request.harness.name,
            index=i,
            reward=reward,
            outcome='infra_error' if reward is None else 'ok',
          )
        )
        on_rollout(group[-1])
      await asyncio.sleep(0)
      yield group


def _tasks(*ids):
  return [types.Task(i, ('go',), metadata={'family': 'f' + i}) for i in ids]


async def test_evaluate():
  fleet = Fleet({'s/a': [1.0, 0.0], 's/b': [0.5, None]})
  seen = []
  result = await run.evaluate(
    fleet,
    _tasks('s/a', 's/b'),
    harness=Named(),
    samples=2,
    prefix='eval/before',
    on_rollout=seen.append,
  )
  # Order of the tasks, not of completion.
  assert [(t.task_id, t.sample_index) for t in result.trials] == [
    ('s/a', 0),
    ('s/a', 1),
    ('s/b', 0),
    ('s/b', 1),
  ]
  assert result.trials[0].rollout_id == 'eval/before/s-a/pi/0/0'
  assert result.trials[0].family == 'fs/a'
  assert result.task_scores() == {'s/a': 0.5, 's/b': 0.5}
  assert sorted((r.task_id, r.index) for r in seen) == [
    ('s/a', 0),
    ('s/a', 1),
    ('s/b', 0),
    ('s/b', 1),
  ]
  metrics = result.metrics()
  # a: 0.5 and one of two solved; b: 0.5 from its one scored sample, unsolved.
  assert metrics['eval/pass1'] == pytest.approx(0.5)
  assert metrics['eval/success'] == pytest.approx(0.25)
  assert metrics['eval/errors'] == 1
  assert fleet.seen == [(8, 4, {'top_p': 0.9})]


async def test_greedy_changes_the_sampling_of_this_evaluation_alone():
  fleet = Fleet({'a': [1.0]})
  seen = fleet.seen
  result = await run.evaluate(
    fleet, _tasks('a'), harness=Named(), greedy=True, concurrency=3
  )
  assert seen == [(3, 4, {'top_p': 0.9, 'temperature': 0.0})]
  assert fleet.limits.sampling == {'top_p': 0.9}
  assert result.metrics()['eval/pass1_greedy'] == 1.0
  assert result.trials[0].greedy


async def test_two_tasks_of_one_id_are_refused():
  with pytest.raises(ValueError, match='distinct'):
    await run.evaluate(Fleet({}), _tasks('a', 'a'), harness=Named())


@pytest.mark.parametrize(
  'text, plain', [('synth/copy-1', 'synth-copy-1'), ('a.b_c', 'a.b_c')]
)
def test_slug_of_plain_ids(text, plain):
  assert run.slug(text) == plain


def test_slugs_of_odd_ids_stay_distinct():
  odd = ['a b', 'a?b', 'a  b', '../x', 'x' * 90 + 'a', 'x' * 90 + 'b', '\u00e9']
  slugs = {run.slug(t) for t in odd}
  assert len(slugs) == len(odd)
  assert all('/' not in s and len(s) < 100 for s in slugs)


def test_trials_on_disk(tmp_path):
  trials = [scores.Trial('a', 0.5), scores.Trial('b', None, outcome='timeout')]
  path = tmp_path / 'eval' / 'before.json'
  run.save_trials(path, trials)
  assert run.load_trials(path) == trials
  assert not list(tmp_path.rglob('*.tmp'))
