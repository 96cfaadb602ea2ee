"""Three small clients, one a dialect, written from the public references.

Each makes a request, reads an answer (whole or from its events, whose order it
holds to the letter) and goes on with the conversation as a client would.
"""

import dataclasses
import json

from tests.proxy.conftest import events


@dataclasses.dataclass
class Got:
  """An answer as a client understands it.

  Attributes:
    reasoning, text: as shown.
    calls: (id, name, JSON text of the arguments).
    stop: the dialect's own word.
    history: what the client puts into its history for it.
    input_tokens, output_tokens: as told.
  """

  reasoning: str = ''
  text: str = ''
  calls: list = dataclasses.field(default_factory=list)
  stop: str = ''
  history: list = dataclasses.field(default_factory=list)
  input_tokens: int = 0
  output_tokens: int = 0

  @property
  def parsed(self):
    """Calls in the shape of the cases."""
    return [{'name': n, 'arguments': json.loads(a)} for _, n, a in self.calls]


class Messages:
  """Anthropic Messages."""

  name = 'anthropic'
  path = 'messages?beta=true'
  stops = {'stop': 'end_turn', 'calls': 'tool_use', 'cut': ('max_tokens',)}

  def request(self, history, tools, **rest):
    made = [
      {
        'name': t['function']['name'],
        'input_schema': t['function'].get('parameters', {'type': 'object'}),
      }
      for t in tools
    ]
    return {
      'model': 'm',
      'max_tokens': 4096,
      'messages': history,
      'tools': made,
      **rest,
    }

  def whole(self, body):
    assert body['type'] == 'message' and body['role'] == 'assistant'
    got = Got(stop=body['stop_reason'])
    for block in body['content']:
      if block['type'] == 'thinking':
        assert block['signature']
        got.reasoning += block['thinking']
      elif block['type'] == 'text':
        assert block['text'], 'an empty text block'
        got.text += block['text'] + '\n'
      else:
        assert block['type'] == 'tool_use'
        arguments = json.dumps(block['input'])
        got.calls.append((block['id'], block['name'], arguments))
    got.history = [{'role': 'assistant', 'content': body['content']}]
    usage = body['usage']
    cached = [
      usage.get(f'cache_{k}_input_tokens') or 0 for k in ('read', 'creation')
    ]
    got.input_tokens = usage['input_tokens'] + sum(cached)
    got.output_tokens = usage['output_tokens']
    return got

  def stream(self, text):
    got = [e for e in events(text) if e['type'] != 'ping']
    assert got[0]['type'] == 'message_start', got[0]
    assert got[-1]['type'] == 'message_stop'
    assert [e['type'] for e in got].count('message_delta') == 1
    message = dict(got[0]['message'])
    assert message['content'] == [] and message['stop_reason'] is None
    assert message['usage']['input_tokens'] > 0
    content, current = [], None
    for event in got[1:-2]:
      if event['type'] == 'content_block_start':
        assert current is None and event['index'] == len(content)
        current = dict(event['content_block'])
        assert current.get('input', {}) == {} and not current.get('text')
        partial, kinds = '', []
      elif event['type'] == 'content_block_delta':
        assert event['index'] == len(content)
        delta = event['delta']
        kinds.append(delta['type'])
        if delta['type'] == 'input_json_delta':
          assert current['type'] == 'tool_use'
          partial += delta['partial_json']
        else:
          field = delta['type'].removesuffix('_delta')
          assert field in current, (field, current)
          assert field != 'thinking' or 'signature_delta' not in kinds
          current[field] += delta[field]
      else:
        assert event['type'] == 'content_block_stop'
        assert event['index'] == len(content)
        if current['type'] == 'tool_use':
          current['input'] = json.loads(partial or '{}')
        content.append(current)
        current = None
    assert current is None and got[-2]['type'] == 'message_delta'
    usage = {**message['usage'], **got[-2]['usage']}
    return self.whole(
      {**message, **got[-2]['delta'], 'content': content, 'usage': usage}
    )

  def results(self, got, output):
    """What comes back after the calls of an answer."""
    content = [
      {'type': 'tool_result', 'tool_use_id': i, 'content': output}
      for i, *_ in got.calls
    ]
    content = content or output
    return [{'role': 'user', 'content': content}]


class Chat:
  """OpenAI Chat Completions."""

  name = 'openai'
  path = 'chat/completions'
  stops = {'stop': 'stop', 'calls': 'tool_calls', 'cut': ('length',)}

  def request(self, history, tools, **rest):
    if rest.get('stream'):
      rest = {**rest, 'stream_options': {'include_usage': True}}
    return {'model': 'm', 'messages': history, 'tools': tools, **rest}

  def whole(self, body):
    assert body['object'] == 'chat.completion'
    (choice,) = body['choices']
    message = choice['message']
    got = Got(
      reasoning=message.get('reasoning_content') or '',
      text=message['content'] or '',
      stop=choice['finish_reason'],
    )
    for made in message.get('tool_calls', ()):
      assert made['type'] == 'function'
      function = made['function']
      got.calls.append((made['id'], function['name'], function['arguments']))
    got.history = [message]
    got.input_tokens = body['usage']['prompt_tokens']
    got.output_tokens = body['usage']['completion_tokens']
    return got

  def stream(self, text):
    assert text.endswith('data: [DONE]\n\n') and text.count('[DONE]') == 1
    *chunks, usage = events(text)
    assert usage['choices'] == [] and usage['usage']
    assert all(c['usage'] is None for c in chunks)
    message = {'role': 'assistant', 'content': '', 'reasoning_content': ''}
    calls, finish = [], None
    for chunk in chunks:
      assert chunk['object'] == 'chat.completion.chunk' and finish is None
      (choice,) = chunk['choices']
      delta, finish = choice['delta'], choice['finish_reason']
      for field in ('content', 'reasoning_content'):
        message[field] += delta.get(field) or ''
      for made in delta.get('tool_calls', ()):
        assert type(made['index']) is int
        if 'id' in made:
          assert made['index'] == len(calls) and made['type'] == 'function'
          assert made['function']['arguments'] == ''
          calls.append(json.loads(json.dumps(made)))
        else:
          assert set(made) == {'index', 'function'}
          assert set(made['function']) == {'arguments'}
          known = calls[made['index']]['function']
          known['arguments'] += made['function']['arguments']
    assert finish, 'no chunk with a finish reason'
    if calls:
      message['tool_calls'] = [
        {k: v for k, v in c.items() if k != 'index'} for c in calls
      ]
    return self.whole(
      {
        'object': 'chat.completion',
        'choices': [{'message': message, 'finish_reason': finish}],
        'usage': usage['usage'],
      }
    )

  def results(self, got, output):
    if not got.calls:
      return [{'role': 'user', 'content': output}]
    return [
      {'role': 'tool', 'tool_call_id': i, 'content': output}
      for i, *_ in got.calls
    ]


class Responses:
  """OpenAI Responses, as Codex uses it: items come back without ids."""

  name = 'responses'
  path = 'responses'
  stops = {
    'stop': 'completed',
    'calls': 'completed',
    'cut': ('incomplete', 'failed'),
  }

  def request(self, history, tools, **rest):
    made = [{'type': 'function', **t['function']} for t in tools]
    return {'model': 'm', 'input': history, 'tools': made, **rest}

  def whole(self, body):
    assert body['object'] == 'response'
    got = Got(stop=body['status'])
    for item in body['output']:
      if item['type'] == 'reasoning':
        parts = [*item['summary'], *(item.get('content') or ())]
        got.reasoning += parts[0]['text']
      elif item['type'] == 'message':
        assert [p['type'] for p in item['content']] == ['output_text']
        assert item['content'][0]['text'], 'an empty message'
        got.text += item['content'][0]['text'] + '\n'
      else:
        assert item['type'] == 'function_call'
        got.calls.append((item['call_id'], item['name'], item['arguments']))
      kept = {k: v for k, v in item.items() if k not in ('id', 'status')}
      got.history.append(kept)
    if usage := body.get('usage'):
      got.input_tokens = usage['input_tokens']
      got.output_tokens = usage['output_tokens']
      assert type(usage['input_tokens_details']['cached_tokens']) is int
      assert type(usage['output_tokens_details']['reasoning_tokens']) is int
      total = usage['input_tokens'] + usage['output_tokens']
      assert usage['total_tokens'] == total
    return got

  def stream(self, text):
    assert '[DONE]' not in text
    got = events(text)
    assert [e['sequence_number'] for e in got] == list(range(len(got)))
    kinds = [e['type'].removeprefix('response.') for e in got]
    assert kinds[:2] == ['created', 'in_progress']
    ends = ('completed', 'incomplete', 'failed')
    assert [k for k in kinds if k in ends] == [kinds[-1]]
    done, current, delta = [], None, ''
    for kind, event in zip(kinds[2:-1], got[2:-1], strict=True):
      if kind == 'in_progress':
        continue  # A sign of life.
      if kind == 'output_item.added':
        assert current is None and event['output_index'] == len(done)
        current, delta = event['item'], ''
      elif kind == 'output_item.done':
        item = event['item']
        assert item['id'] == current['id'] and item['type'] == current['type']
        if item['type'] == 'function_call':
          assert delta == item['arguments']
        elif item['type'] == 'message':
          assert delta == item['content'][0]['text']
        done.append(item)
        current = None
      else:
        assert event['item_id'] == current['id']
        delta += event['delta'] if kind.endswith('.delta') else ''
    assert current is None
    final = got[-1]['response']
    assert final['id'] == got[0]['response']['id']
    assert final['status'] == kinds[-1]
    if kinds[-1] != 'failed':
      assert final['output'] == done
    return self.whole({**final, 'output': done})

  def results(self, got, output):
    if not got.calls:
      return [{'role': 'user', 'content': output}]
    return [
      {'type': 'function_call_output', 'call_id': i, 'output': output}
      for i, *_ in got.calls
    ]


ALL = (Messages(), Chat(), Responses())


async def ask(bench, client, history, tools=(), *, stream=False, **rest):
  """One request; the answer as the client reads it."""
  body = client.request(history, list(tools), stream=stream, **rest)
  answer = await bench.post(client.path, body)
  assert answer.status_code == 200, answer.text
  if stream:
    return client.stream(answer.text)
  return client.whole(answer.json())
