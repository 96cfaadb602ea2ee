"""A live proxy with a scripted model, over real HTTP."""

import contextlib
import itertools
import json

import anthropic
import httpx
import numpy as np
import openai
import pytest

from clawjax.chat import tokenizers
from clawjax.proxy import app, scripted, serve

BASH = {
  'type': 'function',
  'function': {
    'name': 'bash',
    'description': 'Runs a command.',
    'parameters': {
      'type': 'object',
      'properties': {'command': {'type': 'string'}},
      'required': ['command'],
    },
  },
}
BASH_MESSAGES = {
  'name': 'bash',
  'description': 'Runs a command.',
  'input_schema': BASH['function']['parameters'],
}
BASH_RESPONSES = {'type': 'function', **BASH['function']}


def call(command, *, spaced=True, thinking='', text=''):
  """An answer with one tool call, as a model might spell it."""
  body = {'name': 'bash', 'arguments': {'command': command}}
  separators = (', ', ': ') if spaced else (',', ':')
  block = json.dumps(body, separators=separators, ensure_ascii=False)
  out = f'<think>\n{thinking}\n</think>\n\n' if thinking else ''
  out += f'{text}\n\n' if text else ''
  return f'{out}<tool_call>\n{block}\n</tool_call>'


def events(text):
  """Data objects of an event stream."""
  found = []
  for block in text.split('\n\n'):
    for line in block.split('\n'):
      if line.startswith('data: ') and line != 'data: [DONE]':
        found.append(json.loads(line[6:]))
  return found


def extends(later, earlier):
  """Whether a prompt is exactly an earlier prompt, its answer, and more."""
  before = [*earlier.prompt_ids, *earlier.sample.token_ids]
  return np.array_equal(later.prompt_ids[: len(before)], before)


class Bench:
  """A proxy that is being served, with one open session."""

  def __init__(self, proxy, client, url, session, transport=None):
    self.proxy, self.client, self.url = proxy, client, url
    self.session = session
    self.base = url + session.path
    # Loopback needs no certificates, which take long to load.
    self.http = httpx.AsyncClient(
      timeout=30, verify=False, trust_env=False, transport=transport
    )
    self.clients = []

  async def close(self):
    await self.http.aclose()
    for client in self.clients:
      await client.close()

  def anthropic(self):
    client = anthropic.AsyncAnthropic(
      base_url=self.base, api_key='x', max_retries=0
    )
    self.clients.append(client)
    return client

  def openai(self, base=None):
    client = openai.AsyncOpenAI(
      base_url=(base or self.base) + '/v1', api_key='x', max_retries=0
    )
    self.clients.append(client)
    return client

  async def post(self, path, body, **options):
    return await self.http.post(f'{self.base}/v1/{path}', json=body, **options)

  def calls(self):
    return self.proxy.calls(self.session.id)

  def shown(self, call):
    return self.proxy.tokenizer.decode(call.prompt_ids)


@pytest.fixture
def bench(tmp_path):
  """bench(script, **options) -> async context with a `Bench`.

  With `served=False` its `http` calls the app without a socket between them:
  quicker, but a stream arrives in one piece and nobody can hang up.
  """
  numbers = itertools.count()

  @contextlib.asynccontextmanager
  async def start(
    script,
    *,
    window=65536,
    config=None,
    opened=None,
    tokenizer=None,
    served=True,
    **options,
  ):
    tokenizer = tokenizer or tokenizers.load('tiny')
    client = scripted.ScriptedClient(script, tokenizer, window=window)
    proxy = app.Proxy(
      client,
      tokenizer,
      config=config or app.ProxyConfig(),
      record_dir=tmp_path / 'record',
      admin_token='T',
      **options,
    )
    session = proxy.open(f'train/1/task-1/pi/{next(numbers)}', **(opened or {}))
    transport = None
    if not served:
      transport = httpx.ASGITransport(proxy.app, raise_app_exceptions=False)
    async with contextlib.AsyncExitStack() as stack:
      url = 'http://127.0.0.1'
      if served:
        url = await stack.enter_async_context(serve.serve(proxy.app))
      made = Bench(proxy, client, url, session, transport)
      stack.push_async_callback(made.close)
      yield made

  return start
