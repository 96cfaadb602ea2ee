"""The passthrough in front of an API: our own proxy with a scripted model."""

import asyncio
import contextlib
import json
import os

import anthropic
import httpx
import openai
import pytest

from clawjax import errors, types
from clawjax.chat import tokenizers
from clawjax.eval import passthrough
from clawjax.proxy import app, scripted, serve

LOOK = (
  'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n'
  '</tool_call>'
)


@contextlib.asynccontextmanager
async def _chain(monkeypatch, kind, script, record_dir=None):
  """Passthrough on an address, in front of a proxy on another."""
  tokenizer = tokenizers.load('tiny')
  client = scripted.ScriptedClient(script, tokenizer)
  upstream = app.Proxy(client, tokenizer)
  session = upstream.open('upstream')
  monkeypatch.setenv('A_KEY', session.key)
  async with (
    serve.serve(upstream.app) as url,
    passthrough.Passthrough.connect(
      url + ('/v1' if kind == 'openai' else ''),
      kind=kind,
      model='big',
      api_key_env='A_KEY',
      record_dir=record_dir,
    ) as proxy,
    serve.serve(proxy.app) as front,
  ):
    yield proxy, front, upstream


async def _settled(proxy, id):
  assert await proxy.settle(id, interval_s=0.01, checks=2, timeout_s=5)


TOOLS = [
  {
    'type': 'function',
    'function': {'name': 'bash', 'parameters': {'type': 'object'}},
  }
]


async def test_chat_through_the_official_client(monkeypatch, tmp_path):
  async with _chain(monkeypatch, 'openai', [LOOK, 'Two files.'], tmp_path) as (
    proxy,
    front,
    upstream,
  ):
    asked = []

    async def gate(index):
      asked.append((index, len(upstream.calls('upstream'))))

    session = proxy.open(
      'eval/a/pi/0', sampling={'temperature': 0.0}, gate=gate
    )
    client = openai.AsyncOpenAI(
      base_url=f'{front}{session.path}/v1', api_key='unused', max_retries=0
    )
    messages = [{'role': 'user', 'content': 'List the files.'}]
    stream = await client.chat.completions.create(
      model='policy', messages=messages, tools=TOOLS, stream=True
    )
    chunks = [c async for c in stream]
    calls = [
      t
      for c in chunks
      for t in (c.choices[0].delta.tool_calls or [] if c.choices else [])
    ]
    messages += [
      {
        'role': 'assistant',
        'content': 'I look.',
        'tool_calls': [
          {
            'id': calls[0].id,
            'type': 'function',
            'function': {'name': 'bash', 'arguments': '{"command": "ls"}'},
          }
        ],
      },
      {'role': 'tool', 'tool_call_id': calls[0].id, 'content': 'a b'},
    ]
    answer = await client.chat.completions.create(
      model='policy', messages=messages, tools=TOOLS
    )
    await client.close()
    assert answer.choices[0].message.content == 'Two files.'
    await _settled(proxy, session.id)
    first, second = proxy.calls(session.id)
    assert first.status == second.status == 'ok'
    assert not first.trainable and first.sample is None
    assert 'I look.' in first.text and second.text == 'Two files.'
    assert proxy.stats(session.id) == {'served': 2, 'captured': 2, 'pending': 0}
    # The gate was passed before the API was asked.
    assert asked == [(0, 0), (1, 1)]
    said = proxy.messages(session.id)
    assert [m.role for m in said] == ['user', 'assistant', 'tool', 'assistant']
    proxy.close(session.id)
  lines = passthrough.read(tmp_path, 'eval/a/pi/0')
  assert [line['request']['model'] for line in lines] == ['big', 'big']
  assert lines[0]['request']['temperature'] == 0.0
  found, tools = passthrough.longest(lines)
  assert [m.role for m in found] == ['user', 'assistant', 'tool', 'assistant']
  assert found[1].calls[0].name == 'bash' and found[3].content == 'Two files.'
  assert tools[0]['function']['name'] == 'bash'


async def test_messages_through_the_official_client(monkeypatch, tmp_path):
  async with _chain(monkeypatch, 'anthropic', [LOOK], tmp_path) as (
    proxy,
    front,
    _,
  ):
    session = proxy.open('r')
    client = anthropic.AsyncAnthropic(
      base_url=f'{front}{session.path}', api_key='unused', max_retries=0
    )
    async with client.messages.stream(
      model='policy',
      max_tokens=100,
      messages=[{'role': 'user', 'content': 'List the files.'}],
      tools=[{'name': 'bash', 'input_schema': {'type': 'object'}}],
    ) as stream:
      final = await stream.get_final_message()
    count = await client.messages.count_tokens(
      model='policy', messages=[{'role': 'user', 'content': 'x'}]
    )
    await client.close()
    assert final.stop_reason == 'tool_use' and count.input_tokens > 0
    await _settled(proxy, session.id)
    (call,) = proxy.calls(session.id)  # counting is no call
    assert call.dialect == 'messages' and 'bash' in call.text


async def test_an_error_of_the_api_reaches_the_harness(monkeypatch):
  script = [{'error': 'busy'}]
  async with _chain(monkeypatch, 'openai', script) as (proxy, front, _):
    session = proxy.open('r')
    async with httpx.AsyncClient() as client:
      reply = await client.post(
        f'{front}{session.path}/v1/chat/completions',
        json={'messages': [{'role': 'user', 'content': 'x'}]},
      )
    assert reply.status_code >= 400
    await _settled(proxy, session.id)
    (call,) = proxy.calls(session.id)
    assert call.status == 'error' and str(reply.status_code) in call.error


async def test_an_api_that_is_away_is_an_error(monkeypatch):
  monkeypatch.setenv('A_KEY', 'k')
  async with (
    passthrough.Passthrough.connect(
      'http://127.0.0.1:9', kind='openai', model='', api_key_env='A_KEY'
    ) as proxy,
    serve.serve(proxy.app) as front,
  ):
    session = proxy.open('r')
    async with httpx.AsyncClient() as client:
      reply = await client.post(
        f'{front}{session.path}/v1/chat/completions', json={'messages': []}
      )
      unknown = await client.post(f'{front}/r/nobody/v1/chat/completions')
      other = await client.post(f'{front}{session.path}/v1/messages', json={})
      broken = await client.post(
        f'{front}{session.path}/v1/chat/completions', content=b'{'
      )
    assert reply.status_code == 502
    assert unknown.status_code == 401
    assert other.status_code == 404
    assert broken.status_code == 400
    (call,) = proxy.calls(session.id)
    assert call.status == 'error' and 'Connect' in call.error


async def test_a_client_that_hangs_up_is_noticed(monkeypatch):
  slow = [{'text': 'late', 'delay_s': 30}]
  async with _chain(monkeypatch, 'openai', slow) as (proxy, front, upstream):
    session = proxy.open('r')
    async with httpx.AsyncClient() as client:
      body = {'messages': [{'role': 'user', 'content': 'x'}], 'stream': True}
      with pytest.raises(httpx.ReadTimeout):
        await client.post(
          f'{front}{session.path}/v1/chat/completions', json=body, timeout=0.5
        )
    await _settled(proxy, session.id)
    (call,) = proxy.calls(session.id)
    assert call.status == 'aborted'
    for _ in range(100):
      if upstream.client.cancelled:
        break
      await asyncio.sleep(0.05)
    assert upstream.client.cancelled == 1


@pytest.mark.parametrize(
  'url, key, text',
  [('api.example', 'k', 'wanted http'), ('https://api.example', '', 'API key')],
)
async def test_bad_settings_name_the_way_out(monkeypatch, url, key, text):
  monkeypatch.setenv('OPENAI_API_KEY', key)
  with pytest.raises(errors.ConfigError, match=text):
    async with passthrough.Passthrough.connect(url, kind='openai', model=''):
      pass


def test_the_key_is_recorded_nowhere(monkeypatch, tmp_path):
  """Of what goes to disk: the request body, which never held it."""

  async def go():
    async with _chain(monkeypatch, 'openai', ['x'], tmp_path) as (
      proxy,
      front,
      upstream,
    ):
      session = proxy.open('r')
      async with httpx.AsyncClient() as client:
        await client.post(
          f'{front}{session.path}/v1/chat/completions',
          json={'messages': [{'role': 'user', 'content': 'x'}]},
        )
      secret = os.environ['A_KEY']
      await _settled(proxy, session.id)
      return secret

  secret = asyncio.run(go())
  (path,) = tmp_path.iterdir()
  assert secret not in path.read_text()
  assert json.loads(path.read_text())['status'] == 'ok'


def test_conversations_are_kept_apart_and_whole():
  def talk(*texts):
    roles = ('user', 'assistant')
    return [types.Message(roles[n % 2], text) for n, text in enumerate(texts)]

  talks = []
  passthrough.join(talks, talk('a', 'b'))
  passthrough.join(talks, talk('a', 'b', 'c', 'd'))
  passthrough.join(talks, talk('x', 'y'))
  passthrough.join(talks, talk('a', 'b'))  # shorter: a retry of the first
  assert talks == [talk('a', 'b', 'c', 'd'), talk('x', 'y')]
