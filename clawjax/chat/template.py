"""The text of the templates we ship: what stands between control tokens.

A turn is a list of neighbouring messages that share one pair of control
tokens: one system, user or assistant message, or all tool results between two
assistant turns. Functions here give the text of a turn without its control
tokens; `render.py` puts ids around it. Two families:

  qwen3        tool calls as JSON inside `<tool_call>` (Hermes)
  qwen3_coder  tool calls as `<function=..><parameter=..>` inside `<tool_call>`

One deviation from the stock templates, on purpose: thinking of earlier turns
is kept, so that a longer conversation only ever appends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import types

FAMILIES = ('qwen3', 'qwen3_coder')

_HERMES_TOOLS = (
  '# Tools\n\nYou may call one or more functions to assist with the user '
  'query.\n\nYou are provided with function signatures within '
  '<tools></tools> XML tags:\n<tools>{tools}\n</tools>\n\nFor each function '
  'call, return a json object with function name and arguments within '
  '<tool_call></tool_call> XML tags:\n<tool_call>\n{{"name": '
  '<function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
_CODER_TOOLS = (
  '# Tools\n\nYou have access to the following functions:\n\n<tools>{tools}\n'
  '</tools>\n\nIf you choose to call a function ONLY reply in the following '
  'format with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n'
  '<parameter=example_parameter_1>\nvalue_1\n</parameter>\n'
  '<parameter=example_parameter_2>\nThis is the value for the second '
  'parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n'
  '</tool_call>'
)


def tojson(value: Any) -> str:
  """JSON as the templates write it: insertion order, nothing escaped."""
  return json.dumps(value, ensure_ascii=False)


def tool_object(tool: types.Tool) -> dict[str, Any]:
  """A tool in its fixed envelope; the schema keeps the client's order."""
  function: dict[str, Any] = {'name': tool.name}
  if tool.description:
    function['description'] = tool.description
  function['parameters'] = tool.parameters
  return {'type': 'function', 'function': function}


def head(system: str, tools: Sequence[types.Tool], *, family: str) -> str:
  """Text of the leading system turn, '' if there is none."""
  if not tools:
    return system
  shape = _HERMES_TOOLS if family == 'qwen3' else _CODER_TOOLS
  listing = ''.join('\n' + tojson(tool_object(t)) for t in tools)
  block = shape.format(tools=listing)
  return f'{system}\n\n{block}' if system else block


def arguments_object(text: str) -> Mapping[str, Any] | None:
  """Arguments text as a mapping, None when it is none."""
  try:
    value = json.loads(text, strict=False) if text.strip() else {}
  except (ValueError, RecursionError):
    return None
  return value if isinstance(value, dict) else None


def _hermes_call(call: types.ToolCall) -> str:
  arguments = call.arguments if call.arguments.strip() else '{}'
  return (
    f'<tool_call>\n{{"name": "{call.name}", "arguments": {arguments}}}\n'
    '</tool_call>'
  )


def _coder_call(call: types.ToolCall) -> str:
  arguments = arguments_object(call.arguments)
  if arguments is None:  # Not a mapping: nothing to list, but no crash.
    arguments = {'arguments': call.arguments}
  lines = [f'<tool_call>\n<function={call.name}>']
  for name, value in arguments.items():
    text = value if isinstance(value, str) else tojson(value)
    lines.append(f'<parameter={name}>\n{text}\n</parameter>')
  return '\n'.join(lines) + '\n</function>\n</tool_call>'


def assistant(message: types.Message, *, family: str, thinking: bool) -> str:
  """Text of an assistant turn that was not sampled by us.

  Args:
    message: the turn.
    family: template family.
    thinking: whether reasoning is shown at all.
  """
  one = _hermes_call if family == 'qwen3' else _coder_call
  content = message.content
  text = ''
  reasoning = message.reasoning.strip('\n')
  if thinking and reasoning:
    text = f'<think>\n{reasoning}\n</think>\n\n'
    content = content.lstrip('\n')
  text += content
  for i, call in enumerate(message.calls):
    text += ('\n' if content or i else '') + one(call)
  return text


def turn_text(
  turn: Sequence[types.Message], *, family: str, thinking: bool
) -> tuple[str, str]:
  """Role name and text of a turn."""
  first = turn[0]
  if first.role == 'tool':
    parts = [f'\n<tool_response>\n{m.content}\n</tool_response>' for m in turn]
    return 'user', ''.join(parts)
  if first.role == 'assistant':
    text = assistant(first, family=family, thinking=thinking)
    return 'assistant', '\n' + text
  return first.role, '\n' + first.content


def turns(
  messages: Sequence[types.Message],
) -> list[tuple[types.Message, ...]]:
  """Groups messages into turns: neighbouring tool results share one."""
  groups: list[list[types.Message]] = []
  for message in messages:
    if groups and message.role == 'tool' == groups[-1][0].role:
      groups[-1].append(message)
    else:
      groups.append([message])
  return [tuple(g) for g in groups]


def split_system(
  messages: Sequence[types.Message],
) -> tuple[str, Sequence[types.Message]]:
  """Merges the leading run of system messages; later ones stay in place."""
  n = 0
  while n < len(messages) and messages[n].role == 'system':
    n += 1
  system = '\n\n'.join(m.content for m in messages[:n] if m.content)
  return system, messages[n:]
