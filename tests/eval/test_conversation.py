"""Ids back to the messages that they were rendered from."""

import json

from clawjax import types
from clawjax.eval import chat_jsonl, conversation


def _messages(talk):
  return [t.message for t in talk.turns]


def test_messages_come_back_as_they_were(talk):
  rollout, tokenizer = talk.plain()
  trie = conversation.retained(rollout)
  (found,) = conversation.conversations(trie, tokenizer)
  system, user, first, ls, pwd, second = _messages(found)
  assert system == talk.SYSTEM
  assert user == talk.USER
  assert first.reasoning == 'look first'
  assert first.content == 'I look.'
  assert [(c.name, json.loads(c.arguments)) for c in first.calls] == [
    ('bash', {'command': 'ls'}),
    ('bash', {'command': 'pwd'}),
  ]
  assert [c.id for c in first.calls] == ['call_0', 'call_1']
  assert ls == types.Message(
    'tool', talk.RESULTS[0].content, call_id='call_0', name='bash'
  )
  assert (pwd.content, pwd.call_id) == ('/workspace', 'call_1')
  assert second == types.Message('assistant', 'Two files.')
  assert [t.sampled for t in found.turns] == [False] * 2 + [
    True,
    False,
    False,
    True,
  ]
  assert [t.owner for t in found.turns] == [0, 0, 0, 1, 1, 1]
  assert found.tools == (
    {
      'type': 'function',
      'function': {
        'name': 'bash',
        'description': 'Runs a command.',
        'parameters': talk.TOOLS[0].parameters,
      },
    },
  )


def test_an_answer_that_was_cut(talk):
  # No <|im_end|> was sampled: the proxy closes the turn in the next prompt.
  b = talk.Builder()
  cut = b.start('one two', finish='length')
  b.go_on(cut, [(types.Message('user', 'go on'),)], 'three<|im_end|>')
  trie = conversation.retained(b.rollout())
  (found,) = conversation.conversations(trie, b.tokenizer)
  assert [m.content for m in _messages(found)][-3:] == [
    'one two',
    'go on',
    'three',
  ]


def test_an_assistant_turn_of_the_harness_is_not_sampled(talk):
  b = talk.Builder()
  b.start(
    'Yes.<|im_end|>',
    messages=(
      talk.USER,
      types.Message(
        'assistant',
        'Sure.',
        calls=(types.ToolCall('bash', '{"command": "ls"}', 'x'),),
      ),
      types.Message('tool', 'a.txt', call_id='x'),
    ),
  )
  (found,) = conversation.conversations(
    conversation.retained(b.rollout()), b.tokenizer
  )
  head, user, sure, result, yes = found.turns
  assert head.message == types.Message('system', '')  # tools alone
  assert sure.message.content == 'Sure.' and not sure.sampled
  assert result.message.call_id == sure.message.calls[0].id == 'call_0'
  assert yes.sampled


def test_leaves_and_roles(talk):
  rollout, tokenizer = talk.forked()
  trie = conversation.retained(rollout)
  main = conversation.conversations(trie, tokenizer)
  # c1 is a dead leaf; c3 and c6 are of other roles.
  assert [c.path for c in main] == [(0, 2, 4), (0, 5), (7,)]
  sub = conversation.conversations(trie, tokenizer, roles=('subagent',))
  assert [c.path for c in sub] == [(3,)]


def test_chat_jsonl(talk, tmp_path):
  rollout, tokenizer = talk.plain()
  path = tmp_path / 'chat.jsonl'
  unscored, _ = talk.plain(reward=None, outcome='infra_error')
  poor, _ = talk.plain(reward=0.25)
  count = chat_jsonl.write(
    path, [rollout, unscored, poor], tokenizer, least_reward=0.5
  )
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  assert count == len(lines) == 1
  line = lines[0]
  assert [m['role'] for m in line['messages']] == [
    *('system', 'user', 'assistant', 'tool', 'tool', 'assistant')
  ]
  first = line['messages'][2]
  assert first['reasoning_content'] == 'look first'
  assert first['tool_calls'][1] == {
    'id': 'call_1',
    'type': 'function',
    'function': {'name': 'bash', 'arguments': {'command': 'pwd'}},
  }
  assert line['messages'][4]['tool_call_id'] == 'call_1'
  assert line['metadata']['reward'] == 0.5
  assert line['tools'][0]['function']['name'] == 'bash'


def test_chat_jsonl_renders_to_the_ids_that_were_sampled(talk):
  """What comes out, rendered again, is the conversation that was captured."""
  rollout, tokenizer = talk.plain()
  (found,) = conversation.conversations(
    conversation.retained(rollout), tokenizer
  )
  renderer = talk.render.Renderer(tokenizer)
  again = renderer.prompt(_messages(found)[:-1], talk.TOOLS)
  assert again == rollout.calls[1].prompt_ids.tolist()


def test_arguments_as_text(talk):
  rollout, tokenizer = talk.plain()
  (line,) = chat_jsonl.lines(rollout, tokenizer, arguments='text')
  call = line['messages'][2]['tool_calls'][0]['function']
  assert call['arguments'] == '{"command": "ls"}'
