"""OpenAI Chat Completions: what opencode, qwen-code, pi, OpenClaw, mini speak.

Tolerant of what comes (content as string, null or parts in every role,
`developer`, broken history, unknown fields), strict in what is said: role
chunk, reasoning, content, calls, one finish chunk, usage when asked for,
`[DONE]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.proxy import canonical

NAME = 'chat'
_PING = b': ping\n\n'
_LEADING = ('system', 'developer')
_FINISH = {
  'stop': 'stop',
  'stop_string': 'stop',
  'length': 'length',
  'context_full': 'length',
}


# ---- request ---------------------------------------------------------------


def text_of(content: Any) -> str:
  """Content in any shape as one string."""
  if isinstance(content, str):
    return content
  parts = []
  for part in canonical.list_of(content):
    if isinstance(part, str):
      parts.append(part)
      continue
    part = canonical.dict_of(part)
    kind = part.get('type')
    if kind in ('image_url', 'image', 'input_image', 'input_audio', 'file'):
      parts.append(canonical.IMAGE)
    else:
      text = part.get('text', part.get('refusal'))
      if isinstance(text, str):
        parts.append(text)
  return '\n'.join(parts)


def arguments_text(value: Any) -> str:
  """Arguments in history: text as it is, an object as JSON."""
  if isinstance(value, str):
    return value
  if value is None:
    return ''
  return json.dumps(value, ensure_ascii=False)


def _calls(message: Mapping[str, Any]) -> tuple[types.ToolCall, ...]:
  calls = []
  for entry in canonical.list_of(message.get('tool_calls')):
    entry = canonical.dict_of(entry)
    function = canonical.dict_of(entry.get('function'))
    custom = canonical.dict_of(entry.get('custom'))
    if custom and not function:
      text = arguments_text({'input': custom.get('input')})
      name = canonical.text_of(custom.get('name'))
    else:
      text = arguments_text(function.get('arguments'))
      name = canonical.text_of(function.get('name'))
    calls.append(
      types.ToolCall(name, text, id=canonical.text_of(entry.get('id')))
    )
  old = canonical.dict_of(message.get('function_call'))
  if old and not calls:
    calls.append(
      types.ToolCall(
        canonical.text_of(old.get('name')), arguments_text(old.get('arguments'))
      )
    )
  return tuple(calls)


def _message(item: Any) -> types.Message:
  item = canonical.dict_of(item)
  role = item.get('role')
  content = text_of(item.get('content'))
  if role == 'assistant':
    reasoning = item.get('reasoning_content')
    if not isinstance(reasoning, str) or not reasoning:
      reasoning = canonical.text_of(item.get('reasoning'))
    return types.Message(
      'assistant', content, reasoning=reasoning, calls=_calls(item)
    )
  if role in ('tool', 'function'):
    return types.Message(
      'tool',
      content,
      call_id=canonical.text_of(item.get('tool_call_id')),
      name=canonical.text_of(item.get('name')),
    )
  return types.Message('system' if role in _LEADING else 'user', content)


def in_call_order(
  results: Sequence[types.Message], calls: Sequence[types.ToolCall]
) -> tuple[types.Message, ...]:
  """Tool results in the order of their calls; the template has no ids."""
  order: dict[str, int] = {}
  for i, call in enumerate(calls):
    order.setdefault(call.id, i)
  if len(results) < 2 or not all(r.call_id in order for r in results):
    return tuple(results)
  return tuple(sorted(results, key=lambda r: order[r.call_id]))


def turns(items: Sequence[Any], start: int) -> list[canonical.Turn]:
  """Canonical turns of a message list from a turn boundary on."""
  found: list[canonical.Turn] = []
  before = _message(items[start - 1]) if start else None
  calls = before.calls if before and before.role == 'assistant' else ()
  i = start
  while i < len(items):
    message = _message(items[i])
    i += 1
    if message.role != 'tool':
      found.append(canonical.Turn((message,), i))
      calls = message.calls
      continue
    results = [message]
    while i < len(items) and joins(items, i):
      results.append(_message(items[i]))
      i += 1
    found.append(canonical.Turn(in_call_order(results, calls), i))
    calls = ()
  return found


def joins(items: Sequence[Any], i: int) -> bool:
  """Whether item i is a tool result right after another one."""

  def is_tool(item: Any) -> bool:
    return canonical.dict_of(item).get('role') in ('tool', 'function')

  return 0 < i < len(items) and is_tool(items[i]) and is_tool(items[i - 1])


def tools_of(value: Any) -> tuple[types.Tool, ...]:
  """Offered tools in the Chat shape; what is no function is skipped."""
  tools = []
  for entry in canonical.list_of(value):
    entry = canonical.dict_of(entry)
    function = canonical.dict_of(entry.get('function'))
    custom = canonical.dict_of(entry.get('custom'))
    name = function.get('name') or custom.get('name')
    if not isinstance(name, str):
      continue
    schema = canonical.dict_of(function.get('parameters'))
    if custom and not function:
      schema = FREEFORM
    tools.append(
      types.Tool(
        name,
        canonical.text_of((function or custom).get('description')),
        schema or {'type': 'object', 'properties': {}},
      )
    )
  return tuple(tools)


# A freeform tool as the model sees it.
FREEFORM = {
  'type': 'object',
  'properties': {'input': {'type': 'string'}},
  'required': ['input'],
}


def stop_strings(value: Any) -> tuple[str, ...]:
  """Stop strings from a string, a list or nothing."""
  if isinstance(value, str):
    value = [value]
  return tuple(s for s in canonical.list_of(value) if isinstance(s, str) and s)


def _thinking(body: Mapping[str, Any]) -> bool | None:
  extra = canonical.dict_of(body.get('chat_template_kwargs'))
  for value in (body.get('enable_thinking'), extra.get('enable_thinking')):
    if isinstance(value, bool):
      return value
  if body.get('reasoning_effort') == 'none':
    return False
  return None


_SAMPLING = ('temperature', 'top_p', 'top_k', 'min_p', 'seed')
# What is read of a body; the rest is ignored.
FIELDS = frozenset(
  (
    *('model', 'messages', 'n', 'tools', 'tool_choice', 'stream'),
    *('parallel_tool_calls', 'stream_options', 'max_completion_tokens'),
    *('max_tokens', 'stop', 'logprobs', 'chat_template_kwargs'),
    *('enable_thinking', 'reasoning_effort', *_SAMPLING),
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
  del memory
  items = body.get('messages')
  if not isinstance(items, list) or not items:
    raise errors.RequestError(
      'messages: wanted a non-empty list of messages', param='messages'
    )
  n = body.get('n')
  if n is not None and n != 1:
    raise errors.RequestError(
      f'n: wanted 1 answer per request, got {n!r}', param='n'
    )
  start = 0
  system = []
  while (
    start < len(items)
    and canonical.dict_of(items[start]).get('role') in _LEADING
  ):
    system.append(_message(items[start]).content)
    start += 1
  choice = body.get('tool_choice')
  allowed = body.get('parallel_tool_calls') is not False
  options = canonical.dict_of(body.get('stream_options'))
  request = canonical.Request(
    dialect=NAME,
    model=canonical.text_of(body.get('model')) or 'policy',
    system=tuple(system),
    tools=tools_of(body.get('tools')),
    items=items,
    start=start,
    convert=turns,
    joins=joins,
    stream=body.get('stream') is True,
    max_tokens=canonical.positive_int(body.get('max_completion_tokens'))
    or canonical.positive_int(body.get('max_tokens')),
    stop=stop_strings(body.get('stop')),
    thinking=_thinking(body),
    allow_calls=choice != 'none',
    parallel=allowed,
    sampling={k: body[k] for k in _SAMPLING if body.get(k) is not None},
    headers=headers,
    extra={
      'usage': options.get('include_usage') is True,
      'logprobs': body.get('logprobs') is True,
      'custom': {
        canonical.text_of(canonical.dict_of(t.get('custom')).get('name'))
        for t in canonical.list_of(body.get('tools'))
        if isinstance(t, dict) and t.get('type') == 'custom'
      },
    },
  )
  return trailing(request, _message(items[-1]) if start < len(items) else None)


def trailing(request: canonical.Request, last: types.Message | None):
  """Turns a trailing assistant message into a prefill.

  Raises:
    RequestError: it holds tool calls, which nothing can go on from.
  """
  if last is None or last.role != 'assistant':
    return request
  if last.calls:
    raise errors.RequestError(
      'messages: the last message is an assistant message with tool calls; '
      'wanted their results, or a user message, after it',
      param='messages',
    )
  request.prefill = last.content
  request.items = request.items[:-1]
  return request


# ---- answer ----------------------------------------------------------------


def _finish(answer: canonical.Answer) -> str:
  reason = _FINISH[answer.finish]
  return 'tool_calls' if reason == 'stop' and answer.calls else reason


def _usage(answer: canonical.Answer) -> dict[str, Any]:
  return {
    'prompt_tokens': answer.prompt_tokens,
    'completion_tokens': answer.output_tokens,
    'total_tokens': answer.prompt_tokens + answer.output_tokens,
    'prompt_tokens_details': {'cached_tokens': answer.cached_tokens},
    'completion_tokens_details': {'reasoning_tokens': answer.reasoning_tokens},
  }


def call_object(
  call: types.ToolCall, request: canonical.Request, arguments: str | None = None
) -> dict[str, Any]:
  """A delivered call; freeform tools get their raw text back."""
  text = call.arguments if arguments is None else arguments
  if call.name in request.extra.get('custom', ()):
    return {
      'id': 'call_' + call.id,
      'type': 'custom',
      'custom': {'name': call.name, 'input': freeform_text(call)},
    }
  return {
    'id': 'call_' + call.id,
    'type': 'function',
    'function': {'name': call.name, 'arguments': text},
  }


def freeform_text(call: types.ToolCall) -> str:
  """Raw text of a call to a freeform tool."""
  value = canonical.dict_of(canonical.loads(call.arguments.encode()))
  text = value.get('input')
  return text if isinstance(text, str) else call.arguments


def _logprobs(answer: canonical.Answer) -> dict[str, Any]:
  return {
    'content': [
      {
        'token': token,
        'logprob': value,
        'bytes': list(token.encode('utf-8', 'replace')),
        'top_logprobs': [],
      }
      for token, value in answer.logprobs
    ],
    'refusal': None,
  }


def whole(answer: canonical.Answer, request: canonical.Request) -> dict:
  """The answer as one body."""
  calls = answer.calls
  message: dict[str, Any] = {
    'role': 'assistant',
    'content': answer.text if answer.text or not calls else None,
    'refusal': None,
  }
  if answer.reasoning:
    message['reasoning_content'] = answer.reasoning
  if calls:
    message['tool_calls'] = [call_object(c, request) for c in calls]
  return {
    'id': 'chatcmpl-' + answer.id,
    'object': 'chat.completion',
    'created': answer.created,
    'model': answer.model,
    'choices': [
      {
        'index': 0,
        'message': message,
        'logprobs': (
          _logprobs(answer) if request.extra.get('logprobs') else None
        ),
        'finish_reason': _finish(answer),
      }
    ],
    'usage': _usage(answer),
  }


def _event(value: Any) -> bytes:
  return b'data: ' + canonical.event_data(value) + b'\n\n'


class Stream:
  """One answer as a stream of chunks."""

  def __init__(self, request: canonical.Request, answer_id: str, created: int):
    self._request = request
    self._told = ('', '')
    self._base = {
      'id': 'chatcmpl-' + answer_id,
      'object': 'chat.completion.chunk',
      'created': created,
      'model': request.model,
    }

  def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {
      'index': 0,
      'delta': delta,
      'logprobs': None,
      'finish_reason': reason,
    }
    value = {**self._base, 'choices': [choice]}
    if self._request.extra.get('usage'):
      value['usage'] = None
    return _event(value)

  def opening(self, prompt_tokens: int) -> bytes:
    """What is sent at once."""
    del prompt_tokens
    return self._chunk({'role': 'assistant', 'content': ''})

  def keep_alive(self) -> bytes:
    """A sign of life; qwen-code counts chunks, to which no comment belongs."""
    return _PING + self._chunk({'content': ''})

  def live(self, reasoning: str, text: str) -> bytes:
    """More of an answer that is not whole yet."""
    self._told = self._told[0] + reasoning, self._told[1] + text
    out = []
    if reasoning:
      out.append(self._chunk({'reasoning_content': reasoning}))
    if text:
      out.append(self._chunk({'content': text}))
    return b''.join(out)

  def closing(self, answer: canonical.Answer) -> bytes:
    """The whole answer, or what is left of it, and the end."""
    thought, told = self._told
    out = [
      self.live(
        canonical.rest(answer.reasoning, thought),
        canonical.rest(answer.text, told),
      )
    ]
    for i, call in enumerate(answer.calls):
      first = call_object(call, self._request, '')
      out.append(self._chunk({'tool_calls': [{'index': i, **first}]}))
      if first['type'] == 'function':
        rest = {'index': i, 'function': {'arguments': call.arguments}}
        out.append(self._chunk({'tool_calls': [rest]}))
    last = self._chunk({}, _finish(answer))
    if self._request.extra.get('logprobs'):
      value = json.loads(last[6:])
      value['choices'][0]['logprobs'] = _logprobs(answer)
      last = _event(value)
    out.append(last)
    if self._request.extra.get('usage'):
      out.append(_event({**self._base, 'choices': [], 'usage': _usage(answer)}))
    out.append(b'data: [DONE]\n\n')
    return b''.join(out)

  def failure(self, error: errors.RequestError) -> bytes:
    """An error after the headers have gone."""
    return _event(error_body(error))


def error(
  error: errors.RequestError,
) -> tuple[int, dict[str, Any], dict[str, str]]:
  """Status, body and headers of an error."""
  return error.status, error_body(error), {}


def error_body(error: errors.RequestError) -> dict[str, Any]:
  """An error in OpenAI's shape."""
  kind, code = {
    'context_overflow': ('invalid_request_error', 'context_length_exceeded'),
    'authentication': ('authentication_error', 'invalid_api_key'),
    'not_found': ('invalid_request_error', 'not_found'),
    'previous_response_not_found': (
      'invalid_request_error',
      'previous_response_not_found',
    ),
    'too_large': ('invalid_request_error', 'request_too_large'),
    'overloaded': ('server_error', 'server_is_overloaded'),
    'engine': ('server_error', 'server_error'),
  }.get(error.kind, ('invalid_request_error', None))
  return {
    'error': {
      'message': str(error),
      'type': kind,
      'param': error.param,
      'code': code,
    }
  }


def overflow(prompt_tokens: int, window: int) -> errors.RequestError:
  """The error that makes clients of this dialect compact."""
  return errors.RequestError(
    f"This model's maximum context length is {window} tokens. However, your "
    f'messages resulted in {prompt_tokens} tokens. Please reduce the length '
    'of the messages.',
    kind='context_overflow',
    param='messages',
  )
