"""Why a prompt does not go on where the session stood: the break's cause.

'' for a prompt that extends what was served. Otherwise one of:

  system_changed, tools_changed   the head is another one
  answer_dropped      the last answer is missing from the history
  assistant_edited: W an answer came back changed: W is text, name, arguments
                      or calls_dropped
  tool_edited, user_edited        an earlier turn came back changed
  branch              the last turn differs: another question at this place
  retry, parallel     the same prompt again, after or during the first
"""

from __future__ import annotations

from collections.abc import Sequence

from clawjax import types
from clawjax.proxy import canonical, tree
from clawjax.proxy.served import Served


def cause(match: tree.Match, sampled: dict[str, Served]) -> str:
  """The cause, from how far a request matched.

  Args:
    match: how the request matched.
    sampled: calls of the session by id.
  """
  if not match.new or not match.expected:
    return ''
  turn = match.new[0]
  answers = [n for n in match.expected if n.call_id]
  if answers and turn.role == 'assistant':
    known = [sampled[n.call_id] for n in answers if n.call_id in sampled]
    return f'assistant_edited: {_edit(turn.messages[0], known)}'
  if answers:
    return 'answer_dropped'
  if not any(t.role == 'assistant' for t in match.new):
    return 'branch'
  return 'tool_edited' if turn.role == 'tool' else 'user_edited'


def _edit(message: types.Message, known: Sequence[Served]) -> str:
  """What of an answer came back changed, against the likest one."""

  def differences(answer: Served) -> list[str]:
    found = []
    names = [c.name for c in message.calls]
    sampled = [c.name for c in answer.calls]
    if names != sampled:
      cut = len(names) < len(sampled) and names == sampled[: len(names)]
      found.append('calls_dropped' if cut else 'name')
    elif [canonical.same_arguments(c.arguments) for c in message.calls] != [
      canonical.same_arguments(c.arguments) for c in answer.calls
    ]:
      found.append('arguments')
    text = canonical.same_text(message.content)
    if text != canonical.same_text(answer.content):
      found.append('text')
    return found

  options = [differences(a) for a in known]
  best = min(options, key=len, default=[])
  return ', '.join(best) or 'other'


def head_cause(
  head: tuple[bytes, bytes], known: Sequence[tuple[bytes, bytes]]
) -> str:
  """Why a head (digests of system text and of tools) is a new one."""
  if not known or head in known:
    return ''
  if any(tools == head[1] for _, tools in known):
    return 'system_changed'
  if any(system == head[0] for system, _ in known):
    return 'tools_changed'
  return 'system_changed, tools_changed'
