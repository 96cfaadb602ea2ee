"""Answers of hosted APIs, whole or as an event stream, as one JSON object.

  read(body, dialect, events=...)        bytes -> the answer's JSON object
  text(answer, dialect)                  what a person would read of it
  conversation(request, answer, dialect) canonical messages, the answer last

An event stream is put together into the object that the same API gives without
streaming, so that what follows knows one shape per dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax import types
from clawjax.chat import template
from clawjax.proxy import anthropic, canonical, openai_chat, openai_responses

_DIALECTS = {
  'chat': openai_chat,
  'messages': anthropic,
  'responses': openai_responses,
}


def read(body: bytes, dialect: str, *, events: bool) -> dict[str, Any] | None:
  """The answer as one JSON object, or None when it cannot be read."""
  if not events:
    try:
      value = json.loads(body)
    except ValueError:
      return None
    return value if isinstance(value, dict) else None
  join = {
    'chat': _join_chat,
    'messages': _join_messages,
    'responses': _join_responses,
  }[dialect]
  return join(_events(body))


def text(answer: Mapping[str, Any], dialect: str) -> str:
  """Visible text, then tool calls one a line."""
  message = _last(conversation({}, answer, dialect)[0])
  lines = [message.content] if message.content else []
  lines += [f'{c.name}({c.arguments})' for c in message.calls]
  return '\n'.join(lines)


def conversation(
  request: Mapping[str, Any], answer: Mapping[str, Any], dialect: str
) -> tuple[list[types.Message], list[dict[str, Any]]]:
  """Messages of a request with the answer behind them, and the tools."""
  said = _items(answer, dialect)
  parsed = None
  if request:
    try:
      parsed = _DIALECTS[dialect].parse(request, {}, {})
    except Exception:  # a request that the API took and we cannot read
      parsed = None
  if parsed is None:
    blank = {
      'messages': [{'role': 'user', 'content': 'x'}],
      'input': 'x',
      'max_tokens': 1,
    }
    parsed = _DIALECTS[dialect].parse(blank, {}, {})
    parsed.items, parsed.start, parsed.system = [], 0, ()
  parsed.items = [*parsed.items, *said]
  found = [types.Message('system', block) for block in parsed.system if block]
  for turn in parsed.turns(parsed.start):
    found += turn.messages
  return found, [template.tool_object(t) for t in parsed.tools]


def _items(answer: Mapping[str, Any], dialect: str) -> list[Any]:
  """The answer as items of a later request."""
  if dialect == 'chat':
    choices = canonical.list_of(answer.get('choices'))
    first = canonical.dict_of(choices[0] if choices else None)
    return [{'role': 'assistant', **canonical.dict_of(first.get('message'))}]
  if dialect == 'messages':
    content = canonical.list_of(answer.get('content'))
    return [{'role': 'assistant', 'content': content}]
  return canonical.list_of(answer.get('output'))


def _last(messages: list[types.Message]) -> types.Message:
  return messages[-1] if messages else types.Message('assistant')


# ---- event streams ---------------------------------------------------------


def _events(body: bytes) -> Iterator[dict[str, Any]]:
  """JSON objects of the data lines."""
  for block in body.replace(b'\r\n', b'\n').split(b'\n\n'):
    data = b'\n'.join(
      line[5:].lstrip(b' ')
      for line in block.split(b'\n')
      if line.startswith(b'data:')
    )
    if not data or data == b'[DONE]':
      continue
    try:
      value = json.loads(data)
    except ValueError:
      continue
    if isinstance(value, dict):
      yield value


def _join_chat(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
  message: dict[str, Any] = {'role': 'assistant', 'content': ''}
  calls: dict[int, dict[str, Any]] = {}
  out: dict[str, Any] = {}
  finish = None
  for event in events:
    out.setdefault('id', event.get('id'))
    if event.get('usage'):
      out['usage'] = event['usage']
    for choice in canonical.list_of(event.get('choices')):
      delta = canonical.dict_of(choice.get('delta'))
      finish = choice.get('finish_reason') or finish
      for name in ('content', 'reasoning_content', 'reasoning'):
        if isinstance(delta.get(name), str):
          message[name] = message.get(name, '') + delta[name]
      for part in canonical.list_of(delta.get('tool_calls')):
        call = calls.setdefault(
          part.get('index', len(calls)),
          {'type': 'function', 'function': {'name': '', 'arguments': ''}},
        )
        if part.get('id'):
          call['id'] = part['id']
        function = canonical.dict_of(part.get('function'))
        for name in ('name', 'arguments'):
          call['function'][name] += function.get(name) or ''
  if finish is None:
    return None
  if calls:
    message['tool_calls'] = [calls[i] for i in sorted(calls)]
  choice = {'index': 0, 'message': message, 'finish_reason': finish}
  return out | {'object': 'chat.completion', 'choices': [choice]}


_DELTAS = {
  'text_delta': 'text',
  'thinking_delta': 'thinking',
  'signature_delta': 'signature',
}


def _join_messages(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
  out: dict[str, Any] = {}
  blocks: dict[int, dict[str, Any]] = {}
  arguments: dict[int, str] = {}
  ended = False
  for event in events:
    kind, i = event.get('type'), event.get('index', 0)
    if kind == 'message_start':
      out = dict(canonical.dict_of(event.get('message')))
    elif kind == 'content_block_start':
      blocks[i] = dict(canonical.dict_of(event.get('content_block')))
    elif kind == 'content_block_delta' and i in blocks:
      delta = canonical.dict_of(event.get('delta'))
      if delta.get('type') == 'input_json_delta':
        arguments[i] = arguments.get(i, '') + delta.get('partial_json', '')
      elif name := _DELTAS.get(delta.get('type', '')):
        blocks[i][name] = blocks[i].get(name, '') + delta.get(name, '')
    elif kind == 'message_delta':
      out |= canonical.dict_of(event.get('delta'))
      usage = canonical.dict_of(event.get('usage'))
      out['usage'] = {**canonical.dict_of(out.get('usage')), **usage}
    elif kind == 'message_stop':
      ended = True
  for i, partial in arguments.items():
    try:
      blocks[i]['input'] = json.loads(partial or '{}')
    except ValueError:
      return None
  if not ended:
    return None
  return out | {'content': [blocks[i] for i in sorted(blocks)]}


def _join_responses(events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
  last = None
  for event in events:
    if event.get('type') in ('response.completed', 'response.incomplete'):
      last = event.get('response')
  return last if isinstance(last, dict) else None
