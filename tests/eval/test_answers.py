"""Event streams put together as the APIs document them."""

import json

import pytest

from clawjax import types
from clawjax.eval import answers


def _sse(*events):
  return ''.join(f'data: {json.dumps(e)}\n\n' for e in events).encode()


def _chunk(finish=None, **delta):
  return {'id': 'x', 'choices': [{'delta': delta, 'finish_reason': finish}]}


def _part(index, **function):
  call = {'index': index, 'function': function}
  return call | ({'id': f'c{index}'} if 'name' in function else {})


CHAT = _sse(
  _chunk(role='assistant', content='I '),
  _chunk(content='look.'),
  _chunk(tool_calls=[_part(0, name='bash', arguments='')]),
  _chunk(tool_calls=[_part(0, arguments='{"comm')]),
  _chunk(tool_calls=[_part(0, arguments='and": "ls"}')]),
  _chunk(tool_calls=[_part(1, name='bash', arguments='{}')]),
  _chunk(finish='tool_calls'),
  {'id': 'x', 'choices': [], 'usage': {'prompt_tokens': 5}},
)
MESSAGES = _sse(
  {
    'type': 'message_start',
    'message': {'id': 'm', 'content': [], 'usage': {'input_tokens': 5}},
  },
  {
    'type': 'content_block_start',
    'index': 0,
    'content_block': {'type': 'text', 'text': ''},
  },
  {'type': 'ping'},
  {
    'type': 'content_block_delta',
    'index': 0,
    'delta': {'type': 'text_delta', 'text': 'I look.'},
  },
  {'type': 'content_block_stop', 'index': 0},
  {
    'type': 'content_block_start',
    'index': 1,
    'content_block': {
      'type': 'tool_use',
      'id': 't',
      'name': 'bash',
      'input': {},
    },
  },
  {
    'type': 'content_block_delta',
    'index': 1,
    'delta': {'type': 'input_json_delta', 'partial_json': '{"command": '},
  },
  {
    'type': 'content_block_delta',
    'index': 1,
    'delta': {'type': 'input_json_delta', 'partial_json': '"ls"}'},
  },
  {
    'type': 'message_delta',
    'delta': {'stop_reason': 'tool_use'},
    'usage': {'output_tokens': 9},
  },
  {'type': 'message_stop'},
)
RESPONSES = _sse(
  {'type': 'response.created', 'response': {'id': 'r', 'output': []}},
  {
    'type': 'response.completed',
    'response': {
      'id': 'r',
      'output': [
        {
          'type': 'message',
          'role': 'assistant',
          'content': [{'type': 'output_text', 'text': 'I look.'}],
        },
        {
          'type': 'function_call',
          'call_id': 'c0',
          'name': 'bash',
          'arguments': '{"command": "ls"}',
        },
      ],
    },
  },
)
ALL = {'chat': CHAT, 'messages': MESSAGES, 'responses': RESPONSES}


@pytest.mark.parametrize('dialect', ALL)
def test_a_stream_becomes_a_message(dialect):
  answer = answers.read(ALL[dialect], dialect, events=True)
  messages, _ = answers.conversation({}, answer, dialect)
  said = messages[-1]
  assert said.role == 'assistant' and said.content == 'I look.'
  assert said.calls[0].name == 'bash'
  assert json.loads(said.calls[0].arguments) == {'command': 'ls'}
  assert 'bash({"command": "ls"})' in answers.text(answer, dialect).replace(
    '":"', '": "'
  )


def test_calls_of_a_chat_stream_stay_apart():
  answer = answers.read(CHAT, 'chat', events=True)
  calls = answer['choices'][0]['message']['tool_calls']
  assert [(c['id'], c['function']['arguments']) for c in calls] == [
    ('c0', '{"command": "ls"}'),
    ('c1', '{}'),
  ]
  assert answer['usage'] == {'prompt_tokens': 5}


def test_usage_of_a_messages_stream_is_merged():
  answer = answers.read(MESSAGES, 'messages', events=True)
  assert answer['usage'] == {'input_tokens': 5, 'output_tokens': 9}
  assert answer['stop_reason'] == 'tool_use'


@pytest.mark.parametrize('dialect', ALL)
@pytest.mark.parametrize('events', [True, False])
def test_half_an_answer_is_no_answer(dialect, events):
  whole = ALL[dialect]
  # The last event, and for a chat the one before it, end the answer.
  end = whole.rindex(b'finish_reason') if dialect == 'chat' else len(whole) - 20
  for size in range(0, end, 37):
    assert answers.read(whole[:size], dialect, events=events) is None


def test_a_conversation_with_its_request():
  request = {
    'system': 'Be brief.',
    'tools': [{'name': 'bash', 'input_schema': {'type': 'object'}}],
    'messages': [{'role': 'user', 'content': 'List the files.'}],
    'max_tokens': 10,
  }
  answer = answers.read(MESSAGES, 'messages', events=True)
  messages, tools = answers.conversation(request, answer, 'messages')
  assert messages[:2] == [
    types.Message('system', 'Be brief.'),
    types.Message('user', 'List the files.'),
  ]
  assert messages[2].content == 'I look.'
  assert tools[0]['function']['name'] == 'bash'
