"""D: OpenAI Chat Completions."""

import json

import pytest

from tests.cases import clients, levels
from tests.cases.reader import check
from tests.proxy.conftest import events

CLIENT = clients.Chat()


async def prompt(b, body):
  """The ids that a body is rendered to."""
  answer = await b.post(CLIENT.path, body)
  assert answer.status_code == 200, answer.text
  return b.calls()[-1].prompt_ids.tolist()


@check('D01')
async def _(case, bench):
  async with bench([case.input['text']]) as b:
    got = await clients.ask(
      b, CLIENT, [levels.USER], case.input['tools'], stream=True
    )
    body = CLIENT.request([levels.USER], case.input['tools'], stream=True)
    chunks = events((await b.post(CLIENT.path, body)).text)
  assert [c['arguments']['command'] for c in got.parsed] == ['a', 'b']
  deltas = [
    d
    for c in chunks
    for choice in c['choices']
    for d in choice['delta'].get('tool_calls', ())
  ]
  firsts = [d for d in deltas if 'id' in d]
  assert [d['index'] for d in firsts] == [0, 1]
  assert len({d['id'] for d in firsts}) == 2 and all(d['id'] for d in firsts)
  for d in firsts:
    assert d['function'] == {'name': 'bash', 'arguments': ''}
    assert d['type'] == 'function'


@check('D03')
async def _(case, bench):
  for script in (case.input['text'], '', 'x'):
    async with bench([script]) as b:
      got = await clients.ask(b, CLIENT, [levels.USER], stream=True)
      assert (got.stop, got.calls) == ('stop', [])
      bare = {'messages': [levels.USER], 'stream': True}
      text = (await b.post(CLIENT.path, bare)).text
      assert text.endswith('data: [DONE]\n\n')
      assert events(text)[-1]['choices'][0]['finish_reason'] == 'stop'
  async with bench([{'error': 'crashed', 'delay_s': 0.2}]) as b:
    answer = await b.post(CLIENT.path, bare)
    assert events(answer.text)[-1]['error']['message']
    assert '[DONE]' not in answer.text


@check('D04')
async def _(case, bench):
  async with bench(['one two three']) as b:
    *chunks, last = events((await b.post(CLIENT.path, case.body)).text)
    (c,) = b.calls()
    counts = len(c.prompt_ids), len(c.sample.token_ids)
    assert last['choices'] == []
    assert (
      last['usage'].items()
      >= {
        'prompt_tokens': counts[0],
        'completion_tokens': counts[1],
        'total_tokens': sum(counts),
      }.items()
    )
    assert all(c['usage'] is None for c in chunks)
    for options in ({}, {'stream_options': {'include_usage': False}}):
      body = {k: v for k, v in case.body.items() if k != 'stream_options'}
      got = events((await b.post(CLIENT.path, body | options)).text)
      assert all('usage' not in c and c['choices'] for c in got)


@check('D06')
async def _(case, bench):
  joined = [
    {**m, 'content': '\n'.join(p['text'] for p in m['content'])}
    for m in case.body['messages']
  ]
  async with bench(['ok']) as b:
    listed = await prompt(b, case.body)
    text = b.shown(b.calls()[0])
    one = [
      {**m, 'content': [{'type': 'text', 'text': m['content']}]} for m in joined
    ]
    plain = await prompt(b, {**case.body, 'messages': joined})
    assert await prompt(b, {**case.body, 'messages': one}) == plain
  # Whatever joins two parts, nothing of them is lost.
  user = text[text.index('<|im_start|>user\n') :].split('<|im_end|>')[0]
  assert user.removeprefix('<|im_start|>user\n').split() in (['a', 'b'], ['ab'])
  assert '<tool_response>\nout\n</tool_response>' in text
  if user.endswith('a\nb'):
    assert listed == plain


@check('D07')
async def _(case, bench):
  async with bench(['ok']) as b:
    got = await prompt(b, case.body)
    rules, hi = case.body['messages']
    as_system = [{**rules, 'role': 'system'}, hi]
    assert got == await prompt(b, {**case.body, 'messages': as_system})
    assert 'system\nRULES<|im_end|>' in b.shown(b.calls()[0])


@check('D08')
async def _(case, bench):
  a, z, hi = case.body['messages']
  async with bench(['ok']) as b:
    await prompt(b, case.body)
    text = b.shown(b.calls()[0])
    assert text.startswith('<|im_start|>system\nA\n\nB<|im_end|>')
    await prompt(b, {**case.body, 'messages': [a, hi, z]})
    later = b.shown(b.calls()[1])
  assert later == (
    '<|im_start|>system\nA<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n'
    '<|im_start|>system\nB<|im_end|>\n<|im_start|>assistant\n'
  )


@check('D09')
async def _(case, bench):
  wants = (5, 5, 7, None)
  for step, want in zip(case.steps, wants, strict=True):
    async with bench(['word ' * 50], window=400) as b:
      got = await clients.ask(b, CLIENT, [levels.USER], **step['body'])
      room = 400 - len(b.client.prompts[0])
      assert b.client.params[0].max_tokens == (want or room)
      assert got.output_tokens == want or want is None
      assert got.stop == ('length' if want else 'stop')


@check('D10')
async def _(case, bench):
  async with bench(['ok']) as b:
    got = await prompt(b, case.body)
    bare = {'model': 'm', 'messages': case.body['messages']}
    assert got == await prompt(b, bare)
    assert got == await prompt(b, {**bare, 'tools': None})


@check('D11')
async def _(case, bench):
  async with bench(['ok']) as b:
    assert await prompt(b, case.body) == await prompt(b, case.body)
    assert 'unpaired_tools' in b.calls()[0].normalised
    text = b.shown(b.calls()[0])
  assert text.index('<tool_response>\nout') < text.index('"name": "bash", "arg')
  assert text.index('"name": "bash", "arg') < text.index('continue')


@check('D14')
async def _(case, bench):
  for stream in (False, True):
    async with bench([case.input['model_output']]) as b:
      body = {**case.body, 'stream': stream}
      history = body.pop('messages')
      got = await clients.ask(b, CLIENT, history, **body)
      assert got.text == '{"title": "a"}'
      assert got.reasoning == 'x'


@check('D15')
async def _(case, bench):
  async with bench([{'text': 'two words', 'logprob': -0.25}]) as b:
    refused = await b.post(CLIENT.path, case.body)
    assert (refused.status_code, b.calls()) == (400, ())
    assert refused.json()['error']['param'] == 'n'
    for n in (1, None, 'absent'):
      body = {k: v for k, v in {**case.body, 'n': n}.items() if v != 'absent'}
      answer = (await b.post(CLIENT.path, body)).json()
      told = answer['choices'][0]['logprobs']['content']
      sample = b.calls()[-1].sample
      assert [t['logprob'] for t in told] == pytest.approx(sample.logprobs)
      spelled = b''.join(bytes(t['bytes']) for t in told).decode()
      assert spelled.startswith('two words')


@check('D17')
async def _(case, bench):
  def schemas(text):
    return [x for x in text.splitlines() if x.startswith('{"type"')]

  async with bench(['ok']) as b:
    shown = []
    for step in case.steps:
      await prompt(b, {'messages': [levels.USER], 'tools': step['tools']})
      shown += schemas(b.shown(b.calls()[-1]))
  order = ('type', 'function'), ('name', 'description', 'parameters')
  for step, text in zip(case.steps, shown, strict=True):
    (tool,) = step['tools']
    function = {k: tool['function'][k] for k in order[1]}
    wanted = {'type': 'function', 'function': function}
    assert text == json.dumps(wanted, ensure_ascii=False)
    # The client's order within the schema stays.
    assert list(json.loads(text)['function']['parameters']) == list(
      function['parameters']
    )
