"""Cold start: expert turns as a model writes them, consistent renaming."""

import dataclasses
import importlib.util
import json
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from clawjax import errors, trie, types
from clawjax.chat import parsing, tokenizers
from clawjax.tasks import words
from clawjax.train import expert, sft

TINY = tokenizers.load('tiny')


def test_expert_turns_parse_back_to_themselves():
  turn = types.Message(
    'assistant',
    content='First a look.',
    calls=(types.ToolCall('bash', json.dumps({'command': 'cat "a b.txt"'})),),
  )
  text = expert.turn_text(turn)
  assert text.endswith('<|im_end|>')
  tool = types.Tool('bash', parameters={'type': 'object'})
  parsed = parsing.parse_output(
    text.removesuffix('<|im_end|>'), tools=(tool,), finish='stop'
  )
  assert parsed.content.strip() == 'First a look.'
  [call] = parsed.calls
  assert call.name == 'bash'
  assert json.loads(call.arguments) == {'command': 'cat "a b.txt"'}


async def test_expert_plays_its_turns_in_order_and_ends_each():
  turns = [types.Message('assistant', content=t) for t in ('one', 'two')]
  client = expert.ExpertClient(TINY, lambda session: turns, window=64)
  prompt = np.arange(1, 5, dtype=np.int32)
  for index, word in enumerate(('one', 'two')):
    sample = await client.sample(
      prompt, types.SamplingParams(), session_id='s', call_index=index
    )
    assert TINY.decode(sample.token_ids) == f'{word}<|im_end|>'
    assert sample.token_ids[-1] == TINY.im_end
    assert sample.policy_version == expert.EXPERT_VERSION
  with pytest.raises(errors.EngineError, match='script has 2 turns'):
    await client.sample(prompt, types.SamplingParams(), call_index=2)
  with pytest.raises(errors.EngineError, match='no room'):
    await client.sample(
      np.zeros(63, np.int32), types.SamplingParams(), call_index=0
    )


def _captured(prompt, output):
  sample = types.Sample(
    np.array(TINY.encode(output), np.int32),
    np.zeros(len(TINY.encode(output)), np.float32),
    'stop',
  )
  call = types.Call('c0', 'r', 0, np.array(TINY.encode(prompt)), sample)
  return types.Rollout('r', 't', 'pi', calls=(call,), reward=1.0)


def test_renaming_is_consistent_and_touches_names_only():
  a, b = words.WORDS[0], words.WORDS[1]
  prompt = f'Copy {a}.txt to {b}.txt.\n{a} 12\n{b} 7\n'
  output = f'cp {a}.txt {b}.txt'
  rollout = _captured(prompt, output)
  rng = np.random.default_rng(3)
  renaming = sft.Renaming(TINY, words.WORDS)
  changed = sft.renamed(rollout, renaming.draw(rng))
  new_prompt = TINY.decode(changed.calls[0].prompt_ids)
  new_output = TINY.decode(changed.calls[0].sample.token_ids)
  new_a, new_b = new_output.removeprefix('cp ').split()
  new_a, new_b = new_a.removesuffix('.txt'), new_b.removesuffix('.txt')
  assert {new_a, new_b} <= set(words.WORDS)
  assert new_a != new_b and (new_a, new_b) != (a, b)
  assert new_prompt == (
    f'Copy {new_a}.txt to {new_b}.txt.\n{new_a} 12\n{new_b} 7\n'
  )


def test_words_of_a_harness_prompt_are_not_names():
  """What all trajectories begin with stays, so that they still share it."""
  stem, names = 'The table and the shell. ', words.WORDS[:6]
  assert {'table', 'shell'} <= set(words.WORDS)
  assert not {'table', 'shell'} & set(names)
  rollouts = [
    _captured(f'{stem}Copy {name}.', f'cp {name} table') for name in names
  ]
  keep = sft.stem_ids(rollouts)
  assert keep == set(TINY.encode(f'{stem}Copy'))
  renaming = sft.Renaming(TINY, words.WORDS, keep)
  rng = np.random.default_rng(5)
  changed = [sft.renamed(r, renaming.draw(rng)) for r in rollouts]
  texts = [TINY.decode(r.calls[0].prompt_ids) for r in changed]
  assert all(text.startswith(f'{stem}Copy ') for text in texts)
  assert [t.removeprefix(f'{stem}Copy ') for t in texts] != [
    f'{name}.' for name in names
  ]
  # Every form of a kept word stays: the answer's ' table' too.
  assert all(
    TINY.decode(r.calls[0].sample.token_ids).endswith(' table') for r in changed
  )
  # The trajectories of one tree share the stem, renamed or not.
  config = sft.SftConfig()
  plain, new = (
    trie.pack(sft.grow(r, config), groups=['sft'] * 6, config=config.pack)
    for r in (rollouts, changed)
  )
  assert new.stats['tokens'] == plain.stats['tokens']


def test_renaming_is_a_permutation_of_the_vocabulary():
  new_id = sft.Renaming(TINY, words.WORDS).draw(np.random.default_rng(0))
  np.testing.assert_array_equal(np.sort(new_id), np.arange(TINY.vocab_size))


def test_only_good_trajectories_are_fitted():
  config = sft.SftConfig(min_reward=0.5)
  bad = types.Rollout('x', 't', 'pi', reward=0.25, calls=(1,))
  lost = types.Rollout('y', 't', 'pi', reward=None, outcome='infra_error')
  fine = _captured('a', 'b')
  assert sft.good([bad, lost, fine], config) == [fine]
  with pytest.raises(errors.TaskError, match='none of 2'):
    sft.good([bad, lost], config)


# ---- resuming --------------------------------------------------------------


def _load_sft_run():
  path = pathlib.Path(__file__).with_name('sft_run.py')
  spec = importlib.util.spec_from_file_location('sft_run', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _trajectories(count=5):
  found = []
  for number in range(count):
    rollout = _captured(f'say {words.WORDS[number]}', f'{number} done')
    call = dataclasses.replace(rollout.calls[0], rollout_id=f'r/{number}')
    found.append(
      dataclasses.replace(rollout, rollout_id=f'r/{number}', calls=(call,))
    )
  return found


def test_an_interrupted_fit_goes_on_to_the_same_weights(tmp_path):
  run = _load_sft_run()
  rollouts = _trajectories()

  class Stops(run.Display):
    def say(self, text):
      if text.startswith('sft 5/'):
        raise KeyboardInterrupt

  whole = run.fit(tmp_path / 'whole', rollouts, 8, run.Display())
  with pytest.raises(KeyboardInterrupt):
    run.fit(tmp_path / 'cut', rollouts, 8, Stops())
  said = []

  class Listens(run.Display):
    def say(self, text):
      said.append(text)

  again = run.fit(tmp_path / 'cut', rollouts, 8, Listens())
  assert said[0] == 'resumed after step 4'  # saved every second step
  assert [s.split('/')[0] for s in said[1:]] == [
    'sft 5', 'sft 6', 'sft 7', 'sft 8'
  ]  # fmt: skip
  assert run.digest(again) == run.digest(whole)
  start = run.learner()[1]
  assert run.digest(whole) != run.digest(start)  # it did learn something


@pytest.mark.slow
def test_a_killed_fit_on_a_data_set_goes_on_to_the_same_weights(tmp_path):
  pytest.importorskip('grain')
  from clawjax.tasks import dataset

  poor = dataclasses.replace(_trajectories(1)[0], rollout_id='p', reward=0.1)
  dataset.write(
    tmp_path / 'set', [*_trajectories(), poor], facts={'tokenizer': 'tiny'}
  )

  def run(name, *more):
    script = pathlib.Path(__file__).with_name('sft_run.py')
    done = subprocess.run(
      [sys.executable, script, tmp_path / name, tmp_path / 'set', '8', *more],
      capture_output=True,
      text=True,
      timeout=1500,
    )
    path = tmp_path / name / 'digest'
    return done, path.read_text() if path.exists() else ''

  done, whole = run('whole')
  assert done.returncode == 0, done.stderr[-2000:]
  # Five of the six trajectories, two a step: step 5 is in the second epoch.
  killed, nothing = run('cut', '5')
  assert killed.returncode == -signal.SIGKILL and not nothing
  resumed, digest = run('cut')
  assert resumed.returncode == 0, resumed.stderr[-2000:]
  assert 'resumed after step 4' in resumed.stdout
  assert digest == whole
