"""E: OpenAI Responses."""

import json

from tests.cases import clients, levels
from tests.cases.reader import check, heard
from tests.proxy.conftest import BASH, call, events, extends

CLIENT = clients.Responses()


async def prompt(b, case, **rest):
  """The prompt that the case's body is rendered to."""
  answer = await b.post('responses', {**case.body, **rest})
  assert answer.status_code == 200, answer.text
  return b.shown(b.calls()[-1])


@check('E01')
async def _(case, bench):
  async with bench([case.input['text']]) as b:
    body = CLIENT.request([levels.USER], case.input['tools'], stream=True)
    text = (await b.post('responses', body)).text
  got = CLIENT.stream(text)
  assert got.parsed == [{'name': 'exec_command', 'arguments': {'cmd': 'ls'}}]
  assert (got.reasoning, got.text.strip()) == ('r', 'Hi.')
  named = [line[7:] for line in text.splitlines() if line.startswith('event: ')]
  found = events(text)
  assert named == [e['type'] for e in found]
  kinds = [e['type'].removeprefix('response.') for e in found]
  message = [
    'output_item.added',
    'content_part.added',
    'output_text.delta',
    'output_text.done',
    'content_part.done',
    'output_item.done',
  ]
  made = [
    'output_item.added',
    'function_call_arguments.delta',
    'function_call_arguments.done',
    'output_item.done',
  ]
  assert kinds[-11:] == [*message, *made, 'completed']
  assert all(e['response']['id'] for e in found if 'response' in e)


@check('E02')
async def _(case, bench):
  async with bench(['<think>\nr\n</think>\n\nword word']) as b:
    text = (await b.post('responses', case.body)).text
    CLIENT.stream(text)
    usage = events(text)[-1]['response']['usage']
    (c,) = b.calls()
    counts = len(c.prompt_ids), len(c.sample.token_ids)
  assert (usage['input_tokens'], usage['output_tokens']) == counts
  assert 0 < usage['output_tokens_details']['reasoning_tokens'] < counts[1]
  assert usage['input_tokens_details']['cached_tokens'] >= 0


@check('E03')
async def _(case, bench):
  entry = {'text': case.input['text'], 'finish': 'length'}
  async with bench([entry, entry, call('ls'), 'ok']) as b:
    body = CLIENT.request([levels.USER], [BASH], stream=True)
    for _ in range(2):  # Codex sends the very same body again.
      got = events((await b.post('responses', body)).text)
      assert got[-1]['type'] == 'response.incomplete'
      details = got[-1]['response']['incomplete_details']
      assert details == {'reason': 'max_output_tokens'}
    third = CLIENT.stream((await b.post('responses', body)).text)
    history = [levels.USER, *third.history, *CLIENT.results(third, 'x')]
    await clients.ask(b, CLIENT, history, [BASH])
    from clawjax.proxy import accounting

    dead = accounting.dead_leaves(b.calls())
    assert dead == {'c0': 'retry', 'c1': 'retry'}
    assert b.calls()[3].parent == 'c2'
  async with bench(['word ' * 100], window=60) as b:
    got = events((await b.post('responses', body | {'tools': []})).text)
    assert got[-1]['type'] == 'response.failed'
    code = got[-1]['response']['error']['code']
    assert code == 'context_length_exceeded'


@check('E04')
async def _(case, bench):
  async with bench(['ok']) as b:
    answer = await b.post('responses', levels.filled(case.body))
    assert answer.status_code == 200 and not b.client.prompts
  got = events(answer.text)
  assert got[0]['type'] == 'response.created'
  assert got[-1]['type'] == 'response.failed'
  response = got[-1]['response']
  assert response['status'] == 'failed'
  assert response['error'] == {
    'code': 'context_length_exceeded',
    'message': 'Your input exceeds the context window of this model. '
    'Please adjust your input and try again.',
  }


@check('E05')
async def _(case, bench):
  async with bench(['ok']) as b:
    with heard('clawjax.proxy') as told:
      text = await prompt(b, case)
  assert any('something_new' in line for line in told)
  assert '<think>\nr\n</think>\n\nok' in text
  at = [
    text.index(part)
    for part in (
      'system\nI\n\nD<|im_end|>',
      'user\nq<|im_end|>',
      'ok\n<tool_call>\n{"name": "exec_command", "arguments": {"cmd": "ls"}}',
      '<tool_response>\na.py\n',
      '{"input": "*** Begin Patch\\n*** End Patch"}',
      '<tool_response>\nDone\n',
      '"ls"]}',
      '<tool_response>\nx\n',
    )
  ]
  assert at == sorted(at)


@check('E06')
async def _(case, bench):
  """`CLIENT` puts items back without their ids, as Codex does."""
  del case
  script = ['<think>\nhm\n</think>\n\nHi.\n' + call('ls'), 'ok']
  for drop in ((), ('encrypted_content',), ('encrypted_content', 'summary')):
    async with bench(script) as b:
      include = {'include': ['reasoning.encrypted_content'], 'store': False}
      got = await clients.ask(b, CLIENT, [levels.USER], [BASH], **include)
      kept = [
        {k: v for k, v in i.items() if k not in drop} for i in got.history
      ]
      assert all('id' not in item for item in kept)
      history = [levels.USER, *kept, *CLIENT.results(got, 'x')]
      await clients.ask(b, CLIENT, history, [BASH], **include)
      one, two = b.calls()
      assert extends(two, one) and two.parent == one.call_id


@check('E07')
async def _(case, bench):
  include = {'include': case.body['include'], 'store': False}
  async with bench(['<think>\nexact \n\n thought\n</think>\n\nok']) as b:
    got = await clients.ask(b, CLIENT, [levels.USER], **include)
    blob = got.history[0]['encrypted_content']
    assert 'thought' not in blob
    # In a session that never saw it, the blob alone tells the thinking.
    own = {'type': 'reasoning', 'summary': [], 'encrypted_content': blob}
    said = {'role': 'assistant', 'content': 'before'}
    asked = {'role': 'user', 'content': 'after'}
    items = [*case.body['input'], {'type': 'message', **said}, asked]
    text = await prompt(b, case, input=items)
    assert '<think>\nforeign\n</think>\n\nbefore' in text
  async with bench(['ok']) as b:
    items[1] = own
    text = await prompt(b, case, input=items)
    assert '<think>\nexact \n\n thought\n</think>\n\n<tool_call>' in text


@check('E08')
async def _(case, bench):
  script = [case.input['model_output'], 'ok']
  sampled = case.input['model_output']
  meant = json.loads(sampled[sampled.index('{') : sampled.rindex('}') + 1])
  async with bench(script) as b:
    got = events((await b.post('responses', case.body)).text)
    assert '"properties": {"input": {"type": "string"' in b.shown(b.calls()[0])
    (item,) = got[-1]['response']['output']
    assert item['type'] == 'custom_tool_call' and item['name'] == 'apply_patch'
    assert item['input'] == meant['arguments']['input']
    deltas = [e['delta'] for e in got if e['type'].endswith('_input.delta')]
    (done,) = [e for e in got if e['type'].endswith('_input.done')]
    assert ''.join(deltas) == done['input'] == item['input']
    assert done['type'] == 'response.custom_tool_call_input.done'
    replay = {k: v for k, v in item.items() if k not in ('id', 'status')}
    result = {'type': 'custom_tool_call_output', 'output': 'Done'}
    result['call_id'] = item['call_id']
    asked = {'role': 'user', 'content': case.body['input']}
    body = {**case.body, 'input': [asked, replay, result]}
    await b.post('responses', body)
    assert extends(b.calls()[1], b.calls()[0])


@check('E09')
async def _(case, bench):
  async with bench([case.input['model_output'], 'ok']) as b:
    answer = (await b.post('responses', case.body)).json()
    (item,) = answer['output']
    assert (item['type'], item['name']) == ('function_call', 'search')
    assert item['namespace'] == 'mcp__docs'
    assert '"name": "mcp__docs__search"' in b.shown(b.calls()[0])
    replay = {k: v for k, v in item.items() if k not in ('id', 'status')}
    result = {'type': 'function_call_output', 'output': 'r'}
    result['call_id'] = item['call_id']
    asked = {'role': 'user', 'content': case.body['input']}
    await b.post('responses', {**case.body, 'input': [asked, replay, result]})
    assert extends(b.calls()[1], b.calls()[0])


@check('E10')
async def _(case, bench):
  async with bench(['ok']) as b:
    text = await prompt(b, case)
  assert text.count('"type": "function"') == 1
  assert '"name": "exec_command"' in text and 'image_generation' not in text


@check('E13')
async def _(case, bench):
  async with bench(['first', 'second']) as b:
    answer = await b.post('responses', case.body)
    assert answer.status_code in (400, 404) and not b.client.prompts
    assert answer.json()['error']['param'] == 'previous_response_id'
    start = await b.post(
      'responses', {**case.body, 'previous_response_id': None}
    )
    known = start.json()['id']
    text = await prompt(b, case, previous_response_id=known)
    assert text.count('go<|im_end|>') == 2 and 'first<|im_end|>' in text
    assert extends(b.calls()[1], b.calls()[0])
    reference = [{'type': 'item_reference', 'id': 'rs_9'}]
    gone = await b.post('responses', {'model': 'm', 'input': reference})
    assert gone.status_code in (400, 404)


@check('E16')
async def _(case, bench):
  plain = {'model': 'm', 'input': case.body['input']}
  async with bench(['ok']) as b:
    text = await prompt(b, case)
    await b.post('responses', plain)
    assert b.shown(b.calls()[1]) == text
    told = b.proxy.session(b.session.id).ignored
    assert {'field text', 'field truncation', 'field client_metadata'} <= told
