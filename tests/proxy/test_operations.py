"""Keep-alives, hang-ups, limits, errors after a 200, and fuzzed bodies."""

import asyncio
import gzip
import json
import resource

import pytest

from clawjax.proxy import app
from tests.proxy.conftest import events

USER = [{'role': 'user', 'content': 'hi'}]
BODIES = {
  'messages': {'model': 'm', 'max_tokens': 9, 'messages': USER},
  'chat/completions': {'model': 'm', 'messages': USER},
  'responses': {'model': 'm', 'input': 'hi'},
}
QUICK = app.ProxyConfig(keep_alive_s=0.1, grace_s=0.02)


@pytest.mark.parametrize('path', BODIES)
async def test_a_stream_shows_life_from_the_start(bench, path):
  """The model does not begin before the client has seen three pings."""
  async with bench(['ok'], config=QUICK) as b:
    seen, enough = '', asyncio.Event()

    async def gate(index):
      assert index == 0
      await enough.wait()

    b.proxy.session(b.session.id).gate = gate
    async with b.http.stream(
      'POST', f'{b.base}/v1/{path}', json={**BODIES[path], 'stream': True}
    ) as answer:
      assert answer.status_code == 200
      async for chunk in answer.aiter_text():
        seen += chunk
        if seen.count('ping') >= 3:
          enough.set()
    assert enough.is_set()
    assert 'ok' in seen[seen.rindex('ping') :] and events(seen)
    assert b.calls()[0].status == 'ok'


async def test_a_whole_answer_is_kept_alive_by_white_space(bench):
  async with bench([{'text': 'ok', 'delay_s': 0.8}], config=QUICK) as b:
    answer = await b.post('chat/completions', BODIES['chat/completions'])
    assert answer.text.startswith(' ')
    assert answer.json()['choices'][0]['message']['content'] == 'ok'


@pytest.mark.parametrize('path', BODIES)
async def test_an_engine_error_after_the_headers(bench, path):
  script = [{'error': 'crashed', 'delay_s': 0.2}]
  async with bench(script, config=QUICK) as b:
    answer = await b.post(path, {**BODIES[path], 'stream': True})
    assert answer.status_code == 200
    last = events(answer.text)[-1]
    if path == 'messages':
      assert last['type'] == 'error' and last['error']['type'] == 'api_error'
      assert 'message_stop' not in answer.text
    elif path == 'responses':
      assert last['type'] == 'response.failed'
    else:
      assert last['error']['message'] and '[DONE]' not in answer.text
    assert b.calls()[0].status == 'error'


@pytest.mark.parametrize(
  'path, status',
  [('messages', 529), ('chat/completions', 503), ('responses', 503)],
)
async def test_a_busy_engine(bench, path, status):
  async with bench([{'error': 'busy'}]) as b:
    answer = await b.post(path, BODIES[path])
    assert answer.status_code == status
    if path == 'messages':
      assert answer.json()['error']['type'] == 'overloaded_error'
      assert answer.headers['retry-after']
    else:
      assert answer.json()['error']['code'] == 'server_is_overloaded'


async def test_the_budget_of_a_session(bench):
  opened = {'token_budget': 8}
  async with bench(['word ' * 30], opened=opened) as b:
    first = await b.post('messages', {**BODIES['messages'], 'max_tokens': 99})
    assert first.json()['stop_reason'] == 'max_tokens'
    assert len(b.calls()[0].sample.token_ids) == 8
    second = await b.post('messages', BODIES['messages'])
    assert second.status_code == 400
    assert second.json()['error']['message'].startswith('prompt is too long: ')


async def test_bodies_large_packed_and_broken(bench):
  config = app.ProxyConfig(body_bytes=300_000)
  async with bench(['ok'], config=config, window=1 << 20) as b:
    body = {**BODIES['messages'], 'metadata': {'x': 'y' * 200_000}}
    assert (await b.post('messages', body)).status_code == 200
    packed = gzip.compress(json.dumps(body).encode())
    url = f'{b.base}/v1/messages'
    answer = await b.http.post(
      url, content=packed, headers={'content-encoding': 'gzip'}
    )
    assert answer.status_code == 200
    for content, headers, status in (
      (b'x' * 300_001, {}, 413),
      (gzip.compress(b'x' * 400_000), {'content-encoding': 'gzip'}, 413),
      (b'junk', {'content-encoding': 'gzip'}, 400),
      (b'junk', {'content-encoding': 'br'}, 415),
      (b'{"a":', {}, 400),
      (b'[1]', {}, 400),
      (b'\xff', {}, 400),
      (b'[' * 100_000, {}, 400),
    ):
      answer = await b.http.post(url, content=content, headers=headers)
      assert answer.status_code == status, content[:20]
      assert answer.json()['type'] == 'error'


async def test_probes(bench):
  async with bench(['ok']) as b:
    for method, path, status in (
      ('HEAD', '/', 200),
      ('GET', '/health', 200),
      ('OPTIONS', b.session.path + '/v1/messages', 200),
      ('GET', b.session.path + '/v1/models', 200),
      ('GET', b.session.path + '/v1/models/x', 200),
      ('GET', b.session.path + '/v1/messages', 405),
      ('GET', '/v1/models', 401),
      ('POST', b.session.path + '/v1/nothing', 404),
    ):
      answer = await b.http.request(method, b.url + path)
      assert answer.status_code == status, (method, path)
    models = (await b.http.get(f'{b.base}/v1/models')).json()
    assert models['object'] == 'list' and models['data'][0]['id']


async def test_keys(bench):
  async with bench(['ok']) as b:
    other = b.proxy.open('other')
    body = BODIES['chat/completions']
    url = f'{b.url}/v1/chat/completions'
    key = b.session.key
    for headers in ({'authorization': f'Bearer {key}'}, {'x-api-key': key}):
      assert (
        await b.http.post(url, json=body, headers=headers)
      ).status_code == 200
    # The path wins: a key in it opens its own session and no other.
    await b.post('chat/completions', body, headers={'x-api-key': other.key})
    assert len(b.calls()) == 3 and b.proxy.calls('other') == ()
    b.proxy.close('other')
    wrong = await b.http.post(url, json=body, headers={'x-api-key': other.key})
    assert wrong.status_code == 401


@pytest.fixture
def many_files():
  """Room for 1,000 connections with both ends in this process, or a skip."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = 2500
  if hard != resource.RLIM_INFINITY and hard < wanted:
    pytest.skip(f'wanted {wanted} open files, this system allows {hard}')
  resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
  yield
  resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_idle_and_slow_clients_leave_the_rest_unharmed(bench, many_files):
  async with bench(['ok']) as b:
    host, port = b.url.removeprefix('http://').split(':')
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(1000)]
    slow = idle[0][1]
    slow.write(
      f'POST {b.session.path}/v1/messages HTTP/1.1\r\nhost: x\r\n'
      'content-length: 1000\r\n\r\n{'.encode()
    )
    await slow.drain()
    answer = await b.post('messages', BODIES['messages'])
    assert answer.status_code == 200
    for _, writer in idle:
      writer.close()
      await writer.wait_closed()
