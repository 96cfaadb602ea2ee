"""C: Anthropic Messages."""

import json

from tests.cases import clients, levels
from tests.cases.reader import check
from tests.proxy.conftest import BASH, call, events

CLIENT = clients.Messages()


async def post(b, case, **rest):
  """The case's body; its JSON answer."""
  path = case.input['endpoint'].removeprefix('/v1/')
  body = levels.filled({**case.body, **rest})
  answer = await b.post(path, body, headers=levels.headers(case))
  assert answer.status_code == 200, answer.text
  return answer.json()


async def shown(b, case, **rest):
  """The prompt that the case's body is rendered to."""
  await post(b, case, **rest)
  return b.shown(b.calls()[-1])


@check('C01', 'C03')
async def _(case, bench):
  async with bench([case.input['text']]) as b:
    body = CLIENT.request([levels.USER], case.input['tools'], stream=True)
    answer = await b.post(CLIENT.path, body)
  got = [e for e in events(answer.text) if e['type'] != 'ping']
  kinds = [e['type'] for e in got]
  deltas = [e for e in got if e['type'] == 'content_block_delta']
  assert kinds == [
    'message_start',
    'content_block_start',
    *['content_block_delta'] * len(deltas),
    'content_block_stop',
    'message_delta',
    'message_stop',
  ]
  assert got[1]['content_block']['type'] == 'tool_use'
  assert got[1]['content_block']['input'] == {}
  assert {e['delta']['type'] for e in deltas} == {'input_json_delta'}
  text = ''.join(e['delta']['partial_json'] for e in deltas)
  sampled = case.input['text']
  meant = json.loads(sampled[sampled.index('{') : sampled.rindex('}') + 1])
  assert json.loads(text) == meant['arguments']
  assert got[-2]['delta']['stop_reason'] == 'tool_use'
  assert got[-2]['usage']['output_tokens'] > 0


@check('C04')
async def _(case, bench):
  for step in case.steps:
    finish, stops = step['finish'], {}
    text = call('ls') if step.get('tool_calls') else 'some words'
    if finish == 'stop_string':
      text, finish = f'before{step["matched"]}after', 'stop'
      stops = {'stop_sequences': [step['stop_sequence']]}
    for stream in (False, True):
      async with bench([{'text': text, 'finish': finish}]) as b:
        body = CLIENT.request([levels.USER], [BASH], stream=stream, **stops)
        answer = await b.post(CLIENT.path, body)
        if stream:
          CLIENT.stream(answer.text)
          got = events(answer.text)[-2]['delta']
        else:
          got = answer.json()
        assert got['stop_reason'] in step['want'].split(' or ')
        assert got['stop_sequence'] == step.get('stop_sequence')


@check('C05')
async def _(case, bench):
  async with bench(['one two three four']) as b:
    answer = await b.post(CLIENT.path, case.body)
    start = events(answer.text)[0]['message']['usage']
    got = CLIENT.stream(answer.text)
    assert start['output_tokens'] >= 0
    assert start['input_tokens'] == len(b.client.prompts[0]) == got.input_tokens
    assert got.output_tokens == len(b.calls()[0].sample.token_ids)


@check('C06')
async def _(case, bench):
  async with bench(['ok']) as b:
    counted = (await post(b, case))['input_tokens']
    assert b.calls() == () and not b.client.prompts
    await b.post('messages', {**case.body, 'max_tokens': 8})
    assert counted == len(b.client.prompts[0])


@check('C07')
async def _(case, bench):
  known = {k: case.body[k] for k in ('model', 'max_tokens', 'messages')}
  async with bench(['ok']) as b:
    strange = await shown(b, case)
    await b.post('messages', known)
    assert b.shown(b.calls()[-1]) == strange
    got = b.proxy.session(b.session.id).ignored
    assert {f'field {k}' for k in case.body.keys() - known.keys()} <= got


@check('C09')
async def _(case, bench):
  async with bench(['ok']) as b:
    text = await shown(b, case)
  turns = [
    ('system', 'S'),
    *(
      (m['role'], m['content'])
      if isinstance(m['content'], str)
      else (m['role'], m['content'][0]['text'])
      for m in case.body['messages']
    ),
  ]
  wanted = [f'<|im_start|>{r}\n{t}<|im_end|>\n' for r, t in turns]
  assert text == ''.join(wanted) + '<|im_start|>assistant\n'


@check('C10')
async def _(case, bench):
  late = '<tool_call>\n{"name": "late", "arguments": {"a": 1}}\n</tool_call>'
  async with bench([late]) as b:
    got = await post(b, case, max_tokens=99)
    assert [c['name'] for c in got['content']] == ['late']
    text = b.shown(b.calls()[0])
    assert 'env' in text and 'mcp__x__y' in text
    content = case.body['messages'][1]['content']
    gone = {'type': 'tool_removal', 'tool': {'type': 'tool_reference'}}
    strange = {'type': 'never_seen', 'tool': [1]}
    removed = [{'role': 'system', 'content': [*content, gone, strange]}]
    await post(b, case, messages=[case.body['messages'][0], *removed])


@check('C12')
async def _(case, bench):
  async with bench(['ok']) as b:
    text = await shown(b, case)
  a, image, z = (text.index(x) for x in ('line A', '[image', 'line B'))
  assert a < image < z and 'iVBOR' not in text


@check('C14')
async def _(case, bench):
  mark = {'cache_control': {'type': 'ephemeral'}}
  blocks = [{'type': 'text', 'text': t} for t in 'AB']
  asked = [{'type': 'text', 'text': 'q'}]
  async with bench(['ok']) as b:
    texts = [
      await shown(b, case),
      await shown(b, case, system=blocks),
      await shown(b, case, system=[blocks[0], blocks[1] | mark]),
      await shown(b, case, messages=[{'role': 'user', 'content': 'q'}]),
      await shown(
        b, case, system=blocks, messages=[{'role': 'user', 'content': asked}]
      ),
    ]
    ids = {tuple(c.prompt_ids.tolist()) for c in b.calls()}
  assert len(set(texts)) == len(ids) == 1
  assert texts[0].startswith('<|im_start|>system\nA\n\nB<|im_end|>')


@check('C15')
async def _(case, bench):
  user, said, result = case.body['messages']
  without = {**said, 'content': said['content'][1:]}
  async with bench(['ok']) as b:
    await post(b, case)
    await post(b, case, messages=[user, without, result])
    one, two = b.calls()
    assert one.prompt_ids.tolist() == two.prompt_ids.tolist()
  for text in (call('ls'), '<think>\nr\n</think>\n\n' + call('ls'), ''):
    async with bench([text]) as b:
      for stream in (False, True):
        # The client refuses an empty block itself.
        await clients.ask(b, CLIENT, [levels.USER], [BASH], stream=stream)


@check('C16')
async def _(case, bench):
  def held(answer, status, kind):
    got = answer.json()
    assert (answer.status_code, got['type']) == (status, 'error')
    assert got['error']['type'] == kind and got['error']['message']
    assert got['request_id'] == answer.headers['request-id']

  good = {'model': 'm', 'max_tokens': 9, 'messages': [levels.USER]}
  async with bench([{'error': 'crashed'}, {'error': 'busy'}]) as b:
    held(await b.post('messages', case.body), 400, 'invalid_request_error')
    unknown = f'{b.url}/r/unknown/v1/messages'
    held(await b.http.post(unknown, json=good), 401, 'authentication_error')
    held(await b.post('messages/nothing', good), 404, 'not_found_error')
    large = b'x' * (b.proxy.config.body_bytes + 1)
    url = f'{b.base}/v1/messages'
    held(await b.http.post(url, content=large), 413, 'request_too_large')
    held(await b.post('messages', good), 500, 'api_error')
    held(await b.post('messages', good), 529, 'overloaded_error')


@check('C17')
async def _(case, bench):
  async with bench(['ok']) as b:
    for step in case.steps:
      body = {'model': step['model'], 'max_tokens': 9}
      body['messages'] = [levels.USER]
      answer = await b.post('messages', body)
      assert answer.json()['model'] == step['model']
    assert all(c.role in ('main', 'side') for c in b.calls())
    assert len({c.prompt_ids.tobytes() for c in b.calls()}) == 1


@check('C18')
async def _(case, bench):
  from clawjax.proxy import accounting

  async with bench(['word word']) as b:
    assert (await post(b, case))['stop_reason'] == 'max_tokens'
    assert [c.role for c in b.calls()] == ['side']
    await b.post('messages', CLIENT.request([levels.USER], [BASH]))
    assert [c.role for c in b.calls()] == ['side', 'main']
    account = accounting.account(b.calls())
    assert account.missing == {'role: side': 1}


@check('C19')
async def _(case, bench):
  (stop,) = case.body['stop_sequences']
  async with bench([case.input['model_output'] + ' tail']) as b:
    got = await post(b, case)
    assert got['content'][-1] == {'type': 'text', 'text': '<block>yes'}
    assert got['stop_reason'] == 'stop_sequence'
    assert got['stop_sequence'] == stop
    assert stop in got['content'][0]['thinking']
    kept = b.proxy.tokenizer.decode(b.calls()[0].sample.token_ids)
    assert kept == case.input['model_output']


@check('C20')
async def _(case, bench):
  for step in case.steps:
    async with bench([call('a') + '\n' + call('b')]) as b:
      choice = step['tool_choice']
      got = await clients.ask(
        b, CLIENT, [levels.USER], [BASH], tool_choice=choice
      )
      wanted = {'none': 0, 'any': 1}.get(choice['type'], 2)
      assert len(got.calls) == wanted
      assert '"name": "bash"' in b.shown(b.calls()[0])
      step['prompt'] = b.shown(b.calls()[0])
  assert len({s['prompt'] for s in case.steps}) == 1


@check('C23')
async def _(case, bench):
  said = case.body['messages'][-1]['content']
  async with bench([' 1}']) as b:
    got = await post(b, case)
    assert [c['text'] for c in got['content']] == [' 1}']
    text = b.shown(b.calls()[0])
  assert text.endswith('assistant\n<think>\n\n</think>\n\n' + said)
  assert text.count('<|im_start|>assistant') == 1
