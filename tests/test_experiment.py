"""Configs build, weights go out and come back, one folder holds one run."""

import dataclasses
import pathlib
import runpy

import jax
import numpy as np
import pytest

from clawjax import config, errors, experiment
from clawjax.chat import tokenizers
from clawjax.experiment import folder, parts

CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'
FILES = sorted(p.name for p in CONFIGS.glob('*.py') if p.stem != '__init__')


@pytest.mark.parametrize('name', FILES)
def test_every_config_builds(name):
  section = runpy.run_path(str(CONFIGS / name))['get_config']()
  built = config.build(experiment.Experiment, section)
  assert built.name == pathlib.Path(name).stem


def test_the_control_differs_from_the_quickstart_in_one_thing():
  plain, control = (
    config.flatten(
      config.build(
        experiment.Experiment,
        runpy.run_path(str(CONFIGS / name))['get_config'](),
      )
    )
    for name in ('quickstart.py', 'quickstart_shuffled.py')
  )
  different = {k for k in plain | control if plain.get(k) != control.get(k)}
  assert different == {'name', 'loop.credit.shuffle_rewards'}


def test_saved_weights_come_back_in_bfloat16_precision(tmp_path):
  tokenizer = tokenizers.load('tiny')
  section = experiment.ModelSection(
    'random:tiny', {'width': 32, 'layers': 1, 'heads': 2, 'head_size': 16}
  )
  params, model = experiment.load_model(section, 0, vocab=tokenizer.vocab_size)
  assert model.vocab % 64 == 0 and model.vocab >= tokenizer.vocab_size
  experiment.save_model(tmp_path / 'm', params, model, tokenizer)
  assert tokenizers.load(f'hf:{tmp_path}/m').vocab_size == tokenizer.vocab_size
  back, read = experiment.load_model(
    experiment.ModelSection(
      str(tmp_path / 'm'), {'dtype': 'float32', 'param_dtype': 'float32'}
    ),
    0,
  )
  assert read.vocab == model.vocab and read.experts == model.experts
  for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(back), strict=True):
    assert b.dtype == np.float32
    # bfloat16 keeps 8 bits of mantissa.
    np.testing.assert_allclose(a, b, rtol=2**-8, atol=1e-6)


def test_the_shipped_model_loads_and_is_small():
  params, model = experiment.load_model(experiment.ModelSection(), 0)
  assert model.experts > model.experts_per_token > 1  # a real MoE
  assert model.qk_norm and model.heads > model.kv_heads
  assert 1e6 < model.total_params < 5e6
  shipped_in = parts.DATA / 'tiny'
  assert sum(p.stat().st_size for p in shipped_in.iterdir()) <= 8 * 2**20
  shipped = (shipped_in / 'tokenizer.json').read_bytes()
  assert shipped == tokenizers.load('tiny').path.read_bytes()


def test_a_missing_model_names_the_way_out():
  with pytest.raises(errors.CheckpointError, match='builtin:tiny'):
    experiment.load_model(experiment.ModelSection('no/such/folder'), 0)


def test_temperatures_must_agree():
  section = experiment.default_config('x')
  section.rollout.temperature = 0.7
  with pytest.raises(errors.ConfigError, match='must agree'):
    config.build(experiment.Experiment, section)


def test_a_run_folder_holds_one_run(tmp_path):
  section = experiment.default_config('x')
  first = config.build(experiment.Experiment, section)
  folder.check_same_run(first, tmp_path)
  section.loop.steps = 7  # longer is the same run
  folder.check_same_run(config.build(experiment.Experiment, section), tmp_path)
  section.optim.learning_rate = 0.5
  with pytest.raises(errors.ConfigError, match='optim.learning_rate') as caught:
    folder.check_same_run(
      config.build(experiment.Experiment, section), tmp_path
    )
  assert '\n' not in str(caught.value)


def test_two_processes_never_share_a_run_folder(tmp_path):
  with folder.locked(tmp_path):
    with pytest.raises(errors.ConfigError, match='in use'):
      with folder.locked(tmp_path):
        pass


def test_a_task_set_of_the_user_takes_the_place_of_generated_tasks(tmp_path):
  from clawjax.tasks import synth
  from clawjax.tasks.formats import native

  tasks = synth.tasks('train', count=24)
  for number, task in enumerate(tasks):
    native.write(task, tmp_path / 'set' / f'{number:02d}', harbor=False)
  section = experiment.default_config('x')
  section.tasks.path = str(tmp_path / 'set')
  built = config.build(experiment.Experiment, section)
  train = parts.make_tasks(built, 'train', 5)
  held = parts.make_tasks(built, 'eval', 100)
  everything = {t.id for t in tasks}
  assert len(train) == 5 and held
  assert {t.id for t in [*parts.make_tasks(built, 'train', 100), *held]} == (
    everything
  )
  assert not {t.id for t in train} & {t.id for t in held}
  section.tasks.eval_path = str(tmp_path / 'set')
  both = config.build(experiment.Experiment, section)
  assert {t.id for t in parts.make_tasks(both, 'eval', 100)} == everything


def test_tasks_that_a_harness_cannot_take(tmp_path):
  """Two messages for a harness of one are refused before anything runs."""
  from clawjax.tasks import synth
  from clawjax.tasks.formats import native

  (task,) = synth.tasks('train', count=1)
  task = dataclasses.replace(task, turns=(*task.turns, 'And now?'))
  native.write(task, tmp_path / 's' / '1')
  section = experiment.default_config('x')
  section.tasks.path = section.tasks.eval_path = str(tmp_path / 's')
  section.harnesses = {'pi': {}}
  section.train_on = ()
  built = config.build(experiment.Experiment, section)
  assert len(parts.make_tasks(built, 'train', 1)) == 1
  section.harnesses = {'pi': {}, 'mini_swe': {}}
  built = config.build(experiment.Experiment, section)
  for split in ('train', 'eval'):
    with pytest.raises(
      errors.HarnessError, match=f'mini_swe: one user message.*{task.id}'
    ):
      parts.make_tasks(built, split, 1)
  # Training never deals a task to a harness that is only evaluated.
  section.train_on = ('pi',)
  built = config.build(experiment.Experiment, section)
  assert len(parts.make_tasks(built, 'train', 1)) == 1
  with pytest.raises(errors.HarnessError, match='mini_swe'):
    parts.make_tasks(built, 'eval', 1)
  # Two sessions of one message each are no trouble.
  task = dataclasses.replace(
    task, id='apart', metadata={**task.metadata, 'new_session': [True, True]}
  )
  native.write(task, tmp_path / 'apart' / '1')
  section.tasks.path = section.tasks.eval_path = str(tmp_path / 'apart')
  built = config.build(experiment.Experiment, section)
  assert len(parts.make_tasks(built, 'eval', 1)) == 1


def test_judges_of_an_experiment(tmp_path):
  from clawjax import types
  from clawjax.tasks.formats import native

  rubric = {'kind': 'free', 'text': 'Be clear.', 'checklist': []}
  native.write(
    types.Task('t/1', ('x',), metadata={'judge': rubric}), tmp_path / 's' / '1'
  )
  section = experiment.default_config('x')
  section.tasks.path = section.tasks.eval_path = str(tmp_path / 's')
  built = config.build(experiment.Experiment, section)
  with pytest.raises(errors.ConfigError, match='judge.models'):
    parts.make_tasks(built, 'train', 1)
  section.judge.models = ('gpt-5.4', 'other')
  section.judge.base_url = 'http://judge/v1'
  section.judge.api_key_env = 'JUDGE_KEY'
  section.judge.concurrency = 3
  built = config.build(experiment.Experiment, section)
  assert len(parts.make_tasks(built, 'train', 1)) == 1
  one, two = built.judge.build().judges
  assert (one.model, two.model) == ('gpt-5.4', 'other')
  assert (one.base_url, one.api_key_env) == ('http://judge/v1', 'JUDGE_KEY')
  assert one.concurrency == 3
  section.judge.models = ('a', 'a')
  with pytest.raises(errors.ConfigError, match='distinct'):
    config.build(experiment.Experiment, section)
  generated = experiment.default_config('x')
  generated.judge.models = ('a',)
  with pytest.raises(errors.ConfigError, match='no rubric'):
    config.build(experiment.Experiment, generated)


def test_every_harness_is_dealt_every_family():
  from clawjax.tasks import synth

  tasks = synth.tasks('train', count=540)
  dealt = experiment.deal(len(tasks), 3, seed=0)
  assert [int((dealt == k).sum()) for k in range(3)] == [180] * 3
  counts = {}
  for task, k in zip(tasks, dealt, strict=True):
    family = task.id.split('/')[1].split('-')[0]
    counts.setdefault(family, [0, 0, 0])[k] += 1
  assert len(counts) == 9
  # 60 of a family; 20 for a harness with a deviation of 3.6.
  assert all(5 < n < 35 for by_hand in counts.values() for n in by_hand)
  assert set(experiment.deal(9, 1, seed=0)) == {0}
