"""The conversation that a path of calls amounts to: ids back to messages.

A leaf of the trie and the calls it extends, one after the other, are what one
agent (or subagent) lived through. The proxy rendered every request from pieces
framed by control tokens, and text in a message can never produce a control
token, so cutting the ids at those tokens gives back the turns exactly:

  <|im_start|>system .. <|im_end|>     system text and offered tools
  <|im_start|>user .. <|im_end|>       a user message, or tool results
  <|im_start|>assistant .. <|im_end|>  sampled (then it belongs to a call) or
                                       put there by the harness

Transcripts for other programs (`eval/atif.py`, `eval/chat_jsonl.py`) are made
from this, and so is the one that graders and judges get (`transcript`).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from clawjax import trie as trie_lib
from clawjax import types
from clawjax.chat import parsing


class Tokenizer(Protocol):
  """What is needed of a tokenizer; see `clawjax.chat.tokenizers`."""

  im_start: int
  im_end: int

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of ids, special tokens shown."""


@dataclasses.dataclass(frozen=True)
class Turn:
  """One message and where it came from.

  Attributes:
    message: the message; ids of tool calls are unique in the conversation.
    owner: number (in the trie) of the call with which it first came.
    sampled: the owner's answer, not part of its prompt.
  """

  message: types.Message
  owner: int
  sampled: bool = False


@dataclasses.dataclass(frozen=True)
class Conversation:
  """All turns of one path.

  Attributes:
    leaf: number of the last call.
    path: numbers of the calls from the root on, the leaf included.
    turns: in order.
    tools: tool definitions as offered, JSON objects.
  """

  leaf: int
  path: tuple[int, ...]
  turns: tuple[Turn, ...]
  tools: tuple[dict[str, Any], ...]


_TOOLS = re.compile(r'(?:^|\n\n)# Tools\n\n.*?<tools>\n(.*?)\n</tools>', re.S)
_RESPONSE = re.compile(
  r'<tool_response>\n(.*?)\n</tool_response>(?=\n<tool_response>\n|\s*$)', re.S
)


def path(trie: trie_lib.Trie, leaf: int) -> tuple[int, ...]:
  """The calls that `leaf` extends, first one first, then the leaf."""
  found = [leaf]
  while trie.extends[found[-1]] >= 0:
    found.append(trie.extends[found[-1]])
  return tuple(reversed(found))


def read(trie: trie_lib.Trie, leaf: int, tokenizer: Tokenizer) -> Conversation:
  """The conversation that ends with call number `leaf`."""
  turns: list[Turn] = []
  tools: list[dict[str, Any]] = []
  calls = path(trie, leaf)
  for number in calls:
    call = trie.calls[number]
    tail = ''
    for role, text, closed in _frames(
      trie_lib.inserted(trie, number), tokenizer
    ):
      if not closed and role == 'assistant':
        tail = text  # the generation prompt, maybe with a prefill
        continue
      if role == 'system':
        text, offered = _split_tools(text)
        tools += [t for t in offered if t not in tools]
      turns += [Turn(m, number) for m in _messages(role, text, turns, tools)]
    if call.sample is not None:
      answer = _answer(call, tail, tools, tokenizer, turns)
      turns.append(Turn(answer, number, sampled=True))
  return Conversation(leaf, calls, tuple(turns), tuple(tools))


def retained(rollout: types.Rollout) -> trie_lib.Trie:
  """The trie of a rollout, dead leaves marked, every role kept."""
  trie, _ = trie_lib.filter(
    trie_lib.build(rollout, routes='ignore'),
    max_leaves=None,
    auxiliary='train',
  )
  return trie


def conversations(
  trie: trie_lib.Trie, tokenizer: Tokenizer, *, roles: Sequence[str] = ('main',)
) -> list[Conversation]:
  """Conversations of the retained leaves of `roles`, in order of calls."""
  return [
    read(trie, leaf, tokenizer)
    for leaf in trie.leaves()
    if trie.calls[leaf].role in roles
  ]


def transcript(
  calls: Sequence[types.Call], tokenizer: Tokenizer
) -> list[types.Message]:
  """What the main agent was told and said, in order, nothing twice.

  After a break, a compaction or a new session the harness tells part of the
  history again; what was there before is left out, so that a grader that counts
  calls counts each once. Dead answers (retries) are not in it, nor are other
  roles. Ids of tool calls are unique.

  Args:
    calls: of one rollout.
    tokenizer: that they were made with.
  """
  rollout = types.Rollout('', '', '', calls=tuple(calls))
  said: list[types.Message] = []
  asked = 0  # tool calls so far
  ids_at: dict[tuple[int, int], tuple[str, ...]] = {}  # place -> ids of calls
  ids_of: dict[Any, tuple[str, ...]] = {}  # what was said -> ids of its calls
  answered: set[str] = set()
  talks = conversations(retained(rollout), tokenizer) if calls else []
  for number, talk in enumerate(talks):
    ids: dict[str, str] = {}  # id in this conversation -> in the transcript
    seen: collections.Counter[int] = collections.Counter()
    for turn in talk.turns:
      place, message = (turn.owner, seen[turn.owner]), turn.message
      seen[turn.owner] += 1
      own = [c.id for c in message.calls]
      if place in ids_at:  # shared with an earlier conversation
        ids |= zip(own, ids_at[place], strict=True)
        continue
      ids_at[place] = ()
      if message.role == 'tool':
        name = ids.get(message.call_id, '')
        if not name or name not in answered:
          answered.add(name)
          said.append(dataclasses.replace(message, call_id=name))
        continue
      what = _said(message)
      if number and not turn.sampled and what in ids_of:
        new = ids_of[what]
      else:
        new = tuple(f'call_{asked + i}' for i in range(len(own)))
        asked += len(own)
        ids_of.setdefault(what, new)
        renamed = tuple(
          dataclasses.replace(c, id=i)
          for c, i in zip(message.calls, new, strict=True)
        )
        said.append(dataclasses.replace(message, calls=renamed))
      ids_at[place] = new
      ids |= zip(own, new, strict=True)
  return said


def _said(message: types.Message) -> tuple[Any, ...]:
  """A message but for ids, thinking and the way its JSON is written."""

  def plain(text: str) -> str:
    try:
      return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
      return text

  calls = tuple((c.name, plain(c.arguments)) for c in message.calls)
  return message.role, message.content.strip(), calls


# ---- pieces ----------------------------------------------------------------


def _frames(
  ids: np.ndarray, tokenizer: Tokenizer
) -> Iterator[tuple[str, str, bool]]:
  """(role, text, closed) of each framed turn; what precedes the first is left.

  What precedes it is the end of an answer: a newline, or `<|im_end|>` for one
  that was cut.
  """
  starts = np.flatnonzero(np.asarray(ids) == tokenizer.im_start)
  for at, start in enumerate(starts):
    stop = starts[at + 1] if at + 1 < len(starts) else len(ids)
    body = ids[start + 1 : stop]
    ends = np.flatnonzero(body == tokenizer.im_end)
    closed = len(ends) > 0
    text = tokenizer.decode(body[: ends[0]] if closed else body)
    role, _, rest = text.partition('\n')
    yield role, rest, closed


def _split_tools(text: str) -> tuple[str, list[dict[str, Any]]]:
  """System text without the tools block, and the tools."""
  match = _TOOLS.search(text)
  if not match:
    return text, []
  tools = []
  for line in match.group(1).split('\n'):
    try:
      tool = json.loads(line)
    except ValueError:
      continue
    if isinstance(tool, dict):
      tools.append(tool)
  return text[: match.start()], tools


def _messages(
  role: str,
  text: str,
  before: Sequence[Turn],
  tools: Sequence[dict[str, Any]],
) -> list[types.Message]:
  """The messages that a closed turn holds."""
  if role == 'assistant':
    parsed = parsing.parse_output(text, tools=_offered(tools), finish='stop')
    return [_assistant(parsed, before)]
  if role == 'user' and text.startswith('<tool_response>'):
    asked = _open_calls(before)
    return [
      types.Message(
        'tool',
        content=content,
        call_id=asked[i].id if i < len(asked) else '',
        name=asked[i].name if i < len(asked) else '',
      )
      for i, content in enumerate(_RESPONSE.findall(text))
    ]
  known = role if role in ('system', 'user', 'tool') else 'user'
  return [types.Message(known, content=text)]


def _open_calls(before: Sequence[Turn]) -> Sequence[types.ToolCall]:
  """Calls of the last assistant message, in order."""
  for turn in reversed(before):
    if turn.message.role == 'assistant':
      return turn.message.calls
  return ()


def _offered(tools: Sequence[dict[str, Any]]) -> list[types.Tool]:
  return [
    types.Tool(f['name'], f.get('description', ''), f.get('parameters') or {})
    for t in tools
    if isinstance(f := t.get('function', t), dict) and 'name' in f
  ]


def _answer(
  call: types.Call,
  tail: str,
  tools: Sequence[dict[str, Any]],
  tokenizer: Tokenizer,
  before: Sequence[Turn],
) -> types.Message:
  assert call.sample is not None
  parsed = parsing.parse_output(
    tokenizer.decode(call.sample.token_ids),
    tools=_offered(tools),
    finish=call.sample.finish,
    prompt_tail=tail,
  )
  return _assistant(parsed, before)


def _assistant(parsed: parsing.Parsed, before: Sequence[Turn]) -> types.Message:
  """The message, its calls numbered on from those before."""
  count = sum(len(t.message.calls) for t in before)
  return types.Message(
    'assistant',
    content=parsed.content,
    reasoning=parsed.reasoning,
    calls=tuple(
      types.ToolCall(c.name, c.arguments, f'call_{count + i}')
      for i, c in enumerate(parsed.calls)
    ),
  )
