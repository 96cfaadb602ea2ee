"""Items of the Responses API to canonical turns, and tools to flat names.

One assistant turn is a run of items: reasoning, message, calls. Codex replays
them without ids, so nothing here depends on item ids. Freeform (`custom`)
tools are functions with one string `input` to the model; tools of a
`namespace` get one flat name.
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import types
from clawjax.proxy import canonical, openai_chat

log = logging.getLogger(__name__)

_BLOB = 'clawjax-v1.'
_SUMMARY = 'Summary of the conversation so far:\n\n'
_CALLS = frozenset({'function_call', 'custom_tool_call', 'local_shell_call'})
# Items of an assistant turn that the model is not shown again.
_SILENT = frozenset(
  {
    'web_search_call',
    'file_search_call',
    'computer_call',
    'image_generation_call',
    'code_interpreter_call',
    'mcp_call',
    'mcp_list_tools',
    'tool_search_call',
  }
)


# ---- reasoning -------------------------------------------------------------


def seal(reasoning: str) -> str:
  """Reasoning as an opaque blob that says whose it is."""
  packed = zlib.compress(reasoning.encode('utf-8', 'replace'))
  return _BLOB + base64.urlsafe_b64encode(packed).decode()


def unseal(blob: Any) -> str | None:
  """Reasoning of one of our blobs, None for any other."""
  if not isinstance(blob, str) or not blob.startswith(_BLOB):
    return None
  try:
    packed = base64.urlsafe_b64decode(blob[len(_BLOB) :])
    unpack = zlib.decompressobj()
    return unpack.decompress(packed, 1 << 24).decode('utf-8', 'replace')
  except (ValueError, zlib.error):
    return None


def summary(item: Any) -> str | None:
  """What a compaction item of ours stands for, None for any other item."""
  if kind(item) not in ('compaction', 'compaction_summary'):
    return None
  text = unseal(canonical.dict_of(item).get('encrypted_content'))
  return None if text is None else _SUMMARY + text


def _reasoning(item: Mapping[str, Any]) -> str:
  sealed = unseal(item.get('encrypted_content'))
  if sealed is not None:
    return sealed
  for key in ('content', 'summary'):
    text = openai_chat.text_of(item.get(key))
    if text:
      return text
  return ''


# ---- items -----------------------------------------------------------------


def kind(item: Any) -> str:
  """Type of an item; a message may leave it out."""
  item = canonical.dict_of(item)
  found = canonical.text_of(item.get('type'))
  if not found and 'role' in item:
    return 'message'
  return found


def side(item: Any) -> str:
  """'assistant', 'tool', 'user', 'system', or '' for what is skipped."""
  what = kind(item)
  if what == 'message':
    role = canonical.dict_of(item).get('role')
    if role in ('assistant', 'user'):
      return role
    return 'system' if role in ('system', 'developer') else 'user'
  if what in _CALLS or what == 'reasoning' or what in _SILENT:
    return 'assistant'
  if summary(item) is not None:
    return 'user'
  if what.endswith('_output') and 'output' in canonical.dict_of(item):
    return 'tool'
  return ''


def output_text(value: Any) -> str:
  """Output of a tool in any shape as text."""
  if isinstance(value, (str, list)):
    return openai_chat.text_of(value)
  if value is None:
    return ''
  content = canonical.dict_of(value).get('content')
  if isinstance(content, (str, list)):
    return openai_chat.text_of(content)
  return json.dumps(value, ensure_ascii=False)


def _call(item: Mapping[str, Any]) -> types.ToolCall:
  what = kind(item)
  name = canonical.text_of(item.get('name'))
  if what == 'custom_tool_call':
    text = json.dumps({'input': item.get('input')}, ensure_ascii=False)
  elif what == 'local_shell_call':
    name = 'local_shell'
    text = json.dumps(item.get('action'), ensure_ascii=False)
  else:
    text = openai_chat.arguments_text(item.get('arguments'))
  space = item.get('namespace')
  if isinstance(space, str) and space:
    name = flat_name(space, name)
  call_id = item.get('call_id') or item.get('id')
  return types.ToolCall(name, text, id=canonical.text_of(call_id))


def _assistant(items: Sequence[Any]) -> types.Message:
  texts, thoughts, calls = [], [], []
  for item in items:
    item = canonical.dict_of(item)
    what = kind(item)
    if what == 'reasoning':
      thoughts.append(_reasoning(item))
    elif what == 'message':
      texts.append(openai_chat.text_of(item.get('content')))
    elif what in _CALLS:
      calls.append(_call(item))
  return types.Message(
    'assistant',
    '\n\n'.join(t for t in texts if t),
    reasoning='\n'.join(t for t in thoughts if t),
    calls=tuple(calls),
  )


def _skip(item: Any) -> None:
  log.info('skipped an item of type %s', kind(item) or 'none')


def turns(items: Sequence[Any], start: int) -> list[canonical.Turn]:
  """Canonical turns of an item list from a turn boundary on."""
  found: list[canonical.Turn] = []
  calls = _calls_before(items, start)
  i = start
  while i < len(items):
    what = side(items[i])
    if what in ('', 'user', 'system'):
      if what:
        content = canonical.dict_of(items[i]).get('content')
        text = summary(items[i]) or openai_chat.text_of(content)
        message = types.Message('system' if what == 'system' else 'user', text)
        found.append(canonical.Turn((message,), i + 1))
      else:
        _skip(items[i])
      i += 1
      continue
    run, end = [items[i]], i + 1
    while end < len(items) and side(items[end]) in (what, ''):
      if side(items[end]):
        run.append(items[end])
      else:
        _skip(items[end])
      end += 1
    i = end
    if what == 'assistant':
      message = _assistant(run)
      calls = message.calls
      if message.content or message.calls or message.reasoning:
        found.append(canonical.Turn((message,), end))
      continue
    results = [
      types.Message(
        'tool',
        output_text(canonical.dict_of(r).get('output')),
        call_id=canonical.text_of(canonical.dict_of(r).get('call_id')),
      )
      for r in run
    ]
    found.append(canonical.Turn(openai_chat.in_call_order(results, calls), end))
    calls = ()
  return found


def _calls_before(items: Sequence[Any], start: int):
  begin = start
  while begin and side(items[begin - 1]) in ('assistant', ''):
    begin -= 1
  return _assistant(items[begin:start]).calls


def joins(items: Sequence[Any], i: int) -> bool:
  """Whether item i goes on the turn that ends before it."""
  if not 0 < i < len(items):
    return False
  here = side(items[i])
  if here == '':
    return True
  before = i - 1
  while before > 0 and side(items[before]) == '':
    before -= 1
  return here in ('assistant', 'tool') and side(items[before]) == here


# ---- tools -----------------------------------------------------------------


def flat_name(space: str, name: str) -> str:
  """One name for a tool of a namespace."""
  return space + name if space.endswith('__') else f'{space}__{name}'


def _freeform(entry: Mapping[str, Any]) -> types.Tool:
  about = canonical.text_of(entry.get('description'))
  shape = canonical.dict_of(entry.get('format'))
  grammar = shape.get('definition')
  if isinstance(grammar, str) and grammar:
    syntax = canonical.text_of(shape.get('syntax')) or 'text'
    about = f'{about}\n\nThe input follows this {syntax} grammar:\n{grammar}'
  name = canonical.text_of(entry.get('name'))
  return types.Tool(name, about.strip(), openai_chat.FREEFORM)


def tools_of(
  value: Any, ignored: list[str]
) -> tuple[tuple[types.Tool, ...], dict[str, tuple[str, str]], set[str]]:
  """Offered tools, flat name -> (namespace, name), and freeform names.

  What cannot be offered to the model goes to `ignored` by its type.
  """
  tools: list[types.Tool] = []
  spaces: dict[str, tuple[str, str]] = {}
  freeform: set[str] = set()

  def add(entry: Any, space: str) -> None:
    entry = canonical.dict_of(entry)
    what = entry.get('type')
    if what == 'namespace' and not space:
      inner = canonical.text_of(entry.get('name'))
      for tool in canonical.list_of(entry.get('tools')):
        add(tool, inner)
      return
    name = entry.get('name')
    if what == 'custom' and isinstance(name, str):
      tool = _freeform(entry)
    elif what in ('function', None) and isinstance(name, str):
      schema = canonical.dict_of(entry.get('parameters'))
      tool = types.Tool(
        name,
        canonical.text_of(entry.get('description')),
        schema or {'type': 'object', 'properties': {}},
      )
    elif what == 'function':  # The Chat shape, which some clients send.
      found = openai_chat.tools_of([entry])
      if not found:
        return
      tool = found[0]
    else:
      ignored.append(f'tool of type {what}')
      return
    flat = flat_name(space, tool.name) if space else tool.name
    if space:
      spaces[flat] = (space, tool.name)
    if what == 'custom':
      freeform.add(flat)
    tools.append(types.Tool(flat, tool.description, tool.parameters))

  for entry in canonical.list_of(value):
    add(entry, '')
  return tuple(tools), spaces, freeform
