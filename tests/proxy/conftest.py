"""A live proxy with a scripted model, over real HTTP."""

import contextlib
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
    for line in block.splitlines():
      if line.startswith('data: ') and line != 'data: [DONE]':
        found.append(json.loads(line[6:]))
  return found


def extends(later, earlier):
  """Whether a prompt is exactly an earlier prompt, its answer, and more."""
  before = [*earlier.prompt_ids, *earlier.sample.token_ids]
  return np.array_equal(later.prompt_ids[: len(before)], before)


class Bench:
  """A proxy that is being served, with one open session."""

  def __init__(self, proxy, client, url, session):
    self.proxy, self.client, self.url = proxy, client, url
    self.session = session
    self.base = url + session.path
    self.http = httpx.AsyncClient(timeout=30)
    self.clients = []

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
  """bench(script, **options) -> async context with a `Bench`."""

  @contextlib.asynccontextmanager
  async def start(script, *, window=65536, config=None, opened=None, **options):
    tokenizer = tokenizers.load('tiny')
    client = scripted.ScriptedClient(script, tokenizer, window=window)
    proxy = app.Proxy(
      client,
      tokenizer,
      config=config or app.ProxyConfig(),
      record_dir=tmp_path / 'record',
      admin_token='T',
      **options,
    )
    session = proxy.open('train/1/task-1/pi/0', **(opened or {}))
    async with serve.serve(proxy.app) as url:
      made = Bench(proxy, client, url, session)
      try:
        yield made
      finally:
        await made.http.aclose()
        for c in made.clients:
          await c.close()

  return start
