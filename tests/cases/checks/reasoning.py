"""B: thinking; the splits are whole in the cases' machine fields."""

from clawjax.chat import render, tokenizers
from clawjax.proxy import app
from tests.cases import clients, levels
from tests.cases.reader import check
from tests.proxy.conftest import BASH, call, extends


@check('B03')
async def _(case, bench):
  said = levels.OPEN + case.input['text']
  for client in clients.ALL:
    for stream in (False, True):
      async with bench([{'text': said, 'finish': 'length'}]) as b:
        got = await clients.ask(b, client, [levels.USER], stream=stream)
        assert (got.text, got.reasoning) == ('', case.input['text'])
        assert got.stop in client.stops['cut']


@check('B05')
async def _(case, bench):
  config = app.ProxyConfig(thinking='empty')
  for client in clients.ALL:
    async with bench([case.input['text']], config=config) as b:
      got = await clients.ask(b, client, [levels.USER])
      assert got.reasoning == '' and got.text.strip() == case.input['text']
      assert b.shown(b.calls()[0]).endswith(case.input['prompt_tail'])


@check('B07')
async def _(case, bench):
  messages = case.steps[0]['render']
  said = messages[1]['content']
  for client in clients.ALL:
    async with bench(['ok']) as b:
      await clients.ask(b, client, messages)
      text = b.shown(b.calls()[0])
      assert f'<|im_start|>assistant\n{said}<|im_end|>\n' in text


@check('B08')
async def _(case, bench):
  del bench
  assert 'SECOND_THINK' in levels.parsed(case).flags


@check('B09')
async def _(case, bench):
  """The bridge: thinking stays, so nothing of the prefix is lost."""
  step, later = case.steps
  output = step['output'].removesuffix('<|im_end|>')
  for client in clients.ALL:
    async with bench([output, 'ok']) as b:
      got = await clients.ask(b, client, step['messages'])
      history = [*step['messages'], *got.history, *later['append']]
      await clients.ask(b, client, history)
      one, two = b.calls()
      assert extends(two, one) and two.parent == one.call_id
      assert '<think>\nI should list.\n</think>' in b.shown(two)


@check('B10')
async def _(case, bench):
  user, said, results = case.body['messages']
  thinking, use = said['content']
  made = use['input']['command']
  async with bench([call(made, thinking=thinking['thinking']), 'ok']) as b:
    body = {**case.body, 'messages': [user]}
    first = (await b.post('messages', body)).json()['content']
    result = {**results['content'][0], 'tool_use_id': first[-1]['id']}
    reminder = results['content'][1]
    answered = {'role': 'user', 'content': [result, reminder]}
    body['messages'] = [user, {'role': 'assistant', 'content': first}, answered]
    await b.post('messages', body)
    one, two = b.calls()
    assert extends(two, one)
    added = b.proxy.tokenizer.decode(
      two.prompt_ids[len(one.prompt_ids) + len(one.sample.token_ids) :]
    )
    assert added == (
      '\n<|im_start|>user\n<tool_response>\na.py\n'
      f'{reminder["text"]}\n</tool_response><|im_end|>\n'
      '<|im_start|>assistant\n'
    )
    assert 'text_in_result' in two.normalised and not one.normalised


@check('B11')
async def _(case, bench):
  first, second = case.steps
  output = first['output'].removesuffix('<|im_end|>')
  client = clients.Chat()
  async with bench([output, 'ok']) as b:
    got = await clients.ask(b, client, [levels.USER], [BASH])
    echoed, result = second['messages_tail']
    (made,) = echoed['tool_calls']
    echoed = {**echoed, 'tool_calls': [{**made, 'id': got.calls[0][0]}]}
    result = {**result, 'tool_call_id': got.calls[0][0]}
    await clients.ask(b, client, [levels.USER, echoed, result], [BASH])
    one, two = b.calls()
    assert extends(two, one) and 'I should list.' in b.shown(two)


@check('B12')
async def _(case, bench):
  async with bench(['<think>\nR3\n</think>\n\nok']) as b:
    answer = await b.post('chat/completions', case.body)
    message = answer.json()['choices'][0]['message']
    assert message['reasoning_content'] == 'R3'
    text = b.shown(b.calls()[0])
    got = await clients.ask(b, clients.Chat(), [levels.USER], stream=True)
    assert got.reasoning == 'R3'
  for thought in ('R1', 'R2'):
    assert f'<think>\n{thought}\n</think>\n\n<tool_call>' in text


@check('B13')
async def _(case, bench):
  async with bench([case.input['text'], 'next']) as b:
    client = clients.Messages()
    # The client refuses thinking without a signature before its end.
    got = await clients.ask(b, client, [levels.USER], stream=True)
    assert (got.reasoning, got.text.strip()) == ('r', 'ok')
    thinking, *rest = got.history[0]['content']
    strip = {k: v for k, v in thinking.items() if k != 'signature'}
    for changed in (
      thinking,
      strip,
      {**strip, 'signature': ''},
      {**strip, 'signature': 'EqQBforeign'},
      {**strip, 'signature': None},
    ):
      said = {'role': 'assistant', 'content': [changed, *rest]}
      await clients.ask(b, client, [levels.USER, said, levels.USER])
      assert extends(b.calls()[-1], b.calls()[0])


@check('B15')
async def _(case, bench):
  tokenizer = tokenizers.load('tiny')
  shut = render.Renderer(tokenizer).opening(False)
  for thinking, is_shut in (
    (case.body['thinking'], True),
    ({'type': 'enabled', 'budget_tokens': 1024}, False),
    ({'type': 'adaptive'}, False),
    ({'type': 'from_the_future'}, False),
  ):
    async with bench(['ok']) as b:
      await b.post('messages', {**case.body, 'thinking': thinking})
      ids = b.calls()[0].prompt_ids.tolist()
      assert (ids[-len(shut) :] == shut) is is_shut
  assert tokenizer.decode(shut).endswith('<think>\n\n</think>\n\n')
