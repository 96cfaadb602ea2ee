"""H: overflow, keep-alive, failures, keys and limits."""

import asyncio
import json

import httpx

from clawjax.proxy import app
from tests.cases import clients, levels
from tests.cases.reader import check
from tests.proxy.conftest import BASH, call, events, extends

MESSAGES, CHAT, RESPONSES = clients.ALL
QUICK = app.ProxyConfig(keep_alive_s=0.1, grace_s=0.01)


@check('H02')
async def _(case, bench):
  body = levels.filled(case.body)
  for stream in (False, True):
    async with bench(['ok']) as b:
      answer = await b.post('messages', {**body, 'stream': stream})
      assert answer.status_code == 400 and not b.client.prompts
      counted = await b.post('messages/count_tokens', body)
    tokens = counted.json()['input_tokens']
    assert tokens > 70_000
    error = answer.json()['error']
    assert error == {
      'type': 'invalid_request_error',
      'message': f'prompt is too long: {tokens} tokens > 65536 maximum',
    }


@check('H03')
async def _(case, bench):
  window = case.input['window']
  async with bench(['ok', 'word ' * window], window=window) as b:
    body = levels.filled(case.body)
    assert (await b.post('messages', body)).status_code == 200
    room = window - len(b.client.prompts[0])
    assert b.client.params[0].max_tokens == min(room, body['max_tokens'])
    assert room < body['max_tokens']
    got = await b.post('messages', body)
    wanted = ('max_tokens', 'model_context_window_exceeded')
    assert got.json()['stop_reason'] in wanted
    assert len(b.calls()[1].sample.token_ids) == room
    # A prompt of the whole window leaves no room for an answer.
    text = body['messages'][0]['content'] + 'a ' * room
    asked = [{'role': 'user', 'content': text}]
    full = await b.post('messages', {**body, 'messages': asked})
    assert full.status_code == 400


@check('H05')
async def _(case, bench):
  entry = {'text': 'some words', 'finish': 'context_full'}
  for client in clients.ALL:
    async with bench([entry]) as b:
      body = client.request([levels.USER], [], stream=case.input['stream'])
      answer = await b.post(client.path, body)
      got = client.stream(answer.text)
      (c,) = b.calls()
      assert got.output_tokens == len(c.sample.token_ids) > 0
      assert got.input_tokens == len(c.prompt_ids)
      if client is MESSAGES:
        assert got.stop in ('max_tokens', 'model_context_window_exceeded')
      elif client is CHAT:
        assert got.stop == 'length'
      else:  # E03: what makes Codex compact.
        assert got.stop == 'failed'
      assert 'Do it.' in b.shown(c)


@check('H06')
async def _(case, bench):
  del case
  assert app.ProxyConfig().keep_alive_s <= 15
  signs = (b'event: ping', b': ping', b': ping')
  for client, sign in zip(clients.ALL, signs, strict=True):
    async with bench(['ok'], config=QUICK, served=True) as b:
      alive = asyncio.Event()

      async def gate(index, alive=alive):
        assert index == 0
        await alive.wait()

      b.proxy.session(b.session.id).gate = gate
      body = client.request([levels.USER], [], stream=True)
      url, seen = f'{b.base}/v1/{client.path}', b''
      async with b.http.stream('POST', url, json=body) as answer:
        assert answer.status_code == 200
        async for chunk in answer.aiter_bytes():
          seen += chunk
          if seen.count(sign) >= 3:
            alive.set()
      begun = seen[: seen.index(sign)]
      opening = {MESSAGES: b'message_start', RESPONSES: b'response.created'}
      assert opening.get(client, b'"role"') in begun
      assert client.stream(seen.decode()).text.strip() == 'ok'


@check('H08')
async def _(case, bench):
  assert {s['client'] for s in case.steps} >= {'Codex', 'Claude Code'}
  async with bench([{'error': 'busy'}]) as b:
    for client in clients.ALL:
      body = client.request([levels.USER], [])
      answer = await b.post(client.path, body)
      error = answer.json()['error']
      if client is MESSAGES:
        assert (answer.status_code, error['type']) == (529, 'overloaded_error')
        assert int(answer.headers['retry-after']) > 0
      else:
        assert answer.status_code == 503
        assert error['code'] == 'server_is_overloaded'


@check('H09')
async def _(case, bench):
  del case
  for kind in ('crashed', 'busy'):
    for client in clients.ALL:
      script = [{'error': kind, 'delay_s': 0.2}]
      async with bench(script, config=QUICK) as b:
        body = client.request([levels.USER], [], stream=True)
        answer = await b.post(client.path, body)
        assert answer.status_code == 200
        last = events(answer.text)[-1]
        if client is MESSAGES:
          wanted = {'crashed': 'api_error', 'busy': 'overloaded_error'}
          assert last['type'] == 'error'
          assert last['error']['type'] == wanted[kind]
          assert 'message_stop' not in answer.text
        elif client is CHAT:
          assert last['error']['message'] and '[DONE]' not in answer.text
        else:
          assert last['type'] == 'response.failed'
          assert last['response']['error']['code']
        (c,) = b.calls()
        assert (c.status, c.sample) == ('error', None)


@check('H10')
async def _(case, bench):
  del case
  script = [{'text': call(f'n{i}'), 'delay_s': 0.2} for i in range(8)]
  for client in clients.ALL:
    async with bench(script, served=True) as b:
      asked = [{'role': 'user', 'content': f'do {i}'} for i in range(8)]
      got = await asyncio.gather(
        *(
          clients.ask(b, client, [a], [BASH], stream=i % 2 == 1)
          for i, a in enumerate(asked)
        )
      )
      assert len({g.calls[0][0] for g in got}) == 8
      assert [c.index for c in b.calls()] == list(range(8))
      for c in b.calls():  # Each client got the answer to its own prompt.
        (i,) = [i for i, a in enumerate(asked) if a['content'] in b.shown(c)]
        text = b.proxy.tokenizer.decode(c.sample.token_ids)
        assert got[i].parsed[0]['arguments']['command'] in text
  slow = [{'text': 'slow', 'delay_s': 30}, {'text': 'quick', 'delay_s': 0.3}]
  async with bench(slow, served=True) as b:
    left = asyncio.create_task(clients.ask(b, CHAT, [asked[0]]))
    await asyncio.sleep(0.15)
    stays = asyncio.create_task(clients.ask(b, CHAT, [asked[1]]))
    await asyncio.sleep(0.05)
    left.cancel()
    assert (await stays).text == 'quick'
    assert await b.proxy.settle(b.session.id, interval_s=0.05)
    assert b.client.cancelled == 1


@check('H11')
async def _(case, bench):
  (step,) = case.steps
  size = int(step.split()[1]) << 20
  assert app.ProxyConfig().body_bytes == 32 << 20
  image = {'type': 'image', 'source': {'type': 'base64', 'data': 'A' * size}}
  content = [{'type': 'text', 'text': 'look'}, image]
  body = MESSAGES.request([{'role': 'user', 'content': content}], [])
  async with bench(['ok']) as b:
    b.http.timeout = httpx.Timeout(120)
    assert (await b.post('messages', body)).status_code == 200
    too_large = json.dumps(body).encode().ljust((32 << 20) + 1)
    answer = await b.http.post(f'{b.base}/v1/messages', content=too_large)
    assert answer.status_code == 413
    assert answer.json()['error']['type'] == 'request_too_large'


@check('H12')
async def _(case, bench):
  async with bench(['ok']) as b:
    for step in [*case.steps, 'GET /health', 'GET /v1/models/m']:
      method, path = step.split()
      place = b.base if path.startswith('/v1/') else b.url
      answer = await b.http.request(method, place + path)
      assert answer.status_code == 200, step
    models = (await b.http.get(f'{b.base}/v1/models')).json()
  assert models['object'] == 'list' and models['data'][0]['id']
  assert models['data'][0]['type'] == 'model'  # Anthropic's shape.


@check('H13')
async def _(case, bench):
  async with bench([call('ls'), 'ok', 'x', 'y']) as b:
    key, other = b.session.key, b.proxy.open('other')
    body = MESSAGES.request([levels.USER], [BASH])
    body['metadata'] = {'user_id': f'..session_{other.key}..'}
    ways = (
      (b.url, {'authorization': f'Bearer {key}'}),
      (b.url, {'x-api-key': key}),
      (f'{b.url}/s/{key}', {}),
      (f'{b.url}/r/{key}', {'x-api-key': other.key}),
    )
    assert len(ways) == len(case.steps)
    for place, headers in ways:
      url = f'{place}/v1/messages'
      answer = await b.http.post(url, json=body, headers=headers)
      assert answer.status_code == 200
      got = MESSAGES.whole(answer.json())
      more = [*got.history, *MESSAGES.results(got, 'o')]
      body = {**body, 'messages': [*body['messages'], *more]}
    assert len(b.calls()) == 4 and b.proxy.calls('other') == ()
    assert all(
      extends(y, x) for x, y in zip(b.calls(), b.calls()[1:], strict=False)
    )
    refused = await b.http.post(f'{b.url}/v1/messages', json=body)
    assert refused.status_code == 401
