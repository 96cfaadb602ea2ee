"""F: the same tokens between turns; retries, branches, compaction."""

import asyncio

import numpy as np

from clawjax import trie
from clawjax.chat import render, tokenizers
from clawjax.proxy import accounting, app
from tests.cases import clients
from tests.cases.checks.qwen3 import qwen3
from tests.cases.reader import check
from tests.proxy.conftest import BASH, call, extends

MESSAGES, CHAT, RESPONSES = clients.ALL
USER = {'role': 'user', 'content': 'Count the lines of the files here.'}


def user(text):
  return {'role': 'user', 'content': text}


def system(text):
  return {'role': 'system', 'content': text}


async def turn(b, client, history, output='out', tools=(BASH,), **rest):
  """One call; history with its answer and what comes after it."""
  got = await clients.ask(b, client, history, tools, **rest)
  return [*history, *got.history, *client.results(got, output)]


def delivered(b):
  """What filter and trie make of the calls: (trained tokens, reasons)."""
  tree, report = trie.filter(trie.build(b.calls()))
  sampled = sum(len(c.sample.token_ids) for c in b.calls() if c.sample)
  counts = dict(report.tokens)
  assert counts.pop('sampled') == sampled == sum(counts.values())
  account = accounting.account(b.calls())
  assert account.inexact == 0
  return counts.pop('trained', 0), {k for k, n in counts.items() if n}


@check('F01')
async def _(case, bench):
  quoting = [user('x-anthropic-billing-header: mine;'), USER]
  async with bench(['ok']) as b:
    for step in case.steps:
      body = MESSAGES.request(quoting, [], system=step['system'])
      assert (await b.post('messages', body)).status_code == 200
    assert len({c.prompt_ids.tobytes() for c in b.calls()}) == 1
    assert all('billing' in c.normalised for c in b.calls())
    text = b.shown(b.calls()[0])
    assert text.startswith('<|im_start|>system\nYou are Claude Code.<|im_end|>')
    assert 'x-anthropic-billing-header: mine;' in text


@check('F03')
async def _(case, bench):
  tokenizer = tokenizers.load('tiny')
  spelled = [tokenizer.encode(c)[0] for c in 'hello there']
  runs = [(tokenizer, spelled, 'hello there')]
  if found := qwen3():
    runs += [(found, s['sampled_ids'], s['text']) for s in case.steps]
  for tokenizer, ids, text in runs:
    assert tokenizer.decode(ids) == text and tokenizer.encode(text) != ids
    around = [*tokenizer.encode('a'), *ids, *tokenizer.encode('z')]
    entry = {'token_ids': [*around, tokenizer.im_end]}
    for client in clients.ALL:
      async with bench([entry, 'ok'], tokenizer=tokenizer) as b:
        history = await turn(b, client, [USER], 'more')
        await turn(b, client, history)
        one, two = b.calls()
        assert one.sample.token_ids.tolist() == entry['token_ids']
        assert extends(two, one)


@check('F04', 'F21')
async def _(case, bench):
  first = case.steps[0]['output'].removesuffix('<|im_end|>')
  name, values = 'bash', {'command': 'ls', 'timeout': 5}
  if case.number == 'F21':
    name, values = 'f', {'x': False}
  kinds = {k: {'type': _kind(v)} for k, v in values.items()}
  schema = {'type': 'object', 'properties': kinds}
  tool = {'type': 'function', 'function': {'name': name, 'parameters': schema}}
  family = 'qwen3_coder' if case.number == 'F21' else 'qwen3'
  spellings = [case.steps[1].get('client_replays_arguments', '{"x": false}')]
  spellings += [spellings[0].replace(' ', ''), ' ' + spellings[0] + '\n']
  config = app.ProxyConfig(family=family)
  for spelling in spellings:
    async with bench([first, 'ok'], config=config) as b:
      got = await clients.ask(b, CHAT, [USER], [tool])
      assert got.parsed == [{'name': name, 'arguments': values}]
      got.history[0]['tool_calls'][0]['function']['arguments'] = spelling
      history = [USER, *got.history, *CHAT.results(got, 'x')]
      await clients.ask(b, CHAT, history, [tool])
      assert extends(b.calls()[1], b.calls()[0])
  if family == 'qwen3_coder':  # A call that was never sampled here.
    made = {'id': 'c', 'type': 'function'}
    made['function'] = {'name': name, 'arguments': '{"x": false}'}
    said = {'role': 'assistant', 'content': None, 'tool_calls': [made]}
    async with bench(['ok'], config=config) as b:
      await clients.ask(b, CHAT, [USER, said, USER], [tool])
      assert '<parameter=x>\nfalse\n' in b.shown(b.calls()[0])


def _kind(value):
  return {bool: 'boolean', int: 'integer'}.get(type(value), 'string')


@check('F06')
async def _(case, bench):
  output = case.steps[0]['output'].removesuffix('<|im_end|>')
  text = case.steps[1]['client_replays_text']
  for shown in (text, text + '\n', text + '\n\n', '\n' + text):
    async with bench([output, 'ok']) as b:
      got = await clients.ask(b, CHAT, [USER], [BASH])
      assert got.text.strip() == text
      got.history[0]['content'] = shown
      history = [USER, *got.history, *CHAT.results(got, 'x')]
      await clients.ask(b, CHAT, history, [BASH])
      assert extends(b.calls()[1], b.calls()[0])


@check('F08')
async def _(case, bench):
  prev, append = case.steps[0]['prev'], case.steps[1]['append']
  output = call('ls')
  assert prev.endswith('</tool_call><|im_end|>')
  for client in clients.ALL:
    async with bench([output, 'ok']) as b:
      await turn(b, client, await turn(b, client, [USER], 'a'))
      one, two = b.calls()
      tokenizer = b.proxy.tokenizer
      start = len(one.prompt_ids) + len(one.sample.token_ids)
      added = two.prompt_ids[start:].tolist()
      assert tokenizer.decode(added) == append
      newline = tokenizer.encode('\n')
      assert added == newline + tokenizer.encode_markup(append[1:])
      # The same as rendering the whole conversation at once.
      whole = render.Renderer(tokenizer).tokenizer.encode_markup(b.shown(two))
      assert whole == two.prompt_ids.tolist()


@check('F09')
async def _(case, bench):
  assert case.steps[0]['finish'] == 'length'
  async with bench([{'text': 'partial answer', 'finish': 'length'}, 'ok']) as b:
    await turn(b, CHAT, await turn(b, CHAT, [USER], 'go on'))
    one, two = b.calls()
    end = b.proxy.tokenizer.im_end
    assert extends(two, one) and end not in one.sample.token_ids
    at = len(one.prompt_ids) + len(one.sample.token_ids)
    assert two.prompt_ids[at] == end
    batch = trie.pack([trie.build(b.calls())], row_tokens=512)
    trained = batch.tokens[0, batch.term_slot[0][batch.mask[0]]].tolist()
    sampled = [t for c in b.calls() for t in c.sample.token_ids.tolist()]
    assert sorted(trained) == sorted(sampled)  # The close is not among them.


@check('F10')
async def _(case, bench):
  """Qwen3's own ids stand for the two tokens that end a turn."""
  for tokenizer in filter(None, (tokenizers.load('tiny'), qwen3())):
    names = {151645: tokenizer.im_end, 151643: tokenizer.pad_id}
    (word,) = tokenizer.encode('Hello')[:1]
    for step in case.steps:
      ids = [word, names[step['sampled'][1]]]
      for client in clients.ALL:
        async with bench([{'token_ids': ids}], tokenizer=tokenizer) as b:
          got = await clients.ask(b, client, [USER])
          (c,) = b.calls()
          assert c.sample.token_ids.tolist() == ids
          assert len(c.sample.logprobs) == len(ids)
          assert c.sample.finish == 'stop' and got.stop == client.stops['stop']
          assert got.text.strip() == tokenizer.decode([word])
          batch = trie.pack([trie.build(b.calls())], row_tokens=512)
          assert int(batch.mask.sum()) == 2  # The end is trained too.


@check('F11')
async def _(case, bench):
  (step,) = case.steps
  async with bench([step['sampled_text'] + ' tail']) as b:
    got = await clients.ask(b, CHAT, [USER], stop=step['stop'])
    cut = step['sampled_text'].removesuffix(step['stop'][0])
    assert (got.text, got.stop) == (cut, 'stop')
    (c,) = b.calls()
    assert b.proxy.tokenizer.decode(c.sample.token_ids) == step['sampled_text']
    assert len(c.sample.logprobs) == len(c.sample.token_ids)


@check('F12')
async def _(case, bench):
  async with bench([call('ls'), 'ok']) as b:
    first, second = (system(s['system']) for s in case.steps)
    history = await turn(b, CHAT, [first, USER])
    await turn(b, CHAT, [second, *history[1:]])
    assert [c.parent for c in b.calls()] == ['', '']
    assert b.calls()[1].break_cause == 'system_changed'
    assert case.steps[1]['system'] in b.shown(b.calls()[1])
    sampled = sum(len(c.sample.token_ids) for c in b.calls())
    assert delivered(b) == (sampled, set())
  clock = ['Date: 2026-01-01 10:01', 'Date: 2026-01-01 10:02']
  async with bench([call('ls'), 'ok'], opened={'rules': ('date_line',)}) as b:
    history = await turn(b, CHAT, [system(clock[0]), USER])
    await turn(b, CHAT, [system(clock[1]), *history[1:]])
    assert extends(b.calls()[1], b.calls()[0])
    assert 'date_line' in b.calls()[1].normalised  # On the record.


@check('F13')
async def _(case, bench):
  histories = {
    'A': [system('P'), USER],
    'B': [system('S'), user('Another thing.')],
  }
  script = [call(s.split()[0]) for s in case.steps]
  async with bench(script) as b:
    for step in case.steps:
      who = step[0]
      histories[who] = await turn(b, CHAT, histories[who])
    named = {
      s.split()[0]: c for s, c in zip(case.steps, b.calls(), strict=True)
    }
  wanted = {'A1': '', 'B1': '', 'A2': 'A1', 'B2': 'B1', 'A3': 'A2'}
  for name, parent in wanted.items():
    is_root = not parent
    assert named[name].parent == ('' if is_root else named[parent].call_id)
    assert is_root or extends(named[name], named[parent])


@check('F14')
async def _(case, bench):
  assert case.steps[0]['aborted'] and case.steps[1]['answered']
  # Hung up while it was generated: cancelled, nothing of it is kept.
  script = [{'text': 'slow', 'delay_s': 30}, call('b'), 'ok']
  async with bench(script, served=True) as b:
    left = asyncio.create_task(clients.ask(b, CHAT, [USER], [BASH]))
    await asyncio.sleep(0.15)
    left.cancel()
    assert await b.proxy.settle(b.session.id, interval_s=0.05)
    await turn(b, CHAT, await turn(b, CHAT, [USER]))
    c0, c1, c2 = b.calls()
    assert (c0.status, c0.sample, b.client.cancelled) == ('aborted', None, 1)
    assert c1.retry_of == 'c0' and c2.parent == 'c1'
    sampled = len(c1.sample.token_ids) + len(c2.sample.token_ids)
    assert delivered(b) == (sampled, set())
  # Answered, but the client had gone: the answer is a dead leaf.
  async with bench([call('a'), call('b'), 'ok']) as b:
    await turn(b, CHAT, [USER])
    await turn(b, CHAT, await turn(b, CHAT, [USER]))
    c0, c1, c2 = b.calls()
    assert c1.retry_of == 'c0' and c2.parent == 'c1'
    sampled = len(c1.sample.token_ids) + len(c2.sample.token_ids)
    assert delivered(b) == (sampled, {'retry'})


@check('F16')
async def _(case, bench):
  assert len(case.steps) == 3
  summary = 'There are two files here and one of them has been counted.'
  script = [call('a'), call('b'), summary, call('c'), 'The end.']
  opened = {'metadata': {'instruction': USER['content']}}
  async with bench(script, opened=opened) as b:
    history = await turn(b, CHAT, await turn(b, CHAT, [system('P'), USER]))
    ask = 'Please create a detailed summary of the conversation so far.'
    await turn(b, CHAT, [*history, user(ask)], tools=())
    new = [system('P'), user(f'{USER["content"]}\nSummary: {summary}')]
    await turn(b, CHAT, await turn(b, CHAT, new))
    calls = b.calls()
    assert [c.role for c in calls] == ['main', 'main', *['compaction'] * 3]
    assert calls[3].parent == '' and calls[4].parent == 'c3'
    assert 'c2' in calls[3].role_reason  # The link to the summary's call.
  for tools, parent in (((BASH,), 'c0'), ((), '')):
    async with bench([call('a'), summary], opened=opened) as b:
      history = await turn(b, CHAT, [system('P'), USER])
      await turn(b, CHAT, [*history, user(ask)], tools=tools)
      # Without the tools the head is another; else it is a leaf of the chain.
      assert b.calls()[1].parent == parent
      assert extends(b.calls()[1], b.calls()[0]) is bool(parent)


@check('F17')
async def _(case, bench):
  before, after = (s['tool_result'] for s in case.steps)
  for client in clients.ALL:
    async with bench([call('a'), call('b'), call('c'), 'ok']) as b:
      history = await turn(b, client, [USER], before)
      history = await turn(b, client, history)
      assert before in b.shown(b.calls()[1])
      edited = _replaced(history, before, after)
      await turn(b, client, edited)
      calls = b.calls()
      assert calls[2].parent == 'c0'
      assert calls[2].break_cause == 'tool_edited'
      assert extends(calls[2], calls[0])
      shared = len(calls[0].prompt_ids) + len(calls[0].sample.token_ids)
      tree = trie.build(calls)
      # The shared prefix is in the trie once, what follows twice.
      lengths = [len(c.prompt_ids) + len(c.sample.token_ids) for c in calls]
      assert len(tree) <= lengths[1] + lengths[2] - shared
      sampled = sum(len(c.sample.token_ids) for c in calls)
      assert delivered(b) == (sampled, set())


def _replaced(value, old, new):
  if isinstance(value, dict):
    return {k: _replaced(v, old, new) for k, v in value.items()}
  if isinstance(value, list):
    return [_replaced(v, old, new) for v in value]
  return new if value == old else value


@check('F19')
async def _(case, bench):
  made, replayed = case.steps[0]['output_call'], case.steps[1]['client_replays']
  import json

  text = f'<tool_call>\n{json.dumps(made)}\n</tool_call>'
  async with bench([text, 'ok']) as b:
    got = await clients.ask(b, CHAT, [USER], [BASH])
    arguments = json.dumps(replayed['arguments'])
    function = {'name': replayed['name'], 'arguments': arguments}
    got.history[0]['tool_calls'][0]['function'] = function
    history = [USER, *got.history, *CHAT.results(got, 'x')]
    await clients.ask(b, CHAT, history, [BASH])
    one, two = b.calls()
    assert two.parent == '' and not extends(two, one)
    assert two.break_cause.startswith('assistant_edited')
    assert json.dumps(replayed['arguments']) in b.shown(two)
    batch = trie.pack([trie.build(b.calls())], row_tokens=512)
    sampled = sum(len(c.sample.token_ids) for c in b.calls())
    assert int(batch.mask.sum()) == sampled


@check('F20')
async def _(case, bench):
  """A long answer stays whole though the client sends it back changed."""
  words = case.steps[0]['prev_response_len']
  long, short = 'a b ' * (words // 2), case.steps[1]['new_response_len']
  async with bench([long, 'c ' * short], window=1 << 18) as b:
    got = await clients.ask(b, CHAT, [USER])
    half = {**got.history[0], 'content': long[: len(long) // 2] + 'changed'}
    await clients.ask(b, CHAT, [USER, half, user('more')])
    one, two = b.calls()
    assert not extends(two, one) and two.parent == ''
    assert len(one.sample.token_ids) >= words
    tree = trie.build(b.calls())
    batch = trie.pack([tree], row_tokens=1 << 18)
    sampled = len(one.sample.token_ids) + len(two.sample.token_ids)
    assert int(batch.mask.sum()) == sampled
    kept = batch.rollout_logprob[batch.mask]
    assert np.all(kept == np.float32(-0.5))
