"""OpenAI Responses: the only dialect of Codex (pi, opencode, OpenClaw can).

Requests are read by `responses_items.py`. An answer is a list of items:
reasoning, messages and calls; as a stream each item is added, filled and done,
every event carries its type and a rising number, and exactly one terminal
event ends it. A prompt that does not fit is told as Codex wants to hear it:
`response.failed` with `context_length_exceeded`, inside a 200.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from clawjax import errors, types
from clawjax.proxy import canonical, openai_chat, responses_items

NAME = 'responses'
_PING = b': ping\n\n'
_TOO_LONG = (
  'Your input exceeds the context window of this model. Please adjust your '
  'input and try again.'
)
error_body = openai_chat.error_body
error = openai_chat.error


# ---- request ---------------------------------------------------------------


def resolved(body: Mapping[str, Any], memory: Mapping[str, Any]) -> list[Any]:
  """The input's items, with what they refer to put in their place."""
  value = body.get('input')
  if isinstance(value, str):
    value = [{'type': 'message', 'role': 'user', 'content': value}]
  items: list[Any] = []
  previous = body.get('previous_response_id')
  if previous is not None:
    known = memory.get('responses', {}).get(canonical.text_of(previous))
    if known is None:
      raise errors.RequestError(
        f'previous_response_id: no response {previous!r} is known to this '
        'session',
        status=400,
        kind='previous_response_not_found',
        param='previous_response_id',
      )
    items += known
  known_items = memory.get('items', {})
  for item in canonical.list_of(value):
    if responses_items.kind(item) == 'item_reference':
      found = known_items.get(canonical.text_of(item.get('id')))
      if found is None:
        raise errors.RequestError(
          f'input: no item {item.get("id")!r} is known to this session',
          status=404,
          kind='not_found',
          param='input',
        )
      item = found
    items.append(item)
  return items


_SAMPLING = ('temperature', 'top_p', 'top_k')
# What is read of a body; the rest is ignored.
FIELDS = frozenset(
  (
    *('model', 'input', 'previous_response_id', 'instructions', 'tools'),
    *('include', 'reasoning', 'stream', 'max_output_tokens', 'tool_choice'),
    *('parallel_tool_calls', 'store', 'metadata', *_SAMPLING),
  )
)


def parse(
  body: Mapping[str, Any],
  headers: Mapping[str, str],
  memory: MutableMapping[str, Any],
) -> canonical.Request:
  """A request in canonical form.

  Raises:
    RequestError: what is asked for cannot be served.
  """
  items = resolved(body, memory)
  if not items:
    raise errors.RequestError(
      'input: wanted text or a non-empty list of items', param='input'
    )
  start = 0
  system = [canonical.text_of(body.get('instructions'))]
  while start < len(items) and responses_items.side(items[start]) == 'system':
    content = canonical.dict_of(items[start]).get('content')
    system.append(openai_chat.text_of(content))
    start += 1
  ignored: list[str] = []
  tools, spaces, freeform = responses_items.tools_of(body.get('tools'), ignored)
  include = canonical.list_of(body.get('include'))
  reasoning = canonical.dict_of(body.get('reasoning'))
  request = canonical.Request(
    dialect=NAME,
    model=canonical.text_of(body.get('model')) or 'policy',
    system=tuple(system),
    tools=tools,
    items=items,
    start=start,
    convert=responses_items.turns,
    joins=responses_items.joins,
    stream=body.get('stream') is True,
    max_tokens=canonical.positive_int(body.get('max_output_tokens')),
    thinking=False if reasoning.get('effort') == 'none' else None,
    allow_calls=body.get('tool_choice') != 'none',
    parallel=body.get('parallel_tool_calls') is not False,
    sampling={k: body[k] for k in _SAMPLING if body.get(k) is not None},
    headers=headers,
    ignored=ignored,
    extra={
      'spaces': spaces,
      'custom': freeform,
      'sealed': 'reasoning.encrypted_content' in include,
      'store': body.get('store') is not False,
      'memory': memory,
      'body': {
        k: body.get(k)
        for k in ('instructions', 'metadata', 'previous_response_id')
      },
    },
  )
  return _trailing(request)


def _trailing(request: canonical.Request) -> canonical.Request:
  """Handles input that ends in an assistant turn."""
  items = request.items
  end = len(items)
  while end > request.start and responses_items.side(items[end - 1]) in (
    'assistant',
    '',
  ):
    end -= 1
  if end == len(items):
    return request
  found = responses_items.turns(items[end:], 0)
  if not found:
    return request
  message = found[-1].messages[0]
  if message.calls or message.content:
    openai_chat.trailing(request, message)
  # Reasoning that leads to nothing is nothing to go on from.
  request.items = items[:end]
  return request


# ---- answer ----------------------------------------------------------------


def _item(
  piece: str | types.ToolCall, place: int, answer_id: str, request
) -> dict[str, Any]:
  tail = f'{answer_id}{place:02d}'
  if isinstance(piece, str):
    part = {
      'type': 'output_text',
      'text': piece,
      'annotations': [],
      'logprobs': [],
    }
    return {
      'type': 'message',
      'id': 'msg_' + tail,
      'status': 'completed',
      'role': 'assistant',
      'content': [part],
    }
  space, name = request.extra['spaces'].get(piece.name, ('', piece.name))
  item: dict[str, Any] = {
    'id': 'fc_' + tail,
    'call_id': 'call_' + piece.id,
    'name': name,
    'status': 'completed',
  }
  if space:
    item['namespace'] = space
  if piece.name in request.extra['custom']:
    text = openai_chat.freeform_text(piece)
    return {**item, 'type': 'custom_tool_call', 'input': text}
  return {**item, 'type': 'function_call', 'arguments': piece.arguments}


def reasoning_item(
  reasoning: str, answer_id: str, request: canonical.Request
) -> dict[str, Any]:
  """Thinking as the first item of an answer."""
  item: dict[str, Any] = {
    'type': 'reasoning',
    'id': f'rs_{answer_id}00',
    'summary': [{'type': 'summary_text', 'text': reasoning}],
  }
  if request.extra['sealed']:
    item['encrypted_content'] = responses_items.seal(reasoning)
  return item


def _filling(item: dict[str, Any]) -> str:
  """The text that an item is filled with."""
  part = _part(item)
  if part:
    return part['text']
  return item['input' if item['type'] == 'custom_tool_call' else 'arguments']


def _part(item: dict[str, Any]) -> dict[str, Any]:
  """The one part of a message or of thinking; {} for calls."""
  parts = item.get('content') or item.get('summary') or [{}]
  return parts[0]


def _place(index: int, item: dict[str, Any]) -> dict[str, Any]:
  """Where an event's text belongs."""
  at: dict[str, Any] = {'item_id': item['id'], 'output_index': index}
  if item['type'] == 'message':
    at['content_index'] = 0
  elif item['type'] == 'reasoning':
    at['summary_index'] = 0
  return at


# Type of item -> name of the events that fill it.
_TEXT = {
  'message': 'response.output_text',
  'reasoning': 'response.reasoning_summary_text',
  'function_call': 'response.function_call_arguments',
  'custom_tool_call': 'response.custom_tool_call_input',
}


def _items(
  answer: canonical.Answer, request: canonical.Request
) -> list[dict[str, Any]]:
  items: list[dict[str, Any]] = []
  if answer.reasoning:
    items.append(reasoning_item(answer.reasoning, answer.id, request))
  for piece in answer.pieces:
    items.append(_item(piece, len(items), answer.id, request))
  return items


def usage(answer: canonical.Answer) -> dict[str, Any]:
  return {
    'input_tokens': answer.prompt_tokens,
    'input_tokens_details': {'cached_tokens': answer.cached_tokens},
    'output_tokens': answer.output_tokens,
    'output_tokens_details': {'reasoning_tokens': answer.reasoning_tokens},
    'total_tokens': answer.prompt_tokens + answer.output_tokens,
  }


def _response(
  request: canonical.Request, answer_id: str, created: int, status: str
) -> dict[str, Any]:
  return {
    'id': 'resp_' + answer_id,
    'object': 'response',
    'created_at': created,
    'status': status,
    'error': None,
    'incomplete_details': None,
    'model': request.model,
    'output': [],
    'parallel_tool_calls': request.parallel,
    'tool_choice': 'auto' if request.allow_calls else 'none',
    'tools': [],
    'store': request.extra['store'],
    'usage': None,
    **request.extra['body'],
  }


def _finished(
  answer: canonical.Answer,
  request: canonical.Request,
  items: list[dict[str, Any]],
) -> dict[str, Any]:
  cut = answer.finish in ('length', 'context_full')
  value = _response(
    request, answer.id, answer.created, 'incomplete' if cut else 'completed'
  )
  value |= {'output': items, 'usage': usage(answer)}
  if cut:
    value['incomplete_details'] = {'reason': 'max_output_tokens'}
  if request.extra['store']:
    _store(value['id'], request, items)
  return value


def _store(
  response_id: str, request: canonical.Request, items: list[dict[str, Any]]
) -> None:
  """Remembers a response for `previous_response_id` and references."""
  memory = request.extra['memory']
  memory.setdefault('responses', {})[response_id] = [*request.items, *items]
  memory.setdefault('items', {}).update({i['id']: i for i in items})


def whole(
  answer: canonical.Answer, request: canonical.Request
) -> dict[str, Any]:
  """The answer as one body."""
  return _finished(answer, request, _items(answer, request))


class _Events:
  """Numbers events as they are made."""

  def __init__(self):
    self._next = 0

  def __call__(self, kind: str, **value: Any) -> bytes:
    data = canonical.event_data(
      {'type': kind, 'sequence_number': self._next, **value}
    )
    self._next += 1
    return b'event: ' + kind.encode() + b'\ndata: ' + data + b'\n\n'


# What an item is before it is filled.
_EMPTY: dict[str, dict[str, Any]] = {
  'message': {'content': [], 'status': 'in_progress'},
  'function_call': {'arguments': '', 'status': 'in_progress'},
  'custom_tool_call': {'input': '', 'status': 'in_progress'},
  'reasoning': {'summary': []},
}


class Stream:
  """One answer as a sequence of events."""

  def __init__(self, request: canonical.Request, answer_id: str, created: int):
    self._request = request
    self._id = answer_id
    self._created = created
    self._event = _Events()
    self._thought = self._text = ''  # What has gone out before the end.

  def _base(self, status: str) -> dict[str, Any]:
    return _response(self._request, self._id, self._created, status)

  def opening(self, prompt_tokens: int) -> bytes:
    """What is sent at once."""
    del prompt_tokens
    begun = self._base('in_progress')
    return self._event('response.created', response=begun) + self._event(
      'response.in_progress', response=begun
    )

  def keep_alive(self) -> bytes:
    """A sign of life; Codex counts events, to which no comment belongs."""
    begun = self._base('in_progress')
    return _PING + self._event('response.in_progress', response=begun)

  def live(self, reasoning: str, text: str) -> bytes:
    """More of an answer that is not whole yet."""
    out = []
    if reasoning:
      item = reasoning_item(reasoning, self._id, self._request)
      if not self._thought:
        out.append(self._begin(0, item))
      out.append(self._fill(0, item, reasoning))
      self._thought += reasoning
    if text:
      index = 1 if self._thought else 0
      item = _item(text, index, self._id, self._request)
      if not self._text:
        if self._thought:  # Text comes only when thinking is complete.
          whole = reasoning_item(self._thought, self._id, self._request)
          out.append(self._end(0, whole))
        out.append(self._begin(index, item))
      out.append(self._fill(index, item, text))
      self._text += text
    return b''.join(out)

  def closing(self, answer: canonical.Answer) -> bytes:
    """The whole answer, or what is left of it, and the end."""
    items = _items(answer, self._request)
    texts = [p for p in answer.pieces if isinstance(p, str)]
    text = self._text
    left = canonical.rest(answer.reasoning, self._thought)
    more = canonical.rest(texts[0] if texts else '', text)
    out = [self.live(left, more if text else '')]
    for i, item in enumerate(items):
      kind = item['type']
      if kind == 'reasoning':
        if not text:
          out.append(self._end(i, item))
        continue
      if kind == 'message' and text:
        text = ''  # The first message has begun already.
      else:
        out += [self._begin(i, item), self._fill(i, item, _filling(item))]
      out.append(self._end(i, item))
    value = _finished(answer, self._request, items)
    if answer.finish == 'context_full':
      # Codex repeats a body whose answer was incomplete, and compacts on this.
      value |= {
        'status': 'failed',
        'incomplete_details': None,
        'error': {'code': 'context_length_exceeded', 'message': _TOO_LONG},
      }
    out.append(self._event(f'response.{value["status"]}', response=value))
    return b''.join(out)

  def _begin(self, index: int, item: dict[str, Any]) -> bytes:
    """An item appears, empty."""
    kind = item['type']
    empty = {**item, **_EMPTY[kind]}
    out = self._event(
      'response.output_item.added', output_index=index, item=empty
    )
    at, part = _place(index, item), _part(item)
    if kind == 'message':
      name = 'response.content_part.added'
      out += self._event(name, **at, part={**part, 'text': ''})
    elif kind == 'reasoning':
      name = 'response.reasoning_summary_part.added'
      out += self._event(name, **at, part={**part, 'text': ''})
    return out

  def _fill(self, index: int, item: dict[str, Any], text: str) -> bytes:
    """More of an item's text."""
    at = _place(index, item)
    if item['type'] == 'message':
      at['logprobs'] = []
    return self._event(f'{_TEXT[item["type"]]}.delta', **at, delta=text)

  def _end(self, index: int, item: dict[str, Any]) -> bytes:
    """An item is done."""
    kind, at, text = item['type'], _place(index, item), _filling(item)
    name = f'{_TEXT[kind]}.done'
    if kind == 'message':
      out = self._event(name, **at, text=text, logprobs=[])
      name = 'response.content_part.done'
      out += self._event(name, **at, part=_part(item))
    elif kind == 'reasoning':
      out = self._event(name, **at, text=text)
      name = 'response.reasoning_summary_part.done'
      out += self._event(name, **at, part=_part(item))
    elif kind == 'function_call':
      out = self._event(name, **at, arguments=text, name=item['name'])
    else:
      out = self._event(name, **at, input=text)
    return out + self._event(
      'response.output_item.done', output_index=index, item=item
    )

  def failure(self, error: errors.RequestError) -> bytes:
    """An error after the headers have gone."""
    code = {
      'context_overflow': 'context_length_exceeded',
      'overloaded': 'rate_limit_exceeded',
    }.get(error.kind, 'server_error')
    message = str(error)
    if code == 'rate_limit_exceeded':  # Codex reads the time from the text.
      message += '. Please try again in 2s.'
    value = self._base('failed')
    value['error'] = {'code': code, 'message': message}
    return self._event('response.failed', response=value)


def overflow(prompt_tokens: int, window: int) -> errors.RequestError:
  """The error of a request that is not streamed."""
  return openai_chat.overflow(prompt_tokens, window)


def stream_overflow(request: canonical.Request) -> bytes:
  """A whole stream that says that the prompt does not fit."""
  stream = Stream(request, canonical.request_id()[4:], int(time.time()))
  failed = stream.opening(0)
  return failed + stream.failure(
    errors.RequestError(_TOO_LONG, kind='context_overflow')
  )
