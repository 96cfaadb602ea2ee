"""Other people's servers: their wire forms, and what is refused.

The bodies below have the shape that each server documents for these requests
(vLLM `/v1/completions` with return_token_ids, SGLang `/generate` with
return_logprob); numbers are made up.
"""

import copy
import json

import httpx
import numpy as np
import pytest

from clawjax.errors import EngineError
from clawjax.serving.openai_client import ExternalClient, Sglang, Vllm
from clawjax.types import SamplingParams

VLLM = {
  'id': 'cmpl-1',
  'object': 'text_completion',
  'created': 1,
  'model': 'm',
  'choices': [
    {
      'index': 0,
      'text': ' Paris<|im_end|>',
      'logprobs': {
        'text_offset': [0, 6],
        'token_logprobs': [-0.25, -0.5],
        'tokens': [' Paris', '<|im_end|>'],
        'top_logprobs': [{' Paris': -0.25}, {'<|im_end|>': -0.5}],
      },
      'finish_reason': 'stop',
      'stop_reason': 9,
      'token_ids': [7, 9],
      'prompt_logprobs': None,
      'prompt_token_ids': [1, 2, 3],
    }
  ],
  'usage': {
    'prompt_tokens': 3,
    'total_tokens': 5,
    'completion_tokens': 2,
    'prompt_tokens_details': {'cached_tokens': 2},
  },
}
SGLANG = {
  'text': ' Paris<|im_end|>',
  'output_ids': [7, 9],
  'meta_info': {
    'id': 'a',
    'finish_reason': {'type': 'stop', 'matched': 9},
    'prompt_tokens': 3,
    'weight_version': '12',
    'input_token_logprobs': [],
    'output_token_logprobs': [[-0.25, 7, None], [-0.5, 9, None]],
    'completion_tokens': 2,
    'cached_tokens': 2,
    'e2e_latency': 0.1,
  },
}
PROMPT = np.array([1, 2, 3], np.int32)
FORMS = {'vllm': (Vllm('m'), VLLM), 'sglang': (Sglang(), SGLANG)}


def client(form, body, *, status=200, seen=None, **options):
  def answer(request):
    if seen is not None:
      seen.append((request.url.path, json.loads(request.content)))
    return httpx.Response(status, json=body)

  return ExternalClient(
    'http://a',
    form,
    http=httpx.AsyncClient(transport=httpx.MockTransport(answer)),
    **{'window': 100} | options,
  )


@pytest.mark.parametrize('name', FORMS)
async def test_reads_ids_and_logprobs(name):
  form, body = FORMS[name]
  sample = await client(form, body).sample(PROMPT, SamplingParams())
  assert sample.token_ids.tolist() == [7, 9]
  np.testing.assert_array_equal(
    sample.logprobs, np.array([-0.25, -0.5], np.float32)
  )
  np.testing.assert_array_equal(sample.raw_logprobs, sample.logprobs)
  assert sample.finish == 'stop' and sample.reused_tokens == 2
  assert sample.policy_version == (12 if name == 'sglang' else 0)


@pytest.mark.parametrize('name', FORMS)
async def test_sends_ids_and_every_parameter(name):
  form, body = FORMS[name]
  seen = []
  params = SamplingParams(
    temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, max_tokens=6, seed=11,
    stop=('x',), stop_ids=(9,),
  )  # fmt: skip
  await client(form, body, seen=seen, logprobs='processed').sample(
    PROMPT, params
  )
  path, sent = seen[0]
  if name == 'vllm':
    assert path == '/v1/completions' and sent['prompt'] == [1, 2, 3]
    assert sent['return_token_ids'] is True and sent['logprobs'] == 0
    inner, length, seed = sent, 'max_tokens', 'seed'
  else:
    assert path == '/generate' and sent['input_ids'] == [1, 2, 3]
    assert sent['return_logprob'] is True
    inner = sent['sampling_params']
    length, seed = 'max_new_tokens', 'sampling_seed'
  assert inner[length] == 6 and inner[seed] == 11
  assert inner['temperature'] == 0.5 and inner['top_p'] == 0.9
  assert inner['top_k'] == 4 and inner['min_p'] == 0.1
  assert inner['stop'] == ['x'] and inner['stop_token_ids'] == [9]


@pytest.mark.parametrize('name', FORMS)
async def test_raw_logprobs_do_not_serve_cut_distributions(name):
  form, body = FORMS[name]
  for params in (
    SamplingParams(temperature=0.7),
    SamplingParams(top_p=0.9),
    SamplingParams(top_k=5),
    SamplingParams(min_p=0.1),
  ):
    with pytest.raises(EngineError, match='processed'):
      await client(form, body).sample(PROMPT, params)


def broken():
  for name in FORMS:
    _, good = FORMS[name]
    bodies = [{}]
    for change in range(4):
      body = copy.deepcopy(good)
      if name == 'vllm':
        choice = body['choices'][0]
        match change:
          case 0:
            del choice['token_ids']  # a server older than 0.10.2
          case 1:
            choice['logprobs'] = None
          case 2:
            choice['logprobs']['token_logprobs'] = [-0.25]
          case 3:
            choice['prompt_token_ids'] = [1, 2]
      else:
        meta = body['meta_info']
        match change:
          case 0:
            del meta['output_token_logprobs']
          case 1:
            meta['output_token_logprobs'][1][0] = None
          case 2:
            body['output_ids'] = [7, 8]
          case 3:
            meta['finish_reason'] = {'type': 'odd'}
      bodies.append(body)
    for i, body in enumerate(bodies):
      yield pytest.param(name, body, id=f'{name}-{i}')


@pytest.mark.parametrize(('name', 'body'), list(broken()))
async def test_what_training_cannot_use_is_refused_at_the_start(name, body):
  form, _ = FORMS[name]
  transport = httpx.MockTransport(lambda r: httpx.Response(200, json=body))
  with pytest.raises(EngineError, match='cannot serve training'):
    await ExternalClient.connect(
      'http://a',
      form,
      window=100,
      http=httpx.AsyncClient(transport=transport),
    )


async def test_statuses_have_names():
  form, body = FORMS['vllm']
  for status, kind in [(429, 'busy'), (400, 'bad_request'), (500, 'crashed')]:
    with pytest.raises(EngineError) as error:
      await client(form, body, status=status).sample(PROMPT, SamplingParams())
    assert error.value.kind == kind


async def test_a_full_window_is_not_a_length_limit():
  form, body = FORMS['vllm']
  body = copy.deepcopy(body)
  body['choices'][0]['finish_reason'] = 'length'
  sample = await client(form, body, window=5).sample(PROMPT, SamplingParams())
  assert sample.finish == 'context_full'
  sample = await client(form, body, window=5).sample(
    PROMPT, SamplingParams(max_tokens=2)
  )
  assert sample.finish == 'length'
