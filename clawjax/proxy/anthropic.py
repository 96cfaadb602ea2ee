"""Anthropic Messages: what Claude Code speaks (and pi, opencode, OpenClaw can).

Tool results come as blocks of a user message; the text beside them (reminders)
goes inside the last tool response, so that it makes no new user turn. System
messages inside the conversation are rendered in place. Unknown fields, betas,
blocks and tools are ignored. The stream is a sequence of blocks, one open at a
time, none of them empty; `usage` tells the true prompt length from the start.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.chat import template
from clawjax.proxy import canonical, openai_chat

NAME = 'messages'
_STOP = {
  'stop': 'end_turn',
  'stop_string': 'stop_sequence',
  'length': 'max_tokens',
  'context_full': 'max_tokens',
}


# ---- request ---------------------------------------------------------------


def _block_text(block: Any) -> str:
  """Text of one content block, '' for what is not shown to the model."""
  if isinstance(block, str):
    return block
  block = canonical.dict_of(block)
  kind = block.get('type')
  if kind in ('image', 'video', 'audio'):
    return canonical.IMAGE
  if kind in ('thinking', 'redacted_thinking'):
    return ''
  if kind == 'tool_reference':
    return f'[tool: {block.get("name") or block.get("tool_name") or ""}]'
  if kind in ('tool_addition', 'tool_removal'):
    return _tool_change(block)
  if isinstance(block.get('text'), str):
    return block['text']
  if kind == 'document':
    source = canonical.dict_of(block.get('source'))
    if source.get('type') == 'text':
      return canonical.text_of(source.get('data'))
    return _blocks_text(source.get('content')) or canonical.IMAGE
  if kind == 'server_tool_use':
    arguments = json.dumps(block.get('input'), ensure_ascii=False)
    return f'[{block.get("name", "server tool")}: {arguments}]'
  return _blocks_text(block.get('content'))


def _blocks_text(content: Any) -> str:
  """Content in any shape as one string; empty blocks do not count."""
  if isinstance(content, str):
    return content
  texts = [_block_text(b) for b in canonical.list_of(content)]
  return '\n'.join(t for t in texts if t)


def _tool_change(block: Mapping[str, Any]) -> str:
  tool = canonical.dict_of(block.get('tool'))
  word = 'added' if block.get('type') == 'tool_addition' else 'removed'
  definition = canonical.dict_of(tool.get('definition'))
  if definition:
    found = tools_of([definition])
    if found:
      text = template.tojson(template.tool_object(found[0]))
      return f'[tool {word}: {text}]'
  name = tool.get('name') or tool.get('tool_name') or definition.get('name')
  return f'[tool {word}: {name or ""}]'


def _blocks(item: Any) -> list[Any]:
  content = canonical.dict_of(item).get('content')
  return [content] if isinstance(content, str) else canonical.list_of(content)


def _kind(block: Any) -> str:
  if isinstance(block, str):
    return 'text'
  return canonical.text_of(canonical.dict_of(block).get('type'))


def _has_result(item: Any) -> bool:
  return canonical.dict_of(item).get('role') == 'user' and any(
    _kind(b) == 'tool_result' for b in _blocks(item)
  )


def _assistant(item: Any) -> types.Message:
  texts, thoughts, calls = [], [], []
  for block in _blocks(item):
    kind = _kind(block)
    if kind == 'thinking':
      thoughts.append(canonical.text_of(block.get('thinking')))
    elif kind == 'tool_use':
      value = block.get('input')
      calls.append(
        types.ToolCall(
          canonical.text_of(block.get('name')),
          openai_chat.arguments_text({} if value is None else value),
          id=canonical.text_of(block.get('id')),
        )
      )
    elif text := _block_text(block):
      texts.append(text)
  return types.Message(
    'assistant',
    '\n\n'.join(texts),
    reasoning='\n'.join(t for t in thoughts if t),
    calls=tuple(calls),
  )


def _results(item: Any) -> tuple[list[types.Message], list[str]]:
  """Tool results of a user message, and the texts beside them."""
  results, texts = [], []
  for block in _blocks(item):
    if _kind(block) == 'tool_result':
      results.append(
        types.Message(
          'tool',
          _blocks_text(block.get('content')),
          call_id=canonical.text_of(block.get('tool_use_id')),
        )
      )
    elif text := _block_text(block):
      texts.append(text)
  return results, texts


def turns(items: Sequence[Any], start: int) -> list[canonical.Turn]:
  """Canonical turns of a message list from a turn boundary on."""
  found: list[canonical.Turn] = []
  calls: tuple[types.ToolCall, ...] = ()
  if start and canonical.dict_of(items[start - 1]).get('role') == 'assistant':
    calls = _assistant(items[start - 1]).calls
  i = start
  while i < len(items):
    item = canonical.dict_of(items[i])
    role = item.get('role')
    if role == 'assistant':
      message = _assistant(item)
      calls = message.calls
      i += 1
      found.append(canonical.Turn((message,), i))
      continue
    if not _has_result(item):
      i += 1
      shown = 'system' if role in ('system', 'developer') else 'user'
      message = types.Message(shown, _blocks_text(item.get('content')))
      found.append(canonical.Turn((message,), i))
      continue
    results, texts = _results(item)
    i += 1
    while i < len(items) and joins(items, i):
      more, beside = _results(items[i])
      results, texts = results + more, texts + beside
      i += 1
    ordered = list(openai_chat.in_call_order(results, calls))
    apart: tuple[canonical.Turn, ...] = ()
    if texts:
      beside = types.Message('user', '\n'.join(texts))
      apart = tuple(canonical.Turn(m, i) for m in (tuple(ordered), (beside,)))
      last = ordered[-1]
      content = '\n'.join(t for t in (last.content, *texts) if t)
      ordered[-1] = types.Message('tool', content, call_id=last.call_id)
    found.append(canonical.Turn(tuple(ordered), i, apart))
    calls = ()
  return found


def joins(items: Sequence[Any], i: int) -> bool:
  """Whether item i brings more results to those of item i - 1."""
  return (
    0 < i < len(items) and _has_result(items[i]) and _has_result(items[i - 1])
  )


def tools_of(value: Any) -> tuple[types.Tool, ...]:
  """Offered tools; server tools, which have no schema, are skipped."""
  tools = []
  for entry in canonical.list_of(value):
    entry = canonical.dict_of(entry)
    name, schema = entry.get('name'), entry.get('input_schema')
    if isinstance(name, str) and isinstance(schema, dict):
      about = canonical.text_of(entry.get('description'))
      tools.append(types.Tool(name, about, schema))
  return tuple(tools)


def _late_tools(items: Sequence[Any]) -> tuple[types.Tool, ...]:
  """Tools that the conversation adds on its way."""
  found: list[Any] = []
  for item in items:
    if canonical.dict_of(item).get('role') != 'system':
      continue
    for block in _blocks(item):
      if _kind(block) == 'tool_addition':
        tool = canonical.dict_of(block.get('tool'))
        found.append(tool.get('definition'))
  return tools_of(found)


_SAMPLING = ('temperature', 'top_p', 'top_k')
# What is read of a body; the rest is ignored.
FIELDS = frozenset(
  (
    *('model', 'messages', 'system', 'tools', 'tool_choice', 'thinking'),
    *('stream', 'max_tokens', 'stop_sequences', *_SAMPLING),
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
      'messages: at least one message is required', param='messages'
    )
  system = body.get('system')
  blocks = [system] if isinstance(system, str) else canonical.list_of(system)
  choice = canonical.dict_of(body.get('tool_choice'))
  thinking = canonical.dict_of(body.get('thinking')).get('type')
  request = canonical.Request(
    dialect=NAME,
    model=canonical.text_of(body.get('model')) or 'policy',
    system=tuple(_block_text(b) for b in blocks),
    tools=tools_of(body.get('tools')),
    late_tools=_late_tools(items),
    items=items,
    start=0,
    convert=turns,
    joins=joins,
    stream=body.get('stream') is True,
    max_tokens=canonical.positive_int(body.get('max_tokens')),
    stop=openai_chat.stop_strings(body.get('stop_sequences')),
    thinking={'disabled': False}.get(canonical.text_of(thinking)),
    allow_calls=choice.get('type') != 'none',
    parallel=choice.get('disable_parallel_tool_use') is not True,
    sampling={k: body[k] for k in _SAMPLING if body.get(k) is not None},
    headers=headers,
  )
  last = canonical.dict_of(items[-1])
  if last.get('role') == 'assistant':
    return openai_chat.trailing(request, _assistant(last))
  return request


# ---- answer ----------------------------------------------------------------


def _signature(reasoning: str) -> str:
  """Opaque and not empty; nothing depends on its coming back."""
  digest = hashlib.blake2b(reasoning.encode(), digest_size=24).digest()
  return base64.b64encode(digest).decode()


def _stop_reason(answer: canonical.Answer) -> str:
  reason = _STOP[answer.finish]
  return 'tool_use' if reason == 'end_turn' and answer.calls else reason


def _usage(prompt_tokens: int, output_tokens: int) -> dict[str, int]:
  return {
    'input_tokens': prompt_tokens,
    'cache_creation_input_tokens': 0,
    'cache_read_input_tokens': 0,
    'output_tokens': output_tokens,
  }


def _content(answer: canonical.Answer) -> list[dict[str, Any]]:
  content: list[dict[str, Any]] = []
  if answer.reasoning:
    content.append(
      {
        'type': 'thinking',
        'thinking': answer.reasoning,
        'signature': _signature(answer.reasoning),
      }
    )
  for piece in answer.pieces:
    if isinstance(piece, str):
      content.append({'type': 'text', 'text': piece})
    else:
      content.append(
        {
          'type': 'tool_use',
          'id': 'toolu_' + piece.id,
          'name': piece.name,
          'input': json.loads(piece.arguments),
        }
      )
  return content


def _message(answer_id: str, model: str) -> dict[str, Any]:
  return {
    'id': 'msg_' + answer_id,
    'type': 'message',
    'role': 'assistant',
    'model': model,
    'content': [],
    'stop_reason': None,
    'stop_sequence': None,
  }


def whole(
  answer: canonical.Answer, request: canonical.Request
) -> dict[str, Any]:
  """The answer as one body."""
  del request
  return {
    **_message(answer.id, answer.model),
    'content': _content(answer),
    'stop_reason': _stop_reason(answer),
    'stop_sequence': answer.stop_text or None,
    'usage': _usage(answer.prompt_tokens, answer.output_tokens),
  }


def _event(kind: str, **value: Any) -> bytes:
  data = canonical.event_data({'type': kind, **value})
  return b'event: ' + kind.encode() + b'\ndata: ' + data + b'\n\n'


_PING = _event('ping')


class Stream:
  """One answer as a sequence of events."""

  def __init__(self, request: canonical.Request, answer_id: str, created: int):
    del created
    self._message = _message(answer_id, request.model)
    self._thought = self._text = ''  # What has gone out before the end.

  def opening(self, prompt_tokens: int) -> bytes:
    """What is sent at once."""
    message = {**self._message, 'usage': _usage(prompt_tokens, 1)}
    return _event('message_start', message=message) + _PING

  def live(self, reasoning: str, text: str) -> bytes:
    """More of an answer that is not whole yet."""
    out = []
    if reasoning:
      if not self._thought:
        out.append(_start(0, _EMPTY['thinking']))
      out.append(_delta(0, type='thinking_delta', thinking=reasoning))
      self._thought += reasoning
    if text:
      index = 1 if self._thought else 0
      if not self._text:
        if self._thought:  # Text comes only when thinking is complete.
          out.append(_signed(0, _signature(self._thought)))
        out.append(_start(index, _EMPTY['text']))
      out.append(_delta(index, type='text_delta', text=text))
      self._text += text
    return b''.join(out)

  def closing(self, answer: canonical.Answer) -> bytes:
    """The whole answer, or what is left of it, and the end."""
    content = _content(answer)
    texts = [b['text'] for b in content if b['type'] == 'text']
    thought, text = self._thought, self._text
    left = canonical.rest(answer.reasoning, thought)
    more = canonical.rest(texts[0] if texts else '', text)
    out = [self.live(left, more if text else '')]
    for i, block in enumerate(content):
      kind = block['type']
      if kind == 'thinking':
        if not text:
          out.append(_signed(i, block['signature']))
        continue
      if kind == 'tool_use':
        out.append(_start(i, {**block, 'input': {}}))
        arguments = next(
          c.arguments for c in answer.calls if 'toolu_' + c.id == block['id']
        )
        out.append(_delta(i, type='input_json_delta', partial_json=arguments))
      elif not text:
        out.append(_start(i, _EMPTY['text']))
        out.append(_delta(i, type='text_delta', text=block['text']))
      else:
        text = ''  # The first block of text has begun already.
      out.append(_stop(i))
    out.append(
      _event(
        'message_delta',
        delta={
          'stop_reason': _stop_reason(answer),
          'stop_sequence': answer.stop_text or None,
        },
        usage=_usage(answer.prompt_tokens, answer.output_tokens),
      )
    )
    out.append(_event('message_stop'))
    return b''.join(out)

  def keep_alive(self) -> bytes:
    """A sign of life."""
    return _PING

  def failure(self, error: errors.RequestError) -> bytes:
    """An error after the headers have gone."""
    data = canonical.event_data(error_body(error))
    return b'event: error\ndata: ' + data + b'\n\n'


_EMPTY: dict[str, dict[str, Any]] = {
  'thinking': {'type': 'thinking', 'thinking': '', 'signature': ''},
  'text': {'type': 'text', 'text': ''},
}


def _start(index: int, block: dict[str, Any]) -> bytes:
  return _event('content_block_start', index=index, content_block=block)


def _delta(index: int, **delta: Any) -> bytes:
  return _event('content_block_delta', index=index, delta=delta)


def _stop(index: int) -> bytes:
  return _event('content_block_stop', index=index)


def _signed(index: int, signature: str) -> bytes:
  """The end of a block of thinking."""
  signed = _delta(index, type='signature_delta', signature=signature)
  return signed + _stop(index)


_ERRORS = {
  400: 'invalid_request_error',
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  504: 'timeout_error',
  529: 'overloaded_error',
}


def _status(error: errors.RequestError) -> int:
  return 529 if error.kind == 'overloaded' else error.status


def error_body(error: errors.RequestError) -> dict[str, Any]:
  """An error in Anthropic's shape."""
  status = _status(error)
  fallback = 'api_error' if status >= 500 else 'invalid_request_error'
  return {
    'type': 'error',
    'error': {'type': _ERRORS.get(status, fallback), 'message': str(error)},
    'request_id': canonical.request_id(),
  }


def error(
  error: errors.RequestError,
) -> tuple[int, dict[str, Any], dict[str, str]]:
  """Status, body and headers of an error."""
  body = error_body(error)
  headers = {'request-id': body['request_id']}
  if error.kind == 'overloaded':
    headers['retry-after'] = '2'
  return _status(error), body, headers


def overflow(prompt_tokens: int, window: int) -> errors.RequestError:
  """The error that makes Claude Code compact."""
  return errors.RequestError(
    f'prompt is too long: {prompt_tokens} tokens > {window} maximum',
    kind='context_overflow',
  )
