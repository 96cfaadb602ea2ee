"""Exact tokens through retries, branches, edits, compaction and rules."""

import asyncio
import dataclasses

import numpy as np
import pytest

from clawjax import types
from clawjax.proxy import accounting, rules
from tests.proxy.conftest import BASH, call, extends

USER = {'role': 'user', 'content': 'Write the report into out.txt please.'}


async def chat(b, messages, **body):
  answer = await b.post(
    'chat/completions', {'messages': messages, 'tools': [BASH], **body}
  )
  assert answer.status_code == 200, answer.text
  return answer.json()['choices'][0]['message']


def after(message, *outputs):
  """The assistant turn as sent back, and results of its calls."""
  message = {k: v for k, v in message.items() if k != 'reasoning_content'}
  results = [
    {'role': 'tool', 'tool_call_id': c['id'], 'content': o}
    for c, o in zip(message.get('tool_calls', ()), outputs, strict=False)
  ]
  return [message, *results]


async def test_an_edited_call_is_a_branch_and_never_claimed(bench):
  async with bench([call('ls'), 'ok']) as b:
    first = await chat(b, [USER])
    first['tool_calls'][0]['function'] = {
      'name': 'Bash',
      'arguments': '{"c":1}',
    }
    await chat(b, [USER, *after(first, 'x')])
    c0, c1 = b.calls()
    assert not extends(c1, c0) and c1.parent == ''
    assert c1.break_cause == 'assistant_edited: name'
    assert '{"name": "Bash", "arguments": {"c":1}}' in b.shown(c1)


async def test_held_back_calls_make_a_branch(bench):
  async with bench([call('a') + '\n' + call('b'), 'ok']) as b:
    first = await chat(b, [USER], parallel_tool_calls=False)
    assert len(first['tool_calls']) == 1
    text = b.proxy.tokenizer.decode(b.calls()[0].sample.token_ids)
    assert '"a"' in text and '"b"' in text
    await chat(b, [USER, *after(first, 'x')])
    assert b.calls()[1].break_cause == 'assistant_edited: calls_dropped'


async def test_an_edited_tool_result_forks_there_and_keeps_later_thinking(
  bench,
):
  script = [call('one'), call('two', thinking='hm'), call('three'), 'ok']
  async with bench(script) as b:
    history = [USER]
    for output in ('long output', 'b'):
      history += after(await chat(b, history), output)
    history += after(await chat(b, history), 'c')
    history[2] = {**history[2], 'content': '[Old tool result content cleared]'}
    await chat(b, history)
    calls = b.calls()
    assert calls[3].parent == 'c0'
    assert calls[3].break_cause == 'tool_edited'
    # What was sampled after the edit is context, with its own ids.
    assert '<think>\nhm\n</think>' in b.shown(calls[3])
    shared = calls[3].prompt_ids[: len(calls[0].prompt_ids)]
    assert np.array_equal(shared, calls[0].prompt_ids)
    assert accounting.account(calls).fraction == 1.0


async def test_retry_whose_first_answer_is_left(bench):
  async with bench([call('one'), call('two'), 'done']) as b:
    await chat(b, [USER])
    second = await chat(b, [USER])
    await chat(b, [USER, *after(second, 'x')])
    c0, c1, c2 = b.calls()
    assert (c1.retry_of, c1.break_cause) == ('c0', 'retry')
    assert c2.parent == 'c1' and c2.retry_of == ''
    account = accounting.account(b.calls())
    assert account.missing == {'retry': len(c0.sample.token_ids)}


async def test_retry_whose_first_answer_is_continued(bench):
  async with bench([call('one'), call('two'), 'done']) as b:
    first = await chat(b, [USER])
    await chat(b, [USER])
    await chat(b, [USER, *after(first, 'x')])
    _, c1, c2 = b.calls()
    assert c1.retry_of == '' and c2.parent == 'c0'
    assert accounting.dead_leaves(b.calls()) == {'c1': 'retry'}


@pytest.mark.parametrize('tries, dead', [('1', True), ('0', False)])
async def test_another_try_while_the_first_still_runs(bench, tries, dead):
  """A hang-up that does not come through: the SDK's header tells it."""
  script = [{'text': call('a'), 'delay_s': 0.3}, call('b'), 'done']
  async with bench(script) as b:
    left = asyncio.create_task(chat(b, [USER]))
    while not b.client.prompts:
      await asyncio.sleep(0.01)
    headers = {'x-stainless-retry-count': tries}
    body = {'messages': [USER], 'tools': [BASH]}
    answer = await b.post('chat/completions', body, headers=headers)
    second = answer.json()['choices'][0]['message']
    await left
    await chat(b, [USER, *after(second, 'x')])
    c0, c1, c2 = b.calls()
    assert c1.break_cause == ('retry' if dead else 'parallel')
    assert c1.retry_of == ('c0' if dead else '') and c2.parent == 'c1'
    assert ('c0' in accounting.dead_leaves(b.calls())) is dead
    lost = len(c0.sample.token_ids) if dead else 0
    assert accounting.account(b.calls()).missing.get('retry', 0) == lost


async def test_the_official_sdks_say_that_they_try_again(bench):
  for make, ask in (
    ('anthropic', lambda c, m: c.messages.create(max_tokens=9, **m)),
    ('openai', lambda c, m: c.chat.completions.create(**m)),
  ):
    slow = {'text': 'late', 'delay_s': 30}
    async with bench([slow, 'in time']) as b:
      client = getattr(b, make)().with_options(max_retries=1, timeout=1)
      seen = []
      client._client.event_hooks['request'].append(
        lambda request, seen=seen: _kept(seen, request)
      )
      await ask(client, {'model': 'm', 'messages': [USER]})
      assert seen == ['0', '1']
      assert await b.proxy.settle(b.session.id, interval_s=0.05)
      assert [c.status for c in b.calls()] == ['aborted', 'ok']
      assert b.calls()[1].retry_of == 'c0'


async def _kept(seen, request):
  seen.append(request.headers['x-stainless-retry-count'])


async def test_same_answers_are_told_apart_by_their_ids(bench):
  async with bench(
    [call('ls', thinking='A'), call('ls', thinking='B'), 'x']
  ) as b:
    first = await chat(b, [USER])
    await chat(b, [USER])
    await chat(b, [USER, *after(first, 'o')])
    assert b.calls()[2].parent == 'c0'
    assert '<think>\nA\n' in b.shown(b.calls()[2])


async def test_parallel_samples_are_no_retries(bench):
  entry = {'text': call('ls'), 'delay_s': 0.2}
  async with bench([entry]) as b:
    await asyncio.gather(*(chat(b, [USER]) for _ in range(8)))
    calls = b.calls()
    assert {c.index for c in calls} == set(range(8))
    assert all(c.retry_of == '' for c in calls)
    assert accounting.account(calls).fraction == 1.0
    seeds = {c.params.seed for c in calls}
    assert seeds == {types.sampling_seed(0, b.session.id, i) for i in range(8)}


async def test_a_hang_up_cancels_one_generation_only(bench):
  script = [{'text': 'a', 'delay_s': 30}, {'text': 'b', 'delay_s': 0.3}, 'c']
  async with bench(script) as b:
    slow = asyncio.create_task(chat(b, [USER]))
    await asyncio.sleep(0.15)
    other = asyncio.create_task(chat(b, [{'role': 'user', 'content': 'other'}]))
    await asyncio.sleep(0.1)
    slow.cancel()
    assert (await other)['content'] == 'b'
    assert await b.proxy.settle(b.session.id, interval_s=0.05)
    assert b.client.cancelled == 1
    await chat(b, [USER])
    c0, _, c2 = b.calls()
    assert (c0.status, c0.sample) == ('aborted', None)
    assert c2.retry_of == 'c0'


async def test_a_cut_turn_is_closed_as_context(bench):
  async with bench([{'text': 'partial answer', 'finish': 'length'}, 'ok']) as b:
    first = await chat(b, [USER])
    await chat(b, [USER, first, {'role': 'user', 'content': 'go on'}])
    c0, c1 = b.calls()
    assert extends(c1, c0)
    assert b.proxy.tokenizer.im_end not in c0.sample.token_ids
    n = len(c0.prompt_ids) + len(c0.sample.token_ids)
    assert c1.prompt_ids[n] == b.proxy.tokenizer.im_end


async def test_a_cut_turn_can_be_gone_on_with(bench):
  async with bench(
    [{'text': 'partial answ', 'finish': 'length'}, 'er', 'ok']
  ) as b:
    first = await chat(b, [USER])
    second = await chat(b, [USER, first])
    assert second['content'] == 'er'
    c0, c1 = b.calls()
    assert np.array_equal(c1.prompt_ids, [*c0.prompt_ids, *c0.sample.token_ids])
    joined = {'role': 'assistant', 'content': 'partial answer'}
    await chat(b, [USER, joined, {'role': 'user', 'content': 'x'}])
    assert b.calls()[2].parent == 'c1'


async def test_sampled_ids_are_kept_where_spelling_would_change_them(bench):
  """Ids that no encoder would choose: one per letter."""
  async with bench(['x']) as b:
    tokenizer = b.proxy.tokenizer
    ids = [tokenizer.encode(c)[0] for c in 'hello there'] + [tokenizer.im_end]
    assert tokenizer.encode('hello there') != ids[:-1]
    b.client._script = [{'token_ids': ids}]
    first = await chat(b, [USER])
    assert first['content'] == 'hello there'
    await chat(b, [USER, first, {'role': 'user', 'content': 'x'}])
    assert extends(b.calls()[1], b.calls()[0])


async def test_ids_after_the_end_of_the_turn_are_dropped(bench):
  async with bench(['x']) as b:
    end = b.proxy.tokenizer.im_end
    b.client._sample = lambda entry, params: types.Sample(
      np.asarray([5, end, 6, end]), np.full(4, -0.5), 'length'
    )
    await chat(b, [USER])
    assert b.calls()[0].sample.token_ids.tolist() == [5, end]
    assert len(b.calls()[0].sample.logprobs) == 2


@pytest.mark.parametrize(
  'logprobs', [[-0.5, float('nan')], [-0.5, float('-inf')], [-0.5]]
)
async def test_missing_or_odd_logprobs_fail_the_call(bench, logprobs, caplog):
  async with bench(['x']) as b:
    b.client._sample = lambda entry, params: types.Sample(
      np.asarray([5, 6]), np.asarray(logprobs), 'stop'
    )
    answer = await b.post('chat/completions', {'messages': [USER]})
    assert answer.status_code == 500
    (c,) = b.calls()
    assert c.status == 'error' and c.sample is None and 'capture' in c.error
    assert await b.proxy.settle(b.session.id, interval_s=0.01)
    assert 'served but none captured' in caplog.text


# ---- roles -----------------------------------------------------------------


async def test_roles(bench):
  summary = 'We listed the folder and found two files to report on.'
  script = [
    'Reports',  # A title.
    call('Count the files of the folder src and tell me.'),
    'There are two.',
    call('wc -l'),
    summary,
    'The end.',
    'q',
  ]
  opened = {'metadata': {'instruction': USER['content']}}
  async with bench(script, opened=opened) as b:
    await chat(
      b,
      [{'role': 'user', 'content': f'Title for: {USER["content"]}'}],
      tools=[],
    )
    history = [USER]
    first = await chat(b, history)
    task = 'Count the files of the folder src and tell me.'
    await chat(
      b,
      [
        {'role': 'system', 'content': 'Sub.'},
        {'role': 'user', 'content': task},
      ],
    )
    history += after(first, 'two')
    history += after(await chat(b, history), '7')
    ask = (
      'Your task is to create a detailed summary of the conversation so far.'
    )
    await chat(b, [*history, {'role': 'user', 'content': ask}])
    await chat(b, [{'role': 'user', 'content': f'Summary: {summary}'}])
    await chat(b, [{'role': 'user', 'content': 'quota'}], max_tokens=1)
    roles = [c.role for c in b.calls()]
    assert roles == [
      'side',
      'main',
      'subagent',
      'main',
      'compaction',
      'compaction',
      'side',
    ]
    account = accounting.account(b.calls())
    assert account.delivered == sum(
      len(c.sample.token_ids) for c in b.calls() if c.role == 'main'
    )


async def test_a_probe_alone_is_not_trained(bench):
  async with bench(['x', 'x']) as b:
    await chat(b, [{'role': 'user', 'content': 'quota'}], max_tokens=1)
    assert [c.role for c in b.calls()] == ['side']
    await chat(b, [USER])
    assert [c.role for c in b.calls()] == ['side', 'main']


async def test_interleaved_conversations_are_two_chains(bench):
  script = [call('a1'), call('b1'), call('a2'), call('b2'), 'a3']
  async with bench(script) as b:
    one = [{'role': 'system', 'content': 'P'}, USER]
    two = [
      {'role': 'system', 'content': 'S'},
      {'role': 'user', 'content': 'other'},
    ]
    for history in (one, two, one, two):
      history += after(await chat(b, history), 'o')
    await chat(b, one)
    assert [c.parent for c in b.calls()] == ['', '', 'c0', 'c1', 'c2']


async def test_a_clock_in_the_system_text(bench):
  def turn(minute):
    text = f'Help.\nCurrent date: 2026-01-01 10:{minute}\nBe brief.'
    return {'role': 'system', 'content': text}

  async with bench([call('ls'), 'ok']) as b:
    first = await chat(b, [turn('01'), USER])
    await chat(b, [turn('02'), USER, *after(first, 'x')])
    assert [c.parent for c in b.calls()] == ['', '']
    assert b.calls()[1].break_cause == 'system_changed'
  opened = {'rules': ('date_line',)}
  async with bench([call('ls'), 'ok'], opened=opened) as b:
    first = await chat(b, [turn('01'), USER])
    await chat(b, [turn('02'), USER, *after(first, 'x')])
    assert extends(b.calls()[1], b.calls()[0])
    assert [c.normalised for c in b.calls()] == [(), ('date_line',)]
    assert '10:01' in b.shown(b.calls()[1])


async def test_a_message_moved_to_the_end_stays_where_it_stood(bench):
  context = {
    'role': 'user',
    'content': '<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\ninside',
  }
  script = [call('a'), call('b'), call('c'), 'ok']
  opened = {'rules': ('openclaw_context', 'tool_space')}
  for chosen, exact in ((opened, True), ({}, False)):
    async with bench(script, opened=chosen) as b:
      history = [USER]
      for i in range(3):
        answer = await chat(b, [*history, context])
        history += after(answer, f'out {i}')
      await chat(b, [*history, context])
      calls = b.calls()
      pairs = zip(calls, calls[1:], strict=False)
      assert all(extends(y, x) for x, y in pairs) is exact
      if exact:
        text = b.shown(calls[-1])
        assert text.count('INTERNAL_CONTEXT') == 1


def test_rules_by_name():
  assert rules.Rules(('openclaw_clock', '-billing')).names == (
    'cache_control',
    'text_in_result',
    'openclaw_clock',
  )
  from clawjax import errors

  with pytest.raises(errors.ConfigError, match='nonsense'):
    rules.Rules(('nonsense',))


# ---- token accounting: the seven rows --------------------------------------


def made(n, index, prompt, output, **fields):
  """A call; prompt and output are lists of ids."""
  return types.Call(
    call_id=f'c{index}',
    rollout_id='r',
    index=index,
    prompt_ids=np.asarray(prompt, np.int32),
    sample=types.Sample(
      np.asarray(output, np.int32),
      np.full(len(output), -1.0, np.float32),
      'stop',
    ),
    start=2.0 * n,
    end=2.0 * n + 1,
    **fields,
  )


def ids(start, n):
  return list(range(start, start + n))


P1, O1, O2, O3 = ids(0, 3), ids(100, 50), ids(200, 30), ids(300, 10)


def rows():
  """name -> (calls, sampled, trained)."""
  p2 = P1 + O1 + [9, 9]
  p3 = p2 + O2 + [8]
  t1 = [
    made(0, 0, P1, O1),
    made(1, 1, p2, O2, parent='c0'),
    made(2, 2, p3, O3, parent='c1'),
  ]
  t2 = [
    made(0, 0, P1, O1),
    made(1, 1, P1 + O1[20:] + [9, 9], O2),
    made(2, 2, P1 + O1[20:] + [9, 9] + O2[10:] + [8], O3),
  ]
  again = ids(400, 50)
  t3 = [
    made(0, 0, P1, O1),
    made(1, 1, P1, again, retry_of='c0'),
    made(2, 2, P1 + again + [9], O2, parent='c1'),
  ]
  t4 = [made(0, 0, P1, O1)] + [
    made(i, i, P1 + O1 + [i], ids(500 + 10 * i, 10), parent='c0')
    for i in (1, 2, 3, 4)
  ]
  t5 = [made(0, 0, P1, O1), made(1, 1, P1 + O1[20:] + ids(600, 60), O2)]
  t6, prompt = [], P1
  for i in range(6):
    out = ids(700 + 3 * i, 3)
    t6.append(made(i, i, prompt, out, parent=f'c{i - 1}' if i else ''))
    prompt = prompt + out + [9]
  retried = [
    dataclasses.replace(c, start=c.start + 2 * (i > 1), end=c.end + 2 * (i > 1))
    for i, c in enumerate(t6)
  ]
  t7 = [
    *retried,
    made(2, 6, t6[1].prompt_ids.tolist(), ids(900, 3), parent='c0'),
  ]
  return {
    'T1': (t1, 90, 90),
    'T2': (t2, 90, 90),
    'T3': (t3, 130, 80),
    'T4': (t4, 90, 90),
    'T5': (t5, 80, 80),
    'T6': (t6, 18, 18),
    'T7': (t7, 21, 18),
  }


@pytest.mark.parametrize('name', ['T1', 'T2', 'T3', 'T4', 'T5', 'T6', 'T7'])
def test_token_accounting(name):
  calls, sampled, trained = rows()[name]
  account = accounting.account(calls)
  assert (account.sampled, account.delivered) == (sampled, trained)
  assert account.sampled == account.delivered + sum(account.missing.values())
  assert account.inexact == 0


async def test_thinking_stripped_by_the_client_costs_nothing(bench):
  """T2 as it happens here: the client drops all thinking, nothing breaks."""
  script = [call('a', thinking='x ' * 20), call('b', thinking='y ' * 9), 'ok']
  async with bench(script) as b:
    history = [USER]
    for output in ('1', '2'):
      history += after(await chat(b, history), output)
    await chat(b, history)
    c0, c1, c2 = b.calls()
    assert extends(c1, c0) and extends(c2, c1)
    assert accounting.account(b.calls()).breaks == {}
