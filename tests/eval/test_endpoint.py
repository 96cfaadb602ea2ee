"""Models behind a proxy: a script, and weights in a folder."""

import httpx
import pytest

from clawjax.eval import endpoint
from clawjax.proxy import serve


@pytest.mark.parametrize(
  'spec, kind, name',
  [
    ('scripted:/a/b.jsonl', 'scripted', 'scripted'),
    ('openai:https://api.example/v1', 'openai', 'big'),
    ('anthropic:https://api.example', 'anthropic', 'big'),
    ('builtin:tiny', 'builtin', 'builtin:tiny'),
    ('runs/step-200', 'folder', 'step-200'),
  ],
)
def test_names(spec, kind, name):
  config = endpoint.EndpointConfig(upstream_model='big')
  assert endpoint.kind_of(spec) == kind
  assert endpoint.name_of(spec, config) == name


async def _ask(spec, config):
  """One chat request through the served proxy; (endpoint, reply, calls)."""
  async with endpoint.serve(spec, config) as model:
    session = model.proxy.open('r', sampling={'max_tokens': 5})
    async with (
      serve.serve(model.proxy.app) as url,
      httpx.AsyncClient(timeout=300) as client,
    ):
      reply = await client.post(
        f'{url}{session.path}/v1/chat/completions',
        json={'messages': [{'role': 'user', 'content': 'hi'}]},
      )
    await model.proxy.settle('r', interval_s=0.01, checks=2)
    return model, reply, model.proxy.calls('r')


async def test_a_script(tmp_path):
  path = tmp_path / 's.jsonl'
  path.write_text('{"text": "Hello."}\n')
  model, reply, calls = await _ask(
    f'scripted:{path}', endpoint.EndpointConfig()
  )
  assert reply.json()['choices'][0]['message']['content'] == 'Hello.'
  assert model.tokenizer.name == 'tiny' and len(calls) == 1
  assert model.identity['window'] == 32768


@pytest.mark.slow
async def test_weights_in_a_folder(tmp_path):
  """A random model, saved and served; the call has its log-probs."""
  import jax

  from clawjax.models import checkpoint, qwen3

  config = qwen3.Config.tiny(
    vocab=4096,
    layers=1,
    width=32,
    heads=2,
    head_size=16,
    mlp_width=64,
    experts=0,
  )
  params = qwen3.init(config, jax.random.key(0))
  checkpoint.save_hf(params, config, tmp_path / 'model', dtype='float32')
  model, reply, (call,) = await _ask(
    str(tmp_path / 'model'),
    endpoint.EndpointConfig(window=256, slots=2, tokenizer='tiny'),
  )
  assert reply.status_code == 200 and model.name == 'model'
  assert 1 <= len(call.sample.token_ids) <= 5
  assert (call.sample.logprobs < 0).all()
