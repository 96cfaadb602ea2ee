"""The text of the templates we ship: what stands between control tokens.

A turn is a list of neighbouring messages that share one pair of control
tokens: one system, user or assistant message, or all tool results between two
assistant turns. Functions here give the text of a turn without its control
tokens; `render.py` puts ids around it. Two families:

  qwen3        tool calls as JSON inside `<tool_call>` (Hermes)
  qwen3_coder  tools listed as XML elements; tool calls as
               `<function=..><parameter=..>` inside `<tool_call>`

Both follow the published templates to the character; values that a template
prints with Jinja's `string` filter come out as Python writes them. One deviation from the stock templates, on purpose: thinking of earlier turns
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
_CODER_SYSTEM = (
  'You are Qwen, a helpful AI assistant that can interact with a computer to '
  'solve tasks.'
)
_CODER_TOOLS = (
  '# Tools\n\nYou have access to the following functions:\n\n<tools>{tools}\n'
  '</tools>\n\nIf you choose to call a function ONLY reply in the following '
  'format with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n'
  '<parameter=example_parameter_1>\nvalue_1\n</parameter>\n'
  '<parameter=example_parameter_2>\nThis is the value for the second '
  'parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n'
  '</tool_call>\n\n<IMPORTANT>\nReminder:\n'
  '- Function calls MUST follow the specified format: an inner '
  '<function=...></function> block must be nested within '
  '<tool_call></tool_call> XML tags\n'
  '- Required parameters MUST be specified\n'
  '- You may provide optional reasoning for your function call in natural '
  'language BEFORE the function call, but NOT after\n'
  '- If there is no function call available, answer the question like normal '
  'with your current knowledge and do not tell the user about function calls\n'
  '</IMPORTANT>'
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


def _coder_value(value: Any) -> str:
  """A value as the coder template prints it."""
  return tojson(value) if isinstance(value, (dict, list)) else str(value)


def _coder_extras(value: Any, known: Sequence[str]) -> str:
  """What a schema says beside its known keys, an element each."""
  if not isinstance(value, Mapping):
    return ''
  return ''.join(
    f'\n<{key}>{_coder_value(item)}</{key}>'
    for key, item in value.items()
    if key not in known
  )


def _coder_tool(tool: types.Tool) -> str:
  """A tool as an XML element."""
  out = f'\n<function>\n<name>{tool.name}</name>'
  if tool.description:
    out += f'\n<description>{tool.description.strip()}</description>'
  out += '\n<parameters>'
  properties = tool.parameters.get('properties')
  if isinstance(properties, Mapping):
    for name, fields in properties.items():
      out += f'\n<parameter>\n<name>{name}</name>'
      if isinstance(fields, Mapping):
        if 'type' in fields:
          out += f'\n<type>{fields["type"]}</type>'
        if 'description' in fields:
          about = str(fields['description']).strip()
          out += f'\n<description>{about}</description>'
      out += _coder_extras(fields, ('name', 'type', 'description'))
      out += '\n</parameter>'
  out += _coder_extras(tool.parameters, ('type', 'properties'))
  return out + '\n</parameters>\n</function>'


def head(system: str, tools: Sequence[types.Tool], *, family: str) -> str:
  """Text of the leading system turn, '' if there is none."""
  if not tools:
    return system
  if family == 'qwen3':
    listing = ''.join('\n' + tojson(tool_object(t)) for t in tools)
    block = _HERMES_TOOLS.format(tools=listing)
  else:
    block = _CODER_TOOLS.format(tools=''.join(map(_coder_tool, tools)))
    system = system or _CODER_SYSTEM
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
    # In JSON's spelling, as the model may write it: the template's own False
    # and None are Python's.
    shown = value if isinstance(value, str) else tojson(value)
    lines.append(f'<parameter={name}>\n{shown}\n</parameter>')
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
  between = '\n' if content else ''
  if family == 'qwen3_coder' and message.calls:
    content = content.strip()
    between = '\n\n' if content else ''
  text += content
  for i, call in enumerate(message.calls):
    text += ('\n' if i else between) + one(call)
  return text


def turn_text(
  turn: Sequence[types.Message], *, family: str, thinking: bool
) -> tuple[str, str]:
  """Role name and text of a turn."""
  first = turn[0]
  if first.role == 'tool':
    parts = [f'\n<tool_response>\n{m.content}\n</tool_response>' for m in turn]
    return 'user', ''.join(parts) + ('\n' if family == 'qwen3_coder' else '')
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
