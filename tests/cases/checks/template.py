"""G: template and tokenizer; with Qwen3's own ids where its file is there."""

import json

import numpy as np

from clawjax import types
from clawjax.chat import render, tokenizers
from clawjax.proxy import app
from tests.cases import clients, levels
from tests.cases.checks.qwen3 import both, qwen3
from tests.cases.reader import check
from tests.proxy.conftest import BASH, call


def message(role, content='', **rest):
  return types.Message(role=role, content=content, **rest)


async def ids_of(b, case):
  """The case's prompt by both endpoints that know it."""
  answer = await b.post('chat/completions', case.body)
  assert answer.status_code == 200, answer.text
  ids = b.calls()[-1].prompt_ids.tolist()
  counted = await b.post('messages/count_tokens', case.body)
  assert counted.json()['input_tokens'] == len(ids)
  return ids


@check('G01')
async def _(case, bench):
  for tokenizer in both():
    async with bench(['ok'], tokenizer=tokenizer) as b:
      ids = await ids_of(b, case)
      assert ids.count(tokenizer.im_start) == 2  # User, and what follows.
      assert ids.count(tokenizer.im_end) == 1
      shown = tokenizer.decode(ids)
      assert case.body['messages'][0]['content'] in shown
  if found := qwen3():
    assert found.encode('<|im_end|>') == [27, 91, 318, 6213, 91, 29]


@check('G02')
async def _(case, bench):
  tags = ('</think>', '<tool_call>', '</tool_call>', '<tool_response>')
  for tokenizer in both():
    async with bench(['ok'], tokenizer=tokenizer) as b:
      ids = await ids_of(b, case)
      content = case.body['messages'][0]['content']
      for tag in tags:
        assert ids.count(tokenizer.id_of(tag)) == content.count(tag)
      trainer = render.Renderer(tokenizer).prompt([message('user', content)])
      assert trainer == ids
  if found := qwen3():
    wanted = [151668, 151657, 151658, 151665]
    assert [found.id_of(t) for t in tags] == wanted


@check('G03')
async def _(case, bench):
  """Thinking stays whatever a user says; results are a role of their own."""
  messages = case.steps[0]['messages']
  async with bench(['ok']) as b:
    await clients.ask(b, clients.Chat(), messages)
    text = b.shown(b.calls()[0])
    plain = [*messages[:2], {'role': 'user', 'content': 'real'}]
    await clients.ask(b, clients.Chat(), plain)
    other = b.shown(b.calls()[1])
  assert '<think>\nr\n</think>\n\nx' in text
  assert text.replace(messages[2]['content'], 'real') == other


@check('G04')
async def _(case, bench):
  """Sampled id by id, a character is shown whole or not at all."""
  if found := qwen3():
    for step in case.steps:
      assert found.decode(step['ids']) == step['want']
  sampled = app.ProxyConfig(stream_sampled=True, grace_s=0)
  for step in case.steps:
    for tokenizer in both():
      ids = tokenizer.encode(step['want']) * 4
      entry = {'token_ids': [*ids, tokenizer.im_end], 'delay_s': 0.05}
      cut = {'token_ids': ids[:-1], 'finish': 'length'}
      for config in (sampled, app.ProxyConfig()):
        async with bench([entry, cut], tokenizer=tokenizer, config=config) as b:
          for client in clients.ALL:
            b.client.prompts.clear()
            body = client.request([levels.USER], [], stream=True)
            answer = await b.post(client.path, body)
            assert '\ufffd' not in answer.text
            assert '\\ufffd' not in answer.text
            assert client.stream(answer.text).text.strip() == step['want'] * 4
          got = await clients.ask(b, clients.Chat(), [levels.USER])
          assert got.text == tokenizer.decode(ids[:-1])
          assert b.calls()[-1].sample.token_ids.tolist() == ids[:-1]


@check('G08')
async def _(case, bench):
  del bench
  tokenizer = tokenizers.load('tiny')
  for step in case.steps:
    made = types.ToolCall(id='c', name='bash', arguments=step['arguments'])
    turn = message('assistant', calls=(made,))
    renderer = render.Renderer(tokenizer, family=step['template'])
    text = tokenizer.decode(renderer.turn([turn]))
    if step['want'] == 'verbatim':
      assert f'"arguments": {step["arguments"]}}}\n</tool_call>' in text
    elif step['want'] != 'no crash':
      for name, value in json.loads(step['arguments']).items():
        assert f'<parameter={name}>\n{value}\n</parameter>' in text
    assert '<tool_call>' in text


@check('G09')
async def _(case, bench):
  for family in ('qwen3', 'qwen3_coder'):
    config = app.ProxyConfig(family=family)
    async with bench(['ok'], config=config) as b:
      answer = await b.post('chat/completions', case.body)
      assert answer.status_code == 200
      text = b.shown(b.calls()[0])
      for part in ('S', 'summary', 'x'):
        assert part in text


@check('G10')
async def _(case, bench):
  (step,) = case.steps
  for client in clients.ALL:
    async with bench([call('a') + '\n' + call('b'), 'ok']) as b:
      got = await clients.ask(b, client, [levels.USER], [BASH])
      results = client.results(got, '?')
      listed = results[0]['content'] if len(results) == 1 else results
      for entry, said in zip(listed, step['tool_results'], strict=True):
        entry['output' if 'output' in entry else 'content'] = said
      history = [levels.USER, *got.history, *results]
      await clients.ask(b, client, history, [BASH])
      assert step['want'] + '<|im_start|>assistant\n' in b.shown(b.calls()[1])


@check('G11')
async def _(case, bench):
  async with bench(['ok']) as b:
    for step in case.steps:
      answer = await b.post('chat/completions', {'messages': step['messages']})
      assert answer.status_code == 200
      empty = [{**m, 'content': m['content'] or ''} for m in step['messages']]
      await b.post('chat/completions', {'messages': empty})
      null, plain = b.calls()[-2:]
      assert np.array_equal(null.prompt_ids, plain.prompt_ids)


@check('G13')
async def _(case, bench):
  """A turn is rendered once; what follows never changes it."""
  del case, bench
  renderer = render.Renderer(tokenizers.load('tiny'))
  made = types.ToolCall(id='c', name='bash', arguments='{}')
  turns = [
    message('user', 'q'),
    message('assistant', calls=(made,)),
    message('tool', 'out', call_id='c'),
  ]
  for n in (1, 2):
    short = renderer.prompt(turns[:n])[: -len(renderer.opening())]
    assert renderer.prompt(turns)[: len(short)] == short
