"""Several harnesses in one run: groups, which are trained, what is reported."""

import json
import pathlib
import runpy
import types as python_types

import numpy as np
import pytest

from clawjax import config, errors, experiment, types
from clawjax.experiment import parts as experiment_parts
from clawjax.train import accounts, expert, harvest, loop
from clawjax.trie import FilterConfig, PackConfig

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
A, B = (python_types.SimpleNamespace(name=n) for n in ('a', 'b'))
TASKS = [types.Task(f't{i}', ('x',)) for i in range(4)]


def parts(trained=()):
  return python_types.SimpleNamespace(
    harnesses=[A, B], trained=trained, train_tasks=TASKS
  )


@pytest.mark.parametrize(
  'trained,wanted',
  [((), ['a', 'b']), (('b',), ['b']), (('b', 'a'), ['a', 'b'])],
)
def test_each_task_runs_through_each_trained_harness(trained, wanted):
  settings = loop.LoopConfig(collect=loop.CollectConfig(tasks=2, group=3))
  requests = loop._requests(parts(trained), settings, 1)
  pairs = [(r.task.id, r.harness.name) for r in requests]
  assert len(pairs) == len(set(pairs)) == 2 * len(wanted)
  assert {h for _, h in pairs} == set(wanted)
  assert {r.size for r in requests} == {3}
  # Equal rollouts per harness, whether trained together or alone.
  assert all(sum(h == n for _, h in pairs) == 2 for n in wanted)


def rollout(task, harness, index, reward):
  ids = np.arange(3, dtype=np.int32) + index
  call = types.Call(
    'c',
    f'{task}/{harness}/{index}',
    0,
    np.arange(4, dtype=np.int32),
    types.Sample(ids, np.full(3, -0.5, np.float32), 'stop'),
  )
  return types.Rollout(
    f'{task}/{harness}/{index}',
    task,
    harness,
    index=index,
    calls=(call,),
    reward=reward,
  )


def test_advantages_are_taken_within_task_and_harness():
  """One harness finds the task easy, the other hard: by hand.

  a: rewards 1, 1, 1, 0: mean 3/4, population deviation sqrt(3)/4, so the
  losers stand at -sqrt(3) and the winners at 1/sqrt(3). b: the mirror image.
  Taken over all eight, the winners of both would have stood at 1.
  """
  rewards = {'a': (1.0, 1.0, 1.0, 0.0), 'b': (0.0, 0.0, 0.0, 1.0)}
  members = [
    rollout('t', h, i, r) for h, rs in rewards.items() for i, r in enumerate(rs)
  ]
  chunk = harvest.gather(
    members,
    filter_config=FilterConfig(),
    pack_config=PackConfig(row_tokens=128),
  )
  rng = np.random.default_rng(0)
  filled = harvest.fill(
    [chunk], harvest.CreditConfig(), minibatches=1, rng=rng, order=rng
  )
  root = 3**0.5
  wanted = {'a': (1 / root,) * 3 + (-root,), 'b': (-1 / root,) * 3 + (root,)}
  for h, values in wanted.items():
    got = [filled.advantage[f't/{h}/{i}'] for i in range(4)]
    np.testing.assert_allclose(got, values, rtol=1e-3)
  numbers = accounts.collected(members, [chunk])
  assert (numbers['reward/a'], numbers['reward/b']) == (0.75, 0.25)
  assert (numbers['rollouts/valid/a'], numbers['rollouts/valid/b']) == (4, 4)


def test_the_mix_trains_through_three_in_the_same_batches():
  section = runpy.run_path(str(CONFIGS / 'quickstart_mix.py'))['get_config']()
  built = config.build(experiment.Experiment, section)
  made = experiment_parts.make_harnesses(built)
  assert {h.name for h in made} == {'pi', 'claude_code_bare', 'codex_trimmed'}
  assert {h.dialect for h in made} == {'chat', 'messages', 'responses'}
  assert built.train_on == ()
  section.train_on = ('pi', 'nobody')
  with pytest.raises(errors.ConfigError, match='nobody'):
    config.build(experiment.Experiment, section)


@pytest.mark.parametrize('one', ['pi', 'claude_code', 'codex'])
def test_alone_and_in_the_mix_the_optimiser_steps_are_as_many(one):
  """Rollouts per harness are equal, and so must be what is done with them."""

  section = runpy.run_path(str(CONFIGS / 'quickstart_mix.py'))['get_config']()
  settings = config.build(experiment.Experiment, section).loop
  keys = [python_types.SimpleNamespace(name=key) for key in section.harnesses]

  def done(trained):
    """Optimiser steps of a training step, groups per harness."""
    mix = python_types.SimpleNamespace(
      harnesses=keys, trained=trained, train_tasks=TASKS
    )
    groups = len(loop._requests(mix, settings, 1))
    chunks = -(-groups // settings.collect.groups_per_chunk)
    each = groups // len(trained or keys)
    return settings.epochs * min(settings.minibatches, chunks), each

  assert done((one,)) == done(())


def test_the_expert_speaks_each_harness_tool():
  turns = [
    types.Message(
      'assistant',
      calls=(types.ToolCall('bash', '{"command": "echo \\"a\\" > b"}'),),
    ),
    types.Message('assistant', content='Done.'),
  ]
  tools = {
    'pi': ('bash', 'command'),
    'claude_code_bare': ('Bash', 'command'),
    'codex_trimmed': ('exec_command', 'cmd'),
  }
  for name, (tool, argument) in tools.items():
    first, last = expert.spoken(turns, name)
    [call] = first.calls
    assert call.name == tool
    assert json.loads(call.arguments) == {argument: 'echo "a" > b'}
    assert last == turns[1]
  with pytest.raises(errors.HarnessError, match='shell tool of nobody'):
    expert.spoken(turns, 'nobody')
