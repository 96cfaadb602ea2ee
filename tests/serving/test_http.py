"""Server and client over HTTP: the same sample as in process, once."""

import asyncio
import json
import threading

import httpx
import numpy as np
import pytest

from clawjax.chat import tokenizers
from clawjax.errors import CheckpointError, EngineError
from clawjax.proxy import app, serve
from clawjax.serving import wire
from clawjax.serving.http_client import HttpClient
from clawjax.serving.scheduler import Scheduler
from clawjax.serving.server import Server
from clawjax.types import Sample, SamplingParams

from .fake_engine import FakeEngine, expected

PROMPT = np.array([3, 1, 4, 1, 5], np.int32)


@pytest.fixture
def running():
  scheduler = Scheduler(FakeEngine()).start()
  yield scheduler
  scheduler.stop()
  scheduler.cache.check(0)


def read_params(path):
  if path == 'missing':
    raise CheckpointError('nothing there')
  return path


@pytest.fixture
async def http(running):
  app = Server(running, admin_token='secret', read_params=read_params).app
  transport = httpx.ASGITransport(app)
  async with httpx.AsyncClient(transport=transport) as client:
    yield client


@pytest.mark.parametrize('kind', [wire.MSGPACK, wire.JSON])
async def test_sample_over_http(http, kind):
  client = await HttpClient.connect(['http://a'], http=http, kind=kind)
  assert client.window == 64 and client.policy_version == 0
  sample = await client.sample(
    PROMPT, SamplingParams(max_tokens=7), session_id='s'
  )
  assert sample.token_ids.tolist() == expected(PROMPT, 7)
  assert sample.token_ids.dtype == np.int32
  assert sample.logprobs.dtype == np.float32 and len(sample.logprobs) == 7
  again = await client.sample(
    np.append(PROMPT, sample.token_ids), SamplingParams(max_tokens=2)
  )
  assert again.reused_tokens == 11  # all but the last token of the prompt


@pytest.mark.parametrize('kind', [wire.MSGPACK, wire.JSON])
def test_arrays_keep_their_bits(kind):
  sample = Sample(
    np.array([1, 2], np.int32),
    np.array([-0.1, -1e-30], np.float32),
    'stop',
    routes=np.arange(8, dtype=np.int16).reshape(2, 2, 2),
    raw_logprobs=np.array([-1 / 3, -2e10], np.float32),
  )
  sent = wire.dump({'sample': wire.sample_message(sample, kind)}, kind)
  got = wire.sample_from_message(wire.load(sent, kind)['sample'])
  for name in ('token_ids', 'logprobs', 'routes', 'raw_logprobs'):
    a, b = getattr(sample, name), getattr(got, name)
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
  assert got.finish == 'stop' and got.prompt_routes is None


async def test_same_request_id_draws_once(http, running):
  body = {
    'prompt_ids': PROMPT.tolist(),
    'params': {'max_tokens': 5},
    'request_id': 'x',
  }
  answers = await asyncio.gather(
    *[http.post('http://a/v1/sample', json=body) for _ in range(3)]
  )
  answers.append(await http.post('http://a/v1/sample', json=body))
  assert {a.status_code for a in answers} == {200}
  assert len({a.text for a in answers}) == 1
  assert running.stats()['drawn_tokens'] == 5


async def test_stream_adds_up_to_the_sample(http):
  body = {
    'prompt_ids': PROMPT.tolist(),
    'params': {'max_tokens': 10},
    'stream': True,
  }
  answer = await http.post('http://a/v1/sample', json=body)
  *parts, last = map(json.loads, answer.text.splitlines())
  ids = [i for part in parts for i in part['token_ids']]
  assert len(parts) > 1 and all(p['policy_version'] == 0 for p in parts)
  assert ids == last['sample']['token_ids'] == expected(PROMPT, 10)


@pytest.mark.parametrize(
  ('body', 'status', 'kind'),
  [
    (b'{', 400, 'bad_request'),
    (b'[]', 400, 'bad_request'),
    (b'{}', 400, 'bad_request'),
    (b'{"prompt_ids": [1.5]}', 400, 'bad_request'),
    (b'{"prompt_ids": [[1]]}', 400, 'bad_request'),
    (b'{"prompt_ids": "abc"}', 400, 'bad_request'),
    (b'{"prompt_ids": [-1]}', 400, 'bad_request'),
    (b'{"prompt_ids": [99999999999]}', 400, 'bad_request'),
    (b'{"prompt_ids": [1], "params": {"heat": 1}}', 400, 'bad_request'),
    (b'{"prompt_ids": [1], "params": {"top_p": "x"}}', 400, 'bad_request'),
    (b'{"prompt_ids": [1], "params": 3}', 400, 'bad_request'),
    (b'{"prompt_ids": [1], "params": {"top_p": 2}}', 400, 'bad_request'),
    (
      json.dumps({'prompt_ids': [1] * 64}).encode(),
      413,
      'too_long',
    ),
  ],
)
async def test_refusals(http, body, status, kind):
  answer = await http.post('http://a/v1/sample', content=body)
  assert answer.status_code == status
  assert answer.json()['error']['kind'] == kind


async def test_error_kinds_cross_the_wire(http):
  client = HttpClient(['http://a'], http=http, pause_s=0.001)
  with pytest.raises(EngineError) as error:
    await client.sample(np.ones(64, np.int32), SamplingParams())
  assert error.value.kind == 'too_long'


async def test_load_needs_the_token_and_reports_failures(http, running):
  url, body = 'http://a/admin/load', {'path': 'good', 'version': 4}
  assert (await http.post(url, json=body)).status_code == 403
  wrong = {'authorization': 'Bearer guess'}
  assert (await http.post(url, json=body, headers=wrong)).status_code == 403
  right = {'authorization': 'Bearer secret'}
  assert (await http.post(url, json=body, headers=right)).status_code == 200
  assert running.engine.version == 4
  for bad in ('bad', 'missing'):
    answer = await http.post(
      url, json={'path': bad, 'version': 5}, headers=right
    )
    assert answer.json()['error']['kind'] == 'bad_params'
  assert (
    await http.post(url, json={'path': 3}, headers=right)
  ).status_code == 400
  assert (await http.get('http://a/health')).json()['policy_version'] == 4


async def test_metrics_are_prometheus_text(http):
  await http.post(
    'http://a/v1/sample',
    json={'prompt_ids': PROMPT.tolist(), 'params': {'max_tokens': 5}},
  )
  text = (await http.get('http://a/metrics')).text
  lines = dict(
    line.rsplit(' ', 1) for line in text.splitlines() if line[0] != '#'
  )
  assert float(lines['clawjax_engine_drawn_tokens']) == 5
  assert '# TYPE clawjax_engine_waiting gauge' in text


async def test_crash_shows_in_health(http, running):
  running.engine.crash_at = 1
  answer = await http.post(
    'http://a/v1/sample', json={'prompt_ids': [1], 'params': {}}
  )
  assert answer.status_code == 500
  assert answer.json()['error']['kind'] == 'crashed'
  assert (await http.get('http://a/health')).status_code == 500


async def test_hanging_up_cancels():
  """An ASGI client that disconnects while its sample is drawn."""
  scheduler = Scheduler(FakeEngine(window=40_000, pages=20_000)).start()
  app = Server(scheduler).app
  body = json.dumps({'prompt_ids': [1], 'params': {}}).encode()
  messages = [{'type': 'http.request', 'body': body, 'more_body': False}]

  async def receive():
    if messages:
      return messages.pop()
    while not scheduler.stats()['decoding']:
      await asyncio.sleep(0.001)
    return {'type': 'http.disconnect'}

  async def send(message):
    pass

  scope = {
    'type': 'http',
    'method': 'POST',
    'path': '/v1/sample',
    'headers': [],
    'query_string': b'',
    'scheme': 'http',
    'server': ('a', 80),
  }
  await app(scope, receive, send)
  while not scheduler.stats()['cancelled']:
    await asyncio.sleep(0.001)
  scheduler.stop()
  scheduler.cache.check(0)


# ---- several servers -------------------------------------------------------


def answer_of(name):
  body = {
    'sample': {
      'token_ids': [1],
      'logprobs': [-0.5],
      'finish': 'stop',
      'policy_version': name,
    },
    'policy_version': name,
  }
  return httpx.Response(200, json=body)


class Cluster:
  """Three servers by host name; some are down, some busy for a while."""

  def __init__(self):
    self.log, self.down, self.busy, self.dropped = [], set(), {}, 0

  def __call__(self, request):
    host = request.url.host
    if host in self.down:
      raise httpx.ConnectError('refused', request=request)
    if request.url.path == '/health':
      return httpx.Response(200, json={'window': 64, 'policy_version': 0})
    data = wire.load(request.content, request.headers['content-type'])
    self.log.append((host, data['session_id'], data['request_id']))
    if self.dropped:
      self.dropped -= 1
      raise httpx.ReadError('connection reset', request=request)
    if self.busy.get(host, 0):
      self.busy[host] -= 1
      return httpx.Response(
        503, json={'error': {'kind': 'busy', 'message': 'later'}}
      )
    return answer_of(ord(host))

  def client(self):
    transport = httpx.MockTransport(self)
    return HttpClient(
      ['http://a', 'http://b', 'http://c'],
      http=httpx.AsyncClient(transport=transport),
      pause_s=0.001,
    )


async def test_sessions_stay_and_only_the_lost_ones_move():
  cluster = Cluster()
  client = cluster.client()
  assert await client.check() == 3

  async def homes():
    cluster.log.clear()
    for i in range(30):
      await client.sample(PROMPT, SamplingParams(), session_id=f's{i}')
    return {session: host for host, session, _ in cluster.log}

  before = await homes()
  assert set(before.values()) == {'a', 'b', 'c'}
  assert await homes() == before
  cluster.down.add('b')
  after = await homes()
  assert set(after.values()) == {'a', 'c'}
  assert all(after[s] == h for s, h in before.items() if h != 'b')
  await client.close()


async def test_broken_connection_asks_the_same_server_with_the_same_id():
  cluster = Cluster()
  cluster.dropped = 1
  client = cluster.client()
  await client.sample(PROMPT, SamplingParams(), session_id='s')
  (host, _, first), (again, _, second) = cluster.log
  assert (host, first) == (again, second)
  await client.close()


async def test_busy_is_waited_out_then_raised():
  cluster = Cluster()
  client = cluster.client()
  await client.check()
  home = client._choose('s').url[-1]
  cluster.busy[home] = 3
  await client.sample(PROMPT, SamplingParams(), session_id='s')
  cluster.busy[home] = 100
  with pytest.raises(EngineError) as error:
    await client.sample(PROMPT, SamplingParams(), session_id='s')
  assert error.value.kind == 'busy'
  await client.close()


async def test_no_server_is_an_error():
  cluster = Cluster()
  cluster.down = {'a', 'b', 'c'}
  with pytest.raises(EngineError, match='no healthy server'):
    await HttpClient.connect(
      ['http://a', 'http://b'],
      http=httpx.AsyncClient(transport=httpx.MockTransport(cluster)),
    )


# ---- ids as they are drawn -------------------------------------------------


async def test_ids_are_told_as_they_are_drawn(running):
  """Over a real socket; the next burst waits until the first one was told."""
  engine, told = running.engine, []
  begun, heard = threading.Event(), threading.Event()
  decode = engine.decode

  def held(*args, **options):
    assert not begun.is_set() or heard.wait(120)
    begun.set()
    return decode(*args, **options)

  engine.decode = held

  def on_tokens(ids, logprobs, version):
    assert len(ids) == len(logprobs) and version == 0
    told.append(ids)
    heard.set()

  async with serve.serve(Server(running).app) as url:
    client = await HttpClient.connect([url])
    sample = await client.sample(
      PROMPT, SamplingParams(max_tokens=10), on_tokens=on_tokens
    )
    await client.close()
  assert len(told) > 1
  assert sum(told, []) == sample.token_ids.tolist() == expected(PROMPT, 10)
  assert sample.logprobs.dtype == np.float32


async def test_the_proxy_takes_it_for_streams_as_sampled():
  client = HttpClient(['http://a'])
  tokenizer = tokenizers.load('tiny')
  app.Proxy(client, tokenizer, config=app.ProxyConfig(stream_sampled=True))
  await client.close()


class Streams:
  """Streams of two parts and an answer, one per request; some break off."""

  def __init__(self, *answers):
    self.answers = list(answers)

  def __call__(self, request):
    data = wire.load(request.content, request.headers['content-type'])
    assert data['stream'] is True
    ids, cut, error = self.answers.pop(0)
    lines = [
      {'token_ids': ids[:2], 'logprobs': [-1.0, -1.0], 'policy_version': 3},
      {'token_ids': ids[2:], 'logprobs': [-1.0], 'policy_version': 3},
      {
        'sample': {
          'token_ids': ids,
          'logprobs': [-1.0] * len(ids),
          'finish': 'stop',
        },
        'policy_version': 3,
      },
    ][: 3 - cut]
    if error:
      lines.append({'error': {'kind': error, 'message': 'no'}})
    text = ''.join(json.dumps(line) + '\n' for line in lines)
    return httpx.Response(200, text=text)

  async def sample(self):
    transport = httpx.MockTransport(self)
    told = []
    client = HttpClient(
      ['http://a'], http=httpx.AsyncClient(transport=transport), pause_s=0.001
    )
    try:
      sample = await client.sample(
        PROMPT, SamplingParams(), on_tokens=lambda *part: told.append(part[0])
      )
    finally:
      await client.close()
      self.told = told
    assert client._servers[0].policy_version == 3
    return sample.token_ids.tolist()


async def test_a_stream_that_breaks_is_gone_on_with_and_told_once():
  streams = Streams(([7, 8, 9], 2, ''), ([7, 8, 9], 0, ''))
  assert await streams.sample() == [7, 8, 9]
  assert streams.told == [[7, 8]]  # What comes after it is in the answer.


async def test_another_answer_than_the_one_told_is_a_failure():
  streams = Streams(([7, 8, 9], 1, ''), ([7, 5, 9], 0, ''))
  with pytest.raises(EngineError, match='had begun is lost') as error:
    await streams.sample()
  assert error.value.kind == 'crashed'
  assert streams.told == [[7, 8], [9]]


async def test_errors_inside_a_stream():
  busy = Streams(([7, 8, 9], 3, 'busy'), ([7, 8, 9], 0, ''))
  assert await busy.sample() == [7, 8, 9]
  assert busy.told == [[7, 8], [9]]
  refused = Streams(([7, 8, 9], 3, 'too_long'))
  with pytest.raises(EngineError) as error:
    await refused.sample()
  assert error.value.kind == 'too_long' and refused.told == []
