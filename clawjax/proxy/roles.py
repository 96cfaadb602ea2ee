"""What each call is for, told from the calls alone.

A conversation starts with a call that extends no sampled answer. The main one
is the first that carries the task's instruction (when it is known) and offers
tools; a request for one token that does not is a probe, and never it. A later conversation is a sub-agent when its opening holds an argument
that was sampled earlier, and a compaction when it holds an answer that was
sampled earlier (its `<summary>` alone is enough); that answer's own call is
then compaction too. When it holds both, the longer one says what it is: a
summary names commands, and a task for a sub-agent may quote. One that opens
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
# How they open the conversation that follows it.
_CONTINUED = re.compile(
  r'session is being continued from a previous conversation', re.IGNORECASE
)
_SUMMARY = re.compile(r'<summary>(.*?)(?:</summary>|\Z)', re.DOTALL)


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
    for text in (served.content, *_SUMMARY.findall(served.content)):
      text = _plain(text)
      if len(text) >= _TELLING:
        self.answers.append((text, served.call_id))

  def of_argument(self, opening: str) -> tuple[str, str, str] | None:
    """(text, tool name, call id) of the longest argument in an opening."""
    return max(
      (a for a in reversed(self.arguments) if a[0] in opening),
      key=lambda a: len(a[0]),
      default=None,
    )

  def of_answer(self, opening: str) -> tuple[str, str] | None:
    """(text, call id) of the longest answer in an opening."""
    return max(
      (a for a in reversed(self.answers) if a[0] in opening),
      key=lambda a: len(a[0]),
      default=None,
    )


def _main_start(starts: Sequence[Served], instruction: str) -> Served | None:
  """The call that opens the main conversation."""
  wanted = _plain(instruction)
  order = [
    lambda s: s.has_tools and wanted and wanted in _plain(s.user_text),
    lambda s: wanted and wanted in _plain(s.user_text) and not _probe(s),
    lambda s: s.has_tools and not _probe(s),
    lambda s: not _probe(s),
  ]
  for fits in order:
    for served in starts:
      if fits(served):
        return served
  return None


def _probe(served: Served) -> bool:
  return served.params.max_tokens == 1


def assign(
  calls: Sequence[Served],
  instruction: str = '',
  *,
  openings: Sequence[str] = (),
) -> dict[str, tuple[types.Role, str]]:
  """Role and reason of each call, by call id.

  Args:
    calls: all calls of a session in order of arrival.
    instruction: the task's instruction, '' if it is not known.
    openings: what the user says first in further sessions.
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
      said = _plain(served.user_text)
      if served.has_tools and any(_plain(o) in said for o in openings if o):
        role, reason = 'main', 'opens a further session'
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
  if served is main:
    return 'main', ''
  if main is None:
    return 'side', 'a probe'
  opening = _plain(served.user_text)
  same = _plain(main.user_text)
  if served.index > main.index:
    if served.leaf is main.leaf or (opening == same and served.has_tools):
      return 'main', 'opens as the main conversation did'
    argument, answer = sampled.of_argument(opening), sampled.of_answer(opening)
    continued = _CONTINUED.search(opening) is not None
    if answer and argument and len(argument[0]) > len(answer[0]):
      answer = None
    if argument and not answer and not continued:
      text = f'opens with an argument of {argument[1]} in {argument[2]}'
      return 'subagent', text
    if _SUMMARISE.search(served.user_text):
      return 'compaction', 'asks for a summary'
    if answer:
      by = answer[1]
      if roles[by][0] == 'main' and not by_id[by].continued:
        roles[by] = 'compaction', f'its answer opens {served.call_id}'
      return 'compaction', f'opens with the answer of {by}'
    if continued:
      return 'compaction', 'says that it continues a conversation'
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
