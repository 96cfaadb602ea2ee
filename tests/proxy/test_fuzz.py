"""Fuzzed requests: never a 500, and every call that was served is on disk.

Two sources of bodies: junk under the field names of a dialect, and a body that
holds all a dialect knows with one random part replaced by junk. 10,000 of them
per dialect run with the slow tests, a few hundred always.
"""

import asyncio
import copy
import json

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from clawjax.chat import tokenizers
from clawjax.proxy import app, capture, resume, scripted
from tests.proxy.conftest import BASH, BASH_MESSAGES, BASH_RESPONSES, call

USER = [{'role': 'user', 'content': 'hi'}]

JUNK = st.recursive(
  st.none()
  | st.booleans()
  | st.integers(-3, 3)
  | st.floats(allow_nan=False, allow_infinity=False)
  | st.sampled_from(
    [
      '',
      'a',
      'user',
      'assistant',
      'system',
      'tool',
      'text',
      'tool_use',
      'tool_result',
      'function_call',
      'function_call_output',
      'reasoning',
      'message',
      '<|im_end|>',
      '\ud800',
      '{"a": 1}',
    ]
  ),
  lambda inner: (
    st.lists(inner, max_size=4)
    | st.dictionaries(
      st.sampled_from(
        [
          'role',
          'content',
          'type',
          'text',
          'id',
          'name',
          'input',
          'arguments',
          'function',
          'tool_calls',
          'tool_use_id',
          'call_id',
          'output',
          'summary',
          'encrypted_content',
          'namespace',
          'action',
          'source',
          'parameters',
          'input_schema',
        ]
      ),
      inner,
      max_size=5,
    )
  ),
  max_leaves=12,
)
FIELDS = {
  'messages': [
    'messages',
    'system',
    'tools',
    'tool_choice',
    'max_tokens',
    'stop_sequences',
    'thinking',
    'stream',
    'model',
  ],
  'chat/completions': [
    'messages',
    'tools',
    'tool_choice',
    'max_tokens',
    'stop',
    'stream',
    'stream_options',
    'n',
    'model',
    'chat_template_kwargs',
  ],
  'responses': [
    'input',
    'instructions',
    'tools',
    'include',
    'reasoning',
    'previous_response_id',
    'stream',
    'max_output_tokens',
  ],
}

# A body with every kind of thing in it, per dialect.
RICH = {
  'messages': {
    'model': 'm',
    'max_tokens': 9,
    'system': [{'type': 'text', 'text': 'S', 'cache_control': {'type': 'e'}}],
    'tools': [BASH_MESSAGES, {'type': 'web_search_1', 'name': 'web'}],
    'tool_choice': {'type': 'auto', 'disable_parallel_tool_use': True},
    'thinking': {'type': 'enabled', 'budget_tokens': 5},
    'stop_sequences': ['STOP'],
    'metadata': {'user_id': 'u'},
    'messages': [
      {'role': 'user', 'content': 'hi'},
      {
        'role': 'assistant',
        'content': [
          {'type': 'thinking', 'thinking': 't', 'signature': 's'},
          {'type': 'redacted_thinking', 'data': 'x'},
          {'type': 'text', 'text': 'a'},
          {'type': 'server_tool_use', 'id': 'v', 'name': 'w', 'input': {}},
          {'type': 'tool_use', 'id': 'b', 'name': 'bash', 'input': {'c': 1}},
        ],
      },
      {
        'role': 'user',
        'content': [
          {
            'type': 'tool_result',
            'tool_use_id': 'b',
            'content': [
              {'type': 'text', 'text': 'r'},
              {'type': 'image', 'source': {'type': 'base64', 'data': 'x'}},
              {'type': 'tool_reference', 'tool_name': 'n'},
            ],
          },
          {'type': 'text', 'text': 'reminder'},
          {'type': 'document', 'source': {'type': 'text', 'data': 'd'}},
        ],
      },
      {
        'role': 'system',
        'content': [
          {'type': 'tool_addition', 'tool': {'definition': BASH_MESSAGES}}
        ],
      },
      {'role': 'user', 'content': 'go'},
    ],
  },
  'chat/completions': {
    'model': 'm',
    'max_completion_tokens': 9,
    'tools': [BASH, {'type': 'custom', 'custom': {'name': 'raw'}}],
    'tool_choice': 'auto',
    'stream_options': {'include_usage': True},
    'stop': ['STOP'],
    'logprobs': True,
    'chat_template_kwargs': {'enable_thinking': True},
    'messages': [
      {'role': 'developer', 'content': 'S'},
      {'role': 'user', 'content': [{'type': 'text', 'text': 'hi'}]},
      {
        'role': 'assistant',
        'content': None,
        'reasoning_content': 't',
        'tool_calls': [
          {
            'id': 'b',
            'type': 'function',
            'function': {'name': 'bash', 'arguments': '{"c": 1}'},
          },
          {'id': 'd', 'type': 'custom', 'custom': {'name': 'raw', 'input': ''}},
        ],
      },
      {'role': 'tool', 'tool_call_id': 'b', 'content': 'r'},
      {'role': 'tool', 'tool_call_id': 'd', 'content': [{'text': 'q'}]},
      {'role': 'assistant', 'content': 'x', 'function_call': {'name': 'f'}},
      {'role': 'user', 'content': 'go'},
    ],
  },
  'responses': {
    'model': 'm',
    'instructions': 'S',
    'tools': [
      BASH_RESPONSES,
      {'type': 'custom', 'name': 'raw', 'format': {'definition': 'g'}},
      {'type': 'namespace', 'name': 'ns', 'tools': [BASH_RESPONSES]},
      {'type': 'web_search'},
    ],
    'include': ['reasoning.encrypted_content'],
    'reasoning': {'effort': 'low', 'summary': 'auto'},
    'max_output_tokens': 9,
    'input': [
      {'role': 'user', 'content': 'hi'},
      {
        'type': 'reasoning',
        'summary': [{'type': 'summary_text', 'text': 't'}],
        'encrypted_content': 'clawjax-v1.zzz',
      },
      {
        'type': 'message',
        'role': 'assistant',
        'content': [{'type': 'output_text', 'text': 'a'}],
      },
      {
        'type': 'function_call',
        'name': 'bash',
        'namespace': 'ns',
        'arguments': '{}',
        'call_id': 'b',
      },
      {'type': 'custom_tool_call', 'name': 'raw', 'input': '', 'call_id': 'c'},
      {'type': 'local_shell_call', 'action': {'c': []}, 'call_id': 'd'},
      {'type': 'function_call_output', 'call_id': 'b', 'output': 'r'},
      {'type': 'custom_tool_call_output', 'call_id': 'c', 'output': [{}]},
      {'type': 'compaction', 'encrypted_content': 'clawjax-v1.zzz'},
      {'type': 'web_search_call', 'id': 'w'},
      {'role': 'user', 'content': 'go'},
    ],
  },
}
RICH['responses/compact'] = RICH['responses']
FIELDS['responses/compact'] = FIELDS['responses']


def places(value, at=()):
  """The paths to all parts of a JSON value."""
  found = [at] if at else []
  inner = ()
  if isinstance(value, dict):
    inner = value.items()
  elif isinstance(value, list):
    inner = enumerate(value)
  for key, item in inner:
    found += places(item, (*at, key))
  return found


@st.composite
def broken(draw, path):
  """A rich body with one or two parts replaced."""
  body = copy.deepcopy(RICH[path])
  for _ in range(draw(st.integers(1, 2))):
    at = draw(st.sampled_from(places(body)))
    inner = body
    for key in at[:-1]:
      inner = inner[key]
    inner[at[-1]] = draw(JUNK)
  return body


def bodies(path):
  """Bodies of requests, whole JSON objects."""
  junk = st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS[path], JUNK))
  key = 'input' if path.startswith('responses') else 'messages'
  asked = junk.map(lambda body: {key: USER, **body})
  return st.one_of(
    junk,
    asked,
    broken(path),
    st.tuples(broken(path), st.booleans()).map(
      lambda pair: {**pair[0], 'stream': pair[1]}
    ),
  )


async def asgi(proxy, path, body):
  """Status and body of one request, without a socket."""
  messages = [{'type': 'http.request', 'body': body}]
  sent = []

  async def receive():
    if messages:
      return messages.pop()
    await asyncio.Event().wait()

  async def send(message):
    sent.append(message)

  scope = {'type': 'http', 'method': 'POST', 'path': path, 'headers': []}
  await proxy.app(scope, receive, send)
  return sent[0]['status'], b''.join(m.get('body', b'') for m in sent[1:])


@pytest.mark.parametrize(
  'count', [100, pytest.param(10_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize('path', RICH)
def test_a_fuzzed_request_never_gets_a_500(path, count, tmp_path):
  tokenizer = tokenizers.load('tiny')
  script = [call('ls', thinking='x'), 'hi', {'text': 'cut', 'finish': 'length'}]
  seen = {'requests': 0, 'sessions': 0}
  proxy = loop = name = None

  def opened():
    """Now and then a new session, as a run would have."""
    nonlocal name
    if seen['requests'] % 500 == 0:
      name = f'fuzz/{seen["sessions"]}'
      seen['sessions'] += 1
      proxy.open(name)
    seen['requests'] += 1
    return proxy.session(name)

  @settings(
    max_examples=count,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
  )
  @given(bodies(path))
  def run(body):
    session = opened()
    served = session.stats.served
    status, answer = loop.run_until_complete(
      asgi(proxy, f'/r/{session.key}/v1/{path}', json.dumps(body).encode())
    )
    assert status < 500, answer
    stats = session.stats
    if status == 200 and b'response.failed' not in answer:
      assert stats.served == served + 1
    assert stats.pending == 0 and stats.captured == stats.served

  async def make():
    client = scripted.ScriptedClient(script, tokenizer)
    return app.Proxy(client, tokenizer, record_dir=tmp_path)

  loop = asyncio.new_event_loop()
  try:
    proxy = loop.run_until_complete(make())
    run()
    assert seen['requests'] >= count
    for i in range(seen['sessions']):
      known = proxy.calls(f'fuzz/{i}')
      read = resume.calls(tmp_path / capture.file_name(f'fuzz/{i}'))
      assert [c.call_id for c in read] == [c.call_id for c in known]
      assert all(c.status == 'ok' for c in read)
  finally:
    loop.close()
