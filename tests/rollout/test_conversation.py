"""Ids back to the messages that they were rendered from."""

import json

from clawjax import types
from clawjax.rollout import conversation


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


def test_chat_jsonl_renders_to_the_ids_that_were_sampled(talk):
  """What comes out, rendered again, is the conversation that was captured."""
  rollout, tokenizer = talk.plain()
  (found,) = conversation.conversations(
    conversation.retained(rollout), tokenizer
  )
  renderer = talk.render.Renderer(tokenizer)
  again = renderer.prompt(_messages(found)[:-1], talk.TOOLS)
  assert again == rollout.calls[1].prompt_ids.tolist()


def test_the_run_as_one_transcript(talk):
  rollout, tokenizer = talk.plain()
  messages = conversation.transcript(rollout.calls, tokenizer)
  assert [m.role for m in messages] == [
    *('system', 'user', 'assistant', 'tool', 'tool', 'assistant')
  ]
  assert [m.call_id for m in messages[3:5]] == ['call_0', 'call_1']
  assert conversation.transcript((), tokenizer) == []


def test_a_transcript_says_nothing_twice(talk):
  """Shared turns and what a harness repeats after compaction stand once."""
  rollout, tokenizer = talk.forked()
  messages = conversation.transcript(rollout.calls, tokenizer)
  # c0 c2 c4; of c5 'And now?' and the answer, for c0's calls have had their
  # results; of c7 the summary and the answer. c1 is dead, c3 a subagent.
  said = [(m.role, m.content.split('\n')[0]) for m in messages]
  assert said == [
    ('system', talk.SYSTEM.content.split('\n')[0]),
    ('user', talk.USER.content),
    ('assistant', 'I look.'),  # c0
    ('tool', 'a.txt'),
    ('tool', '/workspace'),
    ('assistant', 'I look.'),  # c2
    ('tool', 'a.txt'),
    ('tool', '/workspace'),
    ('assistant', 'Two files.'),  # c4
    ('user', 'And now?'),
    ('assistant', 'Two files.'),  # c5
    ('user', 'So far: two files.'),
    ('assistant', 'Going on.'),  # c7
  ]
  ids = [c.id for m in messages for c in m.calls]
  assert len(ids) == len(set(ids)) == 4
  assert [m.call_id for m in messages if m.role == 'tool'] == ids


def test_a_new_session_goes_on_in_the_transcript(talk):
  """Two roots of the main role; call ids do not meet."""
  b = talk.Builder()
  b.go_on(b.start(talk.FIRST), [talk.RESULTS], talk.SECOND)
  second = (talk.SYSTEM, types.Message('user', 'Again.'))
  b.go_on(b.start(talk.FIRST, messages=second), [talk.RESULTS], 'Same.')
  messages = conversation.transcript(tuple(b.calls), b.tokenizer)
  ids = [c.id for m in messages for c in m.calls]
  assert ids == ['call_0', 'call_1', 'call_2', 'call_3']
  assert [m.call_id for m in messages if m.role == 'tool'] == ids
  assert [m.content for m in messages if m.role == 'user'] == [
    talk.USER.content,
    'Again.',
  ]
