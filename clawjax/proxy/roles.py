"""What each call is for, told from the calls alone.

A conversation starts with a call that extends no sampled answer. The main one
is the first that carries the task's instruction (when it is known) and offers
tools. A later conversation is a sub-agent when its opening holds an argument
that was sampled earlier, and a compaction when it holds an answer that was
sampled earlier; that answer's own call is then compaction too. One that opens
as the main one did is the main one again, after a break. What is left (titles,
topics, probes) is side. Calls that extend an answer have its role.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from clawjax import types
from clawjax.proxy.served import Served

# Shorter texts may recur by chance.
_TELLING = 16
_SPACE = re.compile(r'\s+')
# How harnesses ask for a summary of the conversation.
_SUMMARISE = re.compile(
  r'create a detailed summary of (?:the|our) conversation'
  r'|context checkpoint compaction'
  r'|summari[sz]e (?:the|our|this) (?:above |conversation)',
  re.IGNORECASE,
)


def _plain(text: str) -> str:
  return _SPACE.sub(' ', text).strip()


def _strings(value: object) -> Iterator[str]:
  if isinstance(value, str):
    yield value
  elif isinstance(value, dict):
    for item in value.values():
      yield from _strings(item)
  elif isinstance(value, list):
    for item in value:
      yield from _strings(item)


def _arguments(call: types.ToolCall) -> Iterator[str]:
  try:
    yield from _strings(json.loads(call.arguments))
  except ValueError:
    return


class _Sampled:
  """Texts sampled so far."""

  def __init__(self):
    self.arguments: list[tuple[str, str, str]] = []
    self.answers: list[tuple[str, str]] = []

  def add(self, served: Served) -> None:
    for call in served.calls:
      for text in _arguments(call):
        text = _plain(text)
        if len(text) >= _TELLING:
          self.arguments.append((text, call.name, served.call_id))
    text = _plain(served.content)
    if len(text) >= _TELLING:
      self.answers.append((text, served.call_id))

  def of_argument(self, opening: str) -> tuple[str, str] | None:
    """Tool name and call id of an argument that the opening holds."""
    for text, name, call_id in reversed(self.arguments):
      if text in opening:
        return name, call_id
    return None

  def of_answer(self, opening: str) -> str | None:
    """Call id of an answer that the opening holds."""
    for text, call_id in reversed(self.answers):
      if text in opening:
        return call_id
    return None


def _main_start(starts: Sequence[Served], instruction: str) -> Served | None:
  """The call that opens the main conversation."""
  wanted = _plain(instruction)
  order = [
    lambda s: s.has_tools and wanted and wanted in _plain(s.user_text),
    lambda s: wanted and wanted in _plain(s.user_text) and not _probe(s),
    lambda s: s.has_tools and not _probe(s),
    lambda s: not _probe(s),
    lambda s: True,
  ]
  for fits in order:
    for served in starts:
      if fits(served):
        return served
  return None


def _probe(served: Served) -> bool:
  return served.params.max_tokens == 1


def assign(
  calls: Sequence[Served], instruction: str = ''
) -> dict[str, tuple[types.Role, str]]:
  """Role and reason of each call, by call id.

  Args:
    calls: all calls of a session in order of arrival.
    instruction: the task's instruction, '' if it is not known.
  """
  main = _main_start([c for c in calls if not c.parent], instruction)
  roles: dict[str, tuple[types.Role, str]] = {}
  by_id = {c.call_id: c for c in calls}
  sampled = _Sampled()
  for served in calls:
    if served.parent in roles:
      role, reason = roles[served.parent]
      if _SUMMARISE.search(served.user_text):
        role, reason = 'compaction', 'asks for a summary'
      elif role == 'compaction' and reason == 'asks for a summary':
        role, reason = 'main', ''
    else:
      role, reason = _opening_role(served, main, sampled, roles, by_id)
    if _probe(served) and served is not main:
      role, reason = 'side', 'asks for one token'
    roles[served.call_id] = (role, reason)
    sampled.add(served)
  return roles


def _opening_role(
  served: Served,
  main: Served | None,
  sampled: _Sampled,
  roles: dict[str, tuple[types.Role, str]],
  by_id: dict[str, Served],
) -> tuple[types.Role, str]:
  if served is main or main is None:
    return 'main', ''
  opening = _plain(served.user_text)
  same = _plain(main.user_text)
  if served.index > main.index:
    if served.leaf is main.leaf or (opening == same and served.has_tools):
      return 'main', 'opens as the main conversation did'
    found = sampled.of_argument(opening)
    if found:
      return 'subagent', f'opens with an argument of {found[0]} in {found[1]}'
    if _SUMMARISE.search(served.user_text):
      return 'compaction', 'asks for a summary'
    answer = sampled.of_answer(opening)
    if answer:
      if roles[answer][0] == 'main' and not by_id[answer].continued:
        roles[answer] = 'compaction', f'its answer opens {served.call_id}'
      return 'compaction', f'opens with the answer of {answer}'
    if same and same in opening and served.has_tools:
      return 'main', 'opens as the main conversation did'
  return 'side', 'a conversation of its own'


def retries(calls: Sequence[Served]) -> dict[str, str]:
  """Call id -> id of the call that it repeats, whose answer was left."""
  by_id = {c.call_id: c for c in calls}
  return {
    c.call_id: c.rival
    for c in calls
    if c.rival in by_id and not by_id[c.rival].continued
  }
