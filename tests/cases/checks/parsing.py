"""A: tool calls in sampled text. Most are whole in their machine fields."""

import json

from tests.cases import clients, levels
from tests.cases.reader import check, same


def arguments(case, number=0):
  """Arguments of a call of the case, by value."""
  return json.loads(levels.parsed(case).calls[number].arguments)


async def answered(case, bench, **rest):
  """Each dialect's answer to the case's text, whole and streamed."""
  for client in clients.ALL:
    for stream in (False, True):
      async with bench([case.input['text']]) as b:
        yield await clients.ask(
          b, client, [levels.USER], case.input['tools'], stream=stream, **rest
        )


@check('A01', 'A04', 'A06', 'A35')
async def _(case, bench):
  """One decode, one encode: what the client parses is what was meant."""
  text = case.input['text']
  block = text[text.index('{') : text.rindex('}') + 1]
  meant = json.loads(block, strict=False)
  async for got in answered(case, bench):
    (made,) = got.calls
    assert made[1] == meant['name']
    # The strict reader: nothing raw may be left in the arguments.
    assert same(json.loads(made[2]), meant['arguments'])


@check('A05')
async def _(case, bench):
  assert levels.parsed(case).malformed
  assert 'INVALID_JSON' in levels.parsed(case).flags
  async for got in answered(case, bench):
    assert not got.calls and got.stop in ('end_turn', 'stop', 'completed')


@check('A14')
async def _(case, bench):
  del bench
  read = levels.parsed(case)
  assert arguments(case) == {'command': 'timeout 7'}
  assert read.malformed and 'DROPPED_PARAMETER' in read.flags


@check('A21')
async def _(case, bench):
  text = case.input['model_output']
  tools = case.body['tools']
  asked = (
    {'tool_choice': {'type': 'auto', 'disable_parallel_tool_use': True}},
    {'parallel_tool_calls': False},
    {'parallel_tool_calls': False},
  )
  for client, rest in zip(clients.ALL, asked, strict=True):
    for stream in (False, True):
      async with bench([text, 'ok']) as b:
        got = await clients.ask(
          b, client, [levels.USER], tools, stream=stream, **rest
        )
        assert [c['arguments'] for c in got.parsed] == [{'c': 'A'}]
        kept = b.proxy.tokenizer.decode(b.calls()[0].sample.token_ids)
        assert kept == text + '<|im_end|>'
        history = [levels.USER, *got.history, *client.results(got, 'x')]
        await clients.ask(b, client, history, tools, **rest)
        assert b.calls()[1].break_cause == 'assistant_edited: calls_dropped'


@check('A22')
async def _(case, bench):
  del bench  # The reasons to stop are held for all cases.
  read = levels.parsed(case)
  assert not read.calls and not read.malformed and 'CUT_CALL' in read.flags
  whole = case.input['text'] + 'x): pass"}}'
  for end in ('', '\n</tool_call>'):
    cut = {**case.input, 'text': whole + end + '\n' + case.input['text']}
    got = levels.parsed(type(case)(case.id, cut, {})).calls
    assert [json.loads(c.arguments)['path'] for c in got] == ['a.py']


@check('A24', 'A25', 'A26')
async def _(case, bench):
  del bench
  read = levels.parsed(case)
  drafted = case.number == 'A24'
  assert ('PROMOTED' in read.flags) is not drafted
  assert ('rm x' in read.reasoning) is drafted


@check('A29')
async def _(case, bench):
  for rest in ({}, {'tools': []}, {'tool_choice': 'none'}):
    for stream in (False, True):
      async with bench([case.input['model_output']]) as b:
        body = {**case.body, **rest}
        got = await clients.ask(
          b, clients.Chat(), body.pop('messages'), stream=stream
        )
        assert (got.calls, got.stop) == ([], 'stop')
        assert got.text == case.input['model_output']


@check('A31')
async def _(case, bench):
  async for got in answered(case, bench):
    assert [a for *_, a in got.calls] == ['{}'] * 3
    assert len({i for i, *_ in got.calls}) == 3


@check('A33')
async def _(case, bench):
  del bench
  assert arguments(case) == {'path': 'a', 'content': 'x'}


@check('A34')
async def _(case, bench):
  async for got in answered(case, bench):
    # The client gets the characters, in the dialects with text arguments too.
    assert got.parsed == case.expected['parsed']
    assert '你好' in got.calls[0][2] or '\\u4f60' in got.calls[0][2]
  lone = case.input['text'].replace('\\ud83e\\udd9e', '\\ud83e')
  given = {**case.input, 'text': lone}
  bad = type(case)(case.id, given, {})
  assert '\ufffd' in arguments(bad)['command']
  async for got in answered(bad, bench):
    got.calls[0][2].encode()


@check('A36')
async def _(case, bench):
  read = levels.parsed(case)
  assert 'TEXT_AFTER_CALL' in read.flags
  async with bench([case.input['text']]) as b:
    client = clients.Messages()
    body = client.request([levels.USER], case.input['tools'])
    blocks = (await b.post(client.path, body)).json()['content']
    shown = [c.get('text', c.get('name')) for c in blocks]
    assert [s.strip() for s in shown] == ['Before.', 'bash', 'After.']
  async for got in answered(case, bench):
    assert got.text.split() == ['Before.', 'After.']


@check('A37')
async def _(case, bench):
  async with bench([case.input['text']]) as b:
    got = await clients.ask(
      b, clients.Chat(), [levels.USER], case.input['tools']
    )
    assert [c['name'] for c in got.parsed] == ['bash'] and not got.text
    end = b.proxy.tokenizer.im_end
    ids = b.calls()[0].sample.token_ids.tolist()
    assert ids[-1] == end and ids.count(end) == 1
    assert set(b.client.params[0].stop_ids) == set(b.proxy.tokenizer.eos_ids)


@check('A38')
async def _(case, bench):
  wanted = {'n': 9007199254740993, 'm': 10, 'x': 2}
  async for got in answered(case, bench):
    made = json.loads(got.calls[0][2])
    assert made == wanted and all(type(made[k]) is int for k in 'nm')


@check('A39')
async def _(case, bench):
  del bench
  read = levels.parsed(case)
  assert read.calls[0].name == 'bash'
  assert arguments(case) == {'command': 'ls'}
  assert 'STRIPPED_KEY' in read.flags
