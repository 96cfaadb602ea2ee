"""The run's messages in the shape that graders of other formats expect.

Graders written for OpenClaw read its event log: {type: 'message', message:
{role: 'assistant' | 'user' | 'toolResult', content: [{type: 'text', ...} |
{type: 'toolCall', name, arguments}]}}. Our canonical messages, whichever
harness they came from, become that here. Other harnesses name the same tools
otherwise, so names and argument keys go through an alias table; what the
harness said itself stays beside it under `nativeName` and in the arguments.
With `aliases=False` nothing is renamed, and name-based checks score other
harnesses lower: the option belongs to the provenance of a result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import types

# OpenClaw's tool name -> what other harnesses call it, in lower case without
# '_' and '-'.
_SAME = {
  'read': ('read', 'readfile', 'viewfile', 'view', 'openfile'),
  'write': ('write', 'writefile', 'createfile', 'create'),
  'edit': ('edit', 'multiedit', 'editfile', 'replace', 'strreplace')
  + ('strreplacebasededittool', 'applypatch'),
  'exec': ('exec', 'bash', 'shell', 'execcommand', 'executecommand')
  + ('runshellcommand', 'localshell', 'runcommand', 'terminal'),
  'web_search': ('websearch', 'search', 'googlewebsearch'),
  'web_fetch': ('webfetch', 'fetch', 'fetchurl'),
}
_NAMES = {other: name for name, others in _SAME.items() for other in others}
_KEYS = {
  'file_path': 'path',
  'filePath': 'path',
  'filename': 'path',
  'absolute_path': 'path',
  'cmd': 'command',
  'script': 'command',
  'old_string': 'oldText',
  'new_string': 'newText',
}


def tool_name(name: str) -> str:
  """OpenClaw's name for a tool of any harness; unknown ones stay."""
  key = name.rsplit('__', 1)[-1].lower().replace('_', '').replace('-', '')
  return _NAMES.get(key, name)


def arguments(text: str, *, aliases: bool = True) -> dict[str, Any]:
  """Arguments of a call as an object, known keys under both names."""
  try:
    value = json.loads(text or '{}')
  except ValueError:
    return {'raw': text}
  if not isinstance(value, dict):
    return {'raw': value}
  if aliases:
    for key, other in _KEYS.items():
      if key in value and other not in value:
        value[other] = value[key]
    if isinstance(value.get('command'), list):
      value['command'] = ' '.join(str(part) for part in value['command'])
  return value


def openclaw_events(
  messages: Sequence[types.Message], *, aliases: bool = True
) -> list[dict[str, Any]]:
  """Event list of a run.

  Args:
    messages: canonical messages in order; system messages are left out.
    aliases: see the top of this file.
  """
  events = []
  for message in messages:
    if message.role == 'system':
      continue
    blocks: list[dict[str, Any]] = []
    if message.content:
      blocks.append({'type': 'text', 'text': message.content})
    for call in message.calls:
      block = {
        'type': 'toolCall',
        'id': call.id,
        'name': tool_name(call.name) if aliases else call.name,
        'arguments': arguments(call.arguments, aliases=aliases),
      }
      if block['name'] != call.name:
        block['nativeName'] = call.name
      # Older graders read the arguments under `params`.
      block['params'] = block['arguments']
      blocks.append(block)
    inner: dict[str, Any] = {'content': blocks}
    if message.role == 'tool':
      inner |= {'role': 'toolResult', 'toolCallId': message.call_id}
      if message.name:
        inner['toolName'] = tool_name(message.name) if aliases else message.name
    else:
      inner['role'] = message.role
    events.append({'type': 'message', 'message': inner})
  return events


def final_message(messages: Sequence[types.Message]) -> str:
  """Text of the last assistant turn that has one."""
  for message in reversed(messages):
    if message.role == 'assistant' and message.content.strip():
      return message.content
  return ''


def render(
  messages: Sequence[types.Message],
  *,
  result_chars: int = 200,
  text_chars: int = 2000,
) -> str:
  """A short transcript for a judge: long texts and results are cut."""

  def cut(text: str, limit: int) -> str:
    text = text.strip()
    return text if len(text) <= limit else f'{text[:limit]} [...]'

  lines = []
  for message in messages:
    if message.role == 'system':
      continue
    if message.role == 'tool':
      lines.append(f'[tool result] {cut(message.content, result_chars)}')
      continue
    if message.content.strip():
      lines.append(f'[{message.role}] {cut(message.content, text_chars)}')
    for call in message.calls:
      lines.append(f'[call {call.name}] {cut(call.arguments, result_chars)}')
  return '\n'.join(lines)


def messages_from_json(
  data: Sequence[Mapping[str, Any]],
) -> list[types.Message]:
  """Canonical messages from JSON (as `dataclasses.asdict` makes it)."""
  return [
    types.Message(
      **{
        **item,
        'calls': tuple(types.ToolCall(**c) for c in item.get('calls', ())),
      }
    )
    for item in data
  ]
