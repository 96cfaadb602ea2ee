"""Text streamed as it is sampled: early, well-formed, and never taken back."""

import asyncio
import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawjax import errors
from clawjax.chat import parsing, tokenizers
from clawjax.proxy import app, canonical, live, openai_chat, scripted
from tests.proxy.conftest import (
  BASH,
  BASH_MESSAGES,
  BASH_RESPONSES,
  call,
  events,
)

SAMPLED = app.ProxyConfig(stream_sampled=True, grace_s=0.0)
LONG = {
  'text': '<think>\nFirst I look.\nThen I count.\n</think>\n\n'
  'Now the list 🦞 of files:\n\n' + call('ls') + '\nand more',
  'delay_s': 0.3,
}

# What parsers trip over; joined at random, cut everywhere.
FRAGMENTS = [
  *('<think>', '</think>', '\n', '\n\n', ' ', 'word', '🦞 é', '\ufeff', '<'),
  *('<tool_call>', '</tool_call>', '<function=bash>', '</function>', '</'),
  *('<parameter=command>', '</parameter>', '<|im_end|>', 'STOP', 'ST', 'OP'),
  *('{"name": "bash", "arguments": {"command": "ls"}}', '{"name": "ba', '"}'),
  *('"a </think> b"', '<tool', '_call>', '<func', 'STOPPED'),
]


@settings(max_examples=400, deadline=None)
@given(
  st.lists(st.sampled_from(FRAGMENTS), max_size=12),
  st.booleans(),
  st.booleans(),
  st.sampled_from([(), ('STOP',), ('OP', 'STOPPED')]),
  st.sampled_from(['stop', 'length']),
)
def test_nothing_is_taken_back(parts, is_open, tools, stops, finish):
  text = ''.join(parts)
  parsed = parsing.parse_output(
    text,
    tools=[BASH] if tools else (),
    finish=finish,
    prompt_tail='<|im_start|>assistant\n' + ('<think>\n' if is_open else ''),
    stop=stops,
    control=False,
  )
  shown = parsed.pieces[0] if parsed.pieces else ''
  shown = shown if isinstance(shown, str) else ''
  before = ('', '')
  for end in range(len(text) + 1):
    told = live.certain(text[:end], is_open=is_open, tools=tools, stops=stops)
    assert parsed.reasoning.startswith(told[0]), (end, told)
    assert shown.startswith(told[1]), (end, told)
    assert told[0].startswith(before[0]) and told[1].startswith(before[1])
    if told[1]:  # A reader closes the thinking when text begins.
      assert told[0] == parsed.reasoning
    before = told


@pytest.mark.parametrize(
  'text, tools, told',
  [
    ('Hello there', True, ('', 'Hello there')),
    ('<think>\nab', True, ('ab', '')),
    ('<think>\nab</thi', True, ('ab', '')),
    ('<think>\nab\n</think>\n\nText <tool_', True, ('ab', 'Text ')),
    ('Text <tool_', False, ('', 'Text <tool_')),
    # A draft inside thinking may be promoted or hold a closing tag.
    ('<think>a <tool_call>{"x": "</think> b', True, ('a ', '')),
    # With a call behind it the newline would belong to the format.
    ('\nText', True, ('', '')),
    ('\nText', False, ('', '\nText')),
    ('Text\n\n', True, ('', 'Text')),
  ],
)
def test_what_is_certain(text, tools, told):
  assert live.certain(text, is_open=False, tools=tools) == told


def test_half_a_character_waits_and_nothing_follows_the_end():
  tokenizer = tokenizers.load('tiny')
  body = {'messages': [{'role': 'user', 'content': 'x'}]}
  request = openai_chat.parse(body, {}, {})
  ids = tokenizer.encode('a 👩‍💻 b')
  assert len(ids) > 5  # One emoji is several ids.
  reader = live.Live(tokenizer, request, '')
  told = ''.join(reader.feed([i])[1] for i in ids)
  assert told == 'a 👩‍💻 b'
  assert reader.feed([tokenizer.im_end, *ids]) == ('', '')


@pytest.mark.parametrize('dialect', ['messages', 'chat', 'responses'])
async def test_sdks_get_text_before_the_answer_is_whole(bench, dialect):
  async with bench([LONG], config=SAMPLED) as b:
    early, thought, text, calls = await getattr(Reader(b), dialect)()
    assert early > 1, 'no text came before the answer was whole'
    assert thought == 'First I look.\nThen I count.'
    assert text.startswith('Now the list 🦞 of files:')
    assert text.endswith('and more')
    assert calls == [('bash', {'command': 'ls'})]
    (c,) = b.calls()
    assert c.status == 'ok'


class Reader:
  """Reads one stream with the official clients."""

  def __init__(self, bench):
    self.bench = bench
    self.early = 0

  def saw(self):
    """Counts a piece of text that comes while the engine still samples."""
    stats = self.bench.proxy.stats(self.bench.session.id)
    self.early += stats.captured == 0

  async def messages(self):
    async with self.bench.anthropic().messages.stream(
      model='m',
      max_tokens=999,
      messages=[{'role': 'user', 'content': 'go'}],
      tools=[BASH_MESSAGES],
    ) as stream:
      async for event in stream:
        if event.type == 'content_block_delta':
          self.saw()
      answer = await stream.get_final_message()
    kinds = [c.type for c in answer.content]
    assert kinds == ['thinking', 'text', 'tool_use', 'text']
    assert answer.content[0].signature and answer.stop_reason == 'tool_use'
    texts = [c.text for c in answer.content if c.type == 'text']
    use = answer.content[2]
    thought = answer.content[0].thinking
    return self.early, thought, '\n'.join(texts), [(use.name, use.input)]

  async def chat(self):
    text, thought, arguments, name = '', '', '', ''
    stream = await self.bench.openai().chat.completions.create(
      model='m',
      messages=[{'role': 'user', 'content': 'go'}],
      tools=[BASH],
      stream=True,
    )
    async for chunk in stream:
      (choice,) = chunk.choices
      if choice.delta.content:
        self.saw()
      text += choice.delta.content or ''
      thought += getattr(choice.delta, 'reasoning_content', None) or ''
      for part in choice.delta.tool_calls or ():
        name += part.function.name or ''
        arguments += part.function.arguments or ''
    assert choice.finish_reason == 'tool_calls'
    return self.early, thought, text, [(name, json.loads(arguments))]

  async def responses(self):
    seen, told, answer = [], {}, None
    stream = await self.bench.openai().responses.create(
      model='m', input='go', tools=[BASH_RESPONSES], stream=True
    )
    async for event in stream:
      seen.append(event.sequence_number)
      if event.type.endswith('_text.delta'):
        self.saw()
        told[event.item_id] = told.get(event.item_id, '') + event.delta
      elif event.type == 'response.output_text.done':
        assert told[event.item_id] == event.text
      elif event.type == 'response.completed':
        answer = event.response
    assert seen == list(range(len(seen)))
    kinds = [o.type for o in answer.output]
    assert kinds == ['reasoning', 'message', 'function_call', 'message']
    thought = told[answer.output[0].id]
    use = answer.output[2]
    text = '\n'.join(told[answer.output[i].id] for i in (1, 3))
    return self.early, thought, text, [(use.name, json.loads(use.arguments))]


async def test_a_long_call_is_kept_alive(bench):
  """Ids come all the time and nothing of them may be sent yet."""
  entry = {'text': call('echo ' + 'word ' * 60), 'delay_s': 0.6}
  config = dataclasses.replace(SAMPLED, keep_alive_s=0.1)
  async with bench([entry], config=config) as b:
    body = {
      'messages': [{'role': 'user', 'content': 'go'}],
      'tools': [BASH],
      'stream': True,
    }
    answer = await b.post('chat/completions', body)
    assert answer.text.count(': ping') >= 3
    assert answer.text.endswith('data: [DONE]\n\n')


class Breaking(scripted.ScriptedClient):
  """Tells some ids, waits until they are taken, then fails."""

  async def sample(self, prompt_ids, params, *, on_tokens=None, **_):
    feed = on_tokens.__self__
    on_tokens(self._tokenizer.encode('Some text here'), [], 0)
    await feed.news.wait()
    while feed.news.is_set():
      await asyncio.sleep(0.01)
    raise errors.EngineError('gone', kind='crashed')


@pytest.mark.parametrize('path', ['messages', 'chat/completions', 'responses'])
async def test_a_failure_after_some_text(bench, path):
  async with bench(['x'], config=SAMPLED) as b:
    b.proxy.client = Breaking(['x'], b.proxy.tokenizer)
    body = {'model': 'm', 'max_tokens': 9, 'stream': True}
    said = [{'role': 'user', 'content': 'go'}]
    body |= {'input': 'go'} if path == 'responses' else {'messages': said}
    answer = await b.post(path, body)
    assert 'Some text here' in answer.text
    last = events(answer.text)[-1]
    assert 'error' in json.dumps(last)
    for end in ('[DONE]', 'message_stop', 'response.completed'):
      assert end not in answer.text
    (c,) = b.calls()
    assert (c.status, c.sample) == ('error', None)


def test_a_client_that_cannot_tell_ids_is_refused():
  class Mute(scripted.ScriptedClient):
    async def sample(self, prompt_ids, params, **_):
      raise AssertionError

  tokenizer = tokenizers.load('tiny')
  with pytest.raises(errors.ConfigError, match='on_tokens'):
    app.Proxy(Mute(['x'], tokenizer), tokenizer, config=SAMPLED)


def test_an_answer_that_is_not_what_was_told_breaks_the_stream():
  body = {'messages': [{'role': 'user', 'content': 'x'}], 'stream': True}
  request = openai_chat.parse(body, {}, {})
  stream = openai_chat.Stream(request, 'a', 0)
  stream.live('', 'told')
  answer = canonical.Answer(
    id='a',
    model='m',
    parsed=parsing.Parsed(content='other'),
    pieces=('other',),
    reasoning='',
    finish='stop',
    stop_text='',
    prompt_tokens=1,
    output_tokens=1,
  )
  with pytest.raises(RuntimeError, match='told'):
    stream.closing(answer)
