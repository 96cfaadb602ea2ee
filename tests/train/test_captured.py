"""Trajectories from a run folder, a data set, or a teacher's conversations."""

import json

import numpy as np
import pytest

from clawjax import errors, types
from clawjax.chat import render, tokenizers
from clawjax.tasks import dataset
from clawjax.train import captured

TINY = tokenizers.load('tiny')


def rollout(number, reward=1.0, outcome='ok', top=5):
  sample = types.Sample(
    np.array([number + 2, 3], np.int32), np.zeros(2, np.float32), 'stop'
  )
  call = types.Call('c0', f'r/{number}', 0, np.array([1, top]), sample)
  return types.Rollout(
    f'r/{number}', 't', 'pi', calls=(call,), reward=reward, outcome=outcome
  )


def load(path, **options):
  return captured.load(
    str(path),
    TINY,
    **{'min_reward': 0.0, 'thinking': 'auto', **options},
  )


def put(folder, rollouts, tokenizer='tiny'):
  place = folder / 'rollouts' / 'train' / '00001'
  place.mkdir(parents=True)
  for r in rollouts:
    name = r.rollout_id.replace('/', '_')
    (place / f'{name}.json').write_text(types.dumps(r))
  (folder / 'config.json').write_text(json.dumps({'tokenizer': tokenizer}))
  return folder


MIXED = [
  rollout(0, 1.0),
  rollout(1, 0.25),
  rollout(2, None, 'infra_error'),
  rollout(3, 0.7),  # no float32 is 0.7
]


def test_a_run_folder_and_a_data_set_hold_the_same(tmp_path):
  pytest.importorskip('array_record')
  run = put(tmp_path / 'run', MIXED)
  dataset.write(tmp_path / 'set', MIXED, facts={'tokenizer': 'tiny'})
  for least, wanted in ((0.0, ['r/0', 'r/1', 'r/3']), (0.7, ['r/0', 'r/3'])):
    for path in (run, tmp_path / 'set'):
      found = load(path, min_reward=least)
      assert [r.rollout_id for r in found] == wanted
  for path in (run, tmp_path / 'set'):
    with pytest.raises(errors.TaskError, match='scored 2 or more'):
      load(path, min_reward=2.0)


def test_ids_of_another_tokenizer_are_refused(tmp_path):
  run = put(tmp_path / 'run', MIXED, tokenizer='hf:/some/model')
  with pytest.raises(errors.TaskError, match="'hf:/some/model'"):
    load(run)
  other = put(tmp_path / 'other', [rollout(0, top=10**6)], tokenizer='')
  with pytest.raises(errors.TaskError, match='token id 1000000'):
    load(other)
  with pytest.raises(errors.TaskError, match='wanted the folder'):
    load(tmp_path / 'nowhere')


CALL = types.ToolCall('bash', '{"command": "ls"}', 'call_0')
TALK = [
  types.Message('system', 'You are pi.'),
  types.Message('user', 'List the files.'),
  types.Message('assistant', 'I look.', 'first a look', (CALL,)),
  types.Message('tool', 'a.txt', call_id='call_0', name='bash'),
  types.Message('assistant', 'One file.'),
]
TOOL = types.Tool('bash', 'Runs.', {'type': 'object'})


def line(reward=1.0, messages=TALK):
  """As `eval.chat_jsonl` writes it."""
  out = []
  for m in messages:
    entry = {'role': m.role, 'content': m.content}
    if m.reasoning:
      entry['reasoning_content'] = m.reasoning
    if m.calls:
      entry['tool_calls'] = [
        {
          'id': c.id,
          'type': 'function',
          'function': {'name': c.name, 'arguments': json.loads(c.arguments)},
        }
        for c in m.calls
      ]
    if m.call_id:
      entry['tool_call_id'] = m.call_id
    out.append(entry)
  function = {'name': 'bash', 'description': 'Runs.'}
  function['parameters'] = {'type': 'object'}
  return json.dumps(
    {
      'messages': out,
      'tools': [{'type': 'function', 'function': function}],
      'metadata': {'task_id': 't/1', 'harness': 'pi', 'reward': reward},
    }
  )


@pytest.mark.parametrize('thinking', ['auto', 'off', 'empty'])
def test_a_teachers_turns_are_what_is_trained(tmp_path, thinking):
  path = tmp_path / 'chat.jsonl'
  path.write_text(line() + '\n')
  (found,) = load(path, thinking=thinking)
  assert (found.task_id, found.harness, found.reward) == ('t/1', 'pi', 1.0)
  first, second = found.calls
  renderer = render.Renderer(TINY, thinking=thinking)
  # The prompts are those that the proxy would have given to the engine.
  assert first.prompt_ids.tolist() == renderer.prompt(TALK[:2], [TOOL])
  said = TINY.decode(first.sample.token_ids)
  assert said.endswith(
    'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n'
    '</tool_call><|im_end|>'
  )
  assert ('first a look' in said) == (thinking != 'off')
  # The second call extends the first one, answer and all.
  before = [*first.prompt_ids.tolist(), *first.sample.token_ids.tolist()]
  assert second.prompt_ids.tolist()[: len(before)] == before
  rest = TINY.decode(second.prompt_ids[len(before) :])
  assert 'a.txt' in rest and rest.count('<|im_start|>') == 2
  assert TINY.decode(second.sample.token_ids) == 'One file.<|im_end|>'
  assert second.parent == first.call_id


def test_conversations_are_filtered_by_their_score(tmp_path):
  path = tmp_path / 'chat.jsonl'
  path.write_text('\n'.join([line(1.0), line(0.2), line(None)]))
  assert len(load(path)) == 3
  assert len(load(path, min_reward=0.5)) == 1
  path.write_text(line(1.0) + '\n{"messages": [{"role": "user"}]}\n')
  with pytest.raises(errors.TaskError, match='chat.jsonl:2: wanted a conv'):
    load(path)


@pytest.mark.parametrize('kind', ['list', 'set'])
def test_a_feed_goes_on_where_it_was(tmp_path, kind):
  rollouts = [rollout(n) for n in range(5)]
  source = rollouts
  if kind == 'set':
    pytest.importorskip('grain')
    dataset.write(tmp_path / 'set', rollouts)
    source = dataset.open(tmp_path / 'set')

  def feed():
    return captured.Feed(source, batch=2, seed=3)

  def ids(drawn):
    return [r.rollout_id for r in drawn]

  whole, states, batches = feed(), [], []
  for step in range(1, 11):
    states.append(json.loads(json.dumps(whole.state())))
    batches.append(ids(whole.draw(step)))
  flat = [i for batch in batches for i in batch]
  names = sorted(r.rollout_id for r in rollouts)
  # Four epochs of five, each all of it, in more than one order.
  epochs = [flat[i : i + 5] for i in range(0, 20, 5)]
  assert all(sorted(e) == names for e in epochs)
  assert len({tuple(e) for e in epochs}) > 1
  again = feed()
  again.restore(states[3])
  assert [ids(again.draw(s)) for s in range(4, 11)] == batches[3:]
