"""The official SDKs, driven as a harness drives them, through 20 calls each.

Each loop hands back what the SDK gave, re-serialised as its harnesses do, and
then each engine prompt must be the exact extension of the one before.
"""

import json

import anthropic
import openai
import pytest

from clawjax.proxy import accounting, app
from tests.proxy.conftest import (
  BASH,
  BASH_MESSAGES,
  BASH_RESPONSES,
  call,
  extends,
)

# Tool use, thinking, text around calls, odd JSON, unicode, white space and
# parallel calls.
ANSWERS = [
  call('ls', thinking='I should look.'),
  call('cat a', spaced=False, text='Let me look.\n'),
  call('echo "你好 🦞\\n" | sed \'s/\\t/ /\'', thinking='why\n\nnot', text='é'),
  '<tool_call>\n{"arguments": {"command" : "a\nb"},\n "name": "bash"}\n'
  '</tool_call>',
  call('one') + '\n' + call('two', spaced=False),
  'Before.\n' + call('x') + '\nAfter.\n',
  '<tool_call>\n{"name": "bash", "arguments": {"command": "n", "n": 1.0, '
  '"big": 9007199254740993}}\n</tool_call>',
  '  indented text  \n\n' + call('pwd'),
  '<think>\nno end\n' + call('promoted'),
  call('</tool_call> </think> <tool_call>'),
]
SCRIPT = [*ANSWERS, *ANSWERS, 'All done.']


STREAMS = ['whole', 'stream', 'sampled']


def config_of(stream):
  """'sampled' streams text as the engine samples it."""
  return app.ProxyConfig(stream_sampled=stream == 'sampled')


def check(bench):
  calls = bench.calls()
  assert len(calls) == 21
  for before, after in zip(calls, calls[1:], strict=False):
    assert extends(after, before), after.index
    assert after.parent == before.call_id
  account = accounting.account(calls)
  assert account.fraction == 1.0
  assert account.breaks == {}
  assert account.inexact == 0
  for c in calls:
    assert len(c.sample.token_ids) == len(c.sample.logprobs)


@pytest.mark.parametrize('stream', STREAMS)
async def test_anthropic(bench, stream):
  async with bench(SCRIPT, config=config_of(stream)) as b:
    client = b.anthropic()
    messages = [{'role': 'user', 'content': 'go'}]
    for _ in range(len(SCRIPT)):
      options = {
        'model': 'm',
        'max_tokens': 4096,
        'system': 'S',
        'messages': messages,
        'tools': [BASH_MESSAGES],
      }
      if stream != 'whole':
        async with client.messages.stream(**options) as s:
          answer = await s.get_final_message()
      else:
        answer = await client.messages.create(**options)
      content = [x.model_dump(exclude_none=True) for x in answer.content]
      messages.append({'role': 'assistant', 'content': content})
      uses = [x for x in answer.content if x.type == 'tool_use']
      assert answer.stop_reason == ('tool_use' if uses else 'end_turn')
      assert answer.usage.input_tokens == len(b.client.prompts[-1])
      if uses:
        results = [
          {'type': 'tool_result', 'tool_use_id': u.id, 'content': f'out {i}'}
          for i, u in enumerate(uses)
        ]
        messages.append({'role': 'user', 'content': results})
    check(b)


@pytest.mark.parametrize('stream', STREAMS)
@pytest.mark.parametrize('reasoning', ['kept', 'dropped'])
async def test_chat(bench, stream, reasoning):
  async with bench(SCRIPT, config=config_of(stream)) as b:
    client = b.openai()
    messages = [
      {'role': 'system', 'content': 'S'},
      {'role': 'user', 'content': 'go'},
    ]
    for _ in range(len(SCRIPT)):
      options = {'model': 'm', 'messages': messages, 'tools': [BASH]}
      if stream != 'whole':
        text, thought, parts = '', '', {}
        reason = None
        async for chunk in await client.chat.completions.create(
          **options, stream=True
        ):
          (choice,) = chunk.choices
          reason = choice.finish_reason or reason
          text += choice.delta.content or ''
          thought += getattr(choice.delta, 'reasoning_content', None) or ''
          for d in choice.delta.tool_calls or ():
            part = parts.setdefault(d.index, {'arguments': ''})
            if d.id:
              part |= {'id': d.id, 'name': d.function.name}
            part['arguments'] += d.function.arguments or ''
        uses = [parts[i] for i in range(len(parts))]
      else:
        answer = (await client.chat.completions.create(**options)).choices[0]
        text = answer.message.content or ''
        thought = getattr(answer.message, 'reasoning_content', None) or ''
        reason = answer.finish_reason
        uses = [
          {
            'id': c.id,
            'name': c.function.name,
            'arguments': c.function.arguments,
          }
          for c in answer.message.tool_calls or ()
        ]
      assert reason == ('tool_calls' if uses else 'stop')
      turn = {'role': 'assistant', 'content': text or None}
      if reasoning == 'kept' and thought:
        turn['reasoning_content'] = thought
      if uses:
        turn['tool_calls'] = [
          {
            # OpenClaw's spelling of ids, a JSON library's of arguments.
            'id': u['id'].replace('_', ''),
            'type': 'function',
            'function': {
              'name': u['name'],
              'arguments': json.dumps(
                json.loads(u['arguments']),
                separators=(',', ':'),
                sort_keys=True,
              ),
            },
          }
          for u in uses
        ]
      messages.append(turn)
      messages += [
        {'role': 'tool', 'tool_call_id': c['id'], 'content': f'out {i}'}
        for i, c in enumerate(turn.get('tool_calls', ()))
      ]
    check(b)


@pytest.mark.parametrize('stream', STREAMS)
@pytest.mark.parametrize('style', ['codex', 'previous'])
async def test_responses(bench, stream, style):
  async with bench(SCRIPT, config=config_of(stream)) as b:
    client = b.openai()
    items = [{'type': 'message', 'role': 'user', 'content': 'go'}]
    previous = None
    for _ in range(len(SCRIPT)):
      options = {
        'model': 'm',
        'instructions': 'S',
        'input': items,
        'tools': [BASH_RESPONSES],
        'include': ['reasoning.encrypted_content'],
      }
      if style == 'previous':
        options |= {'previous_response_id': previous, 'store': True}
      else:
        options['store'] = False
      if stream != 'whole':
        answer = None
        async for event in await client.responses.create(
          **options, stream=True
        ):
          if event.type == 'response.completed':
            answer = event.response
      else:
        answer = await client.responses.create(**options)
      assert answer.status == 'completed'
      assert answer.usage.input_tokens == len(b.client.prompts[-1])
      previous = answer.id
      output = [o.model_dump(exclude_none=True) for o in answer.output]
      for item in output:
        item.pop('id')  # As Codex replays them.
        item.pop('status', None)
      results = [
        {
          'type': 'function_call_output',
          'call_id': o['call_id'],
          'output': f'out {i}',
        }
        for i, o in enumerate(o for o in output if o['type'] == 'function_call')
      ]
      items = results if style == 'previous' else [*items, *output, *results]
    check(b)


async def test_sdk_errors(bench):
  async with bench(['hi'], window=64) as b:
    long = 'word ' * 200
    messages = [{'role': 'user', 'content': long}]
    client = b.anthropic()
    with pytest.raises(anthropic.BadRequestError, match='prompt is too long'):
      await client.messages.create(model='m', max_tokens=5, messages=messages)
    with pytest.raises(anthropic.BadRequestError, match='prompt is too long'):
      async with client.messages.stream(
        model='m', max_tokens=5, messages=messages
      ):
        pass
    other = b.openai()
    with pytest.raises(openai.BadRequestError) as e:
      await other.chat.completions.create(model='m', messages=messages)
    assert e.value.code == 'context_length_exceeded'
    wrong = b.openai(b.url + '/r/no')
    with pytest.raises(openai.AuthenticationError):
      await wrong.chat.completions.create(model='m', messages=messages)
    assert [m.id async for m in client.models.list()]
    assert [m.id async for m in other.models.list()]
    assert b.proxy.stats(b.session.id).refused == 3
    assert b.calls() == ()


async def test_count_tokens_is_the_prompt_length(bench):
  async with bench(['hi']) as b:
    client = b.anthropic()
    body = {
      'model': 'm',
      'system': [{'type': 'text', 'text': 'S'}],
      'tools': [BASH_MESSAGES],
      'messages': [{'role': 'user', 'content': 'hi there'}],
    }
    counted = await client.messages.count_tokens(**body)
    assert b.calls() == ()
    answer = await client.messages.create(**body, max_tokens=9)
    assert counted.input_tokens == answer.usage.input_tokens
    assert counted.input_tokens == len(b.calls()[0].prompt_ids)


@pytest.mark.parametrize('dialect', ['anthropic', 'chat', 'responses'])
async def test_signs_of_life_are_no_content(bench, dialect):
  """The SDKs' own accumulators, with many of them before the answer."""
  config = app.ProxyConfig(keep_alive_s=0.05, grace_s=0)
  slow = {'text': '<think>\nr\n</think>\n\nHi.\n' + call('ls'), 'delay_s': 1}
  async with bench([slow], config=config) as b:
    asked = {'role': 'user', 'content': 'go'}
    if dialect == 'anthropic':
      async with b.anthropic().messages.stream(
        model='m', max_tokens=99, messages=[asked], tools=[BASH_MESSAGES]
      ) as stream:
        kinds = [e.type async for e in stream]
        answer = await stream.get_final_message()
      got = [c.type for c in answer.content]
      assert got == ['thinking', 'text', 'tool_use']
      assert kinds.count('content_block_start') == 3
    elif dialect == 'chat':
      async with b.openai().chat.completions.stream(
        model='m', messages=[asked], tools=[BASH]
      ) as stream:
        (choice,) = (await stream.get_final_completion()).choices
      assert choice.message.content == 'Hi.'
      assert [c.function.name for c in choice.message.tool_calls] == ['bash']
    else:
      async with b.openai().responses.stream(
        model='m', input=[asked], tools=[BASH_RESPONSES]
      ) as stream:
        kinds = [e.type async for e in stream]
        answer = await stream.get_final_response()
      got = [item.type for item in answer.output]
      assert got == ['reasoning', 'message', 'function_call']
      assert kinds.count('response.in_progress') > 1  # One is the opening's.
