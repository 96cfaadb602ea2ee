"""Volatile spans of harness prompts, normalised by small named rules.

A harness that writes the minute into each message makes every prompt a new
root. A rule takes such a span out of the prompt and out of the match, or pins
it to what the session saw first; what the engine saw is what is trained, and
each application is recorded by name on the call. Rules are chosen by name per
session (`Harness.rules`); none is on unless it is named, but for `billing`
and `cache_control`, whose spans are transport metadata and no part of the
conversation, and `text_in_result`, without which a reminder would be a turn of
the user's. A name with a minus before it switches a rule off.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, MutableMapping, Sequence

from clawjax import errors, types
from clawjax.proxy import canonical

JOINS = 'text_in_result'
ALWAYS = ('billing', 'cache_control', JOINS)


@dataclasses.dataclass(frozen=True)
class Rule:
  """One named rule; unused parts are None.

  Attributes:
    name: as recorded on calls.
    about: one line for people.
    head: system text -> system text.
    turn: text of a user or system turn -> text.
    tool: text of a tool result -> text.
    moves: whether a user message is one that is moved to the end each time.
  """

  name: str
  about: str
  head: Callable[[str, MutableMapping[str, str]], str] | None = None
  turn: Callable[[str, MutableMapping[str, str]], str] | None = None
  tool: Callable[[str, MutableMapping[str, str]], str] | None = None
  moves: Callable[[str], bool] | None = None


def _pin(
  name: str, pattern: str
) -> Callable[[str, MutableMapping[str, str]], str]:
  """Replaces each match by what the session saw first at that place.

  The text around the span names the place: group 1 of the pattern.
  """
  compiled = re.compile(pattern, re.MULTILINE)

  def apply(text: str, seen: MutableMapping[str, str]) -> str:
    def first(match: re.Match[str]) -> str:
      return seen.setdefault(f'{name}/{match.group(1)}', match.group(0))

    return compiled.sub(first, text)

  return apply


def _cut(pattern: str) -> Callable[[str, MutableMapping[str, str]], str]:
  compiled = re.compile(pattern, re.MULTILINE)

  def apply(text: str, seen: MutableMapping[str, str]) -> str:
    del seen
    return compiled.sub('', text)

  return apply


def _starts(prefix: str) -> Callable[[str], bool]:
  return lambda text: text.lstrip().startswith(prefix)


_BILLING = r'\Ax-anthropic-billing-header:[^\n]*(?:\n+|\Z)'

RULES = {
  r.name: r
  for r in (
    Rule(
      'billing',
      "Claude Code's x-anthropic-billing-header at the start of the system "
      'text: metadata with a value that changes per request; removed',
      head=_cut(_BILLING),
    ),
    Rule(
      'cache_control',
      'cache breakpoints that move from message to message; never rendered',
    ),
    Rule(
      JOINS,
      'text beside tool results in one Anthropic message, such as Claude '
      "Code's <system-reminder>; put inside the last result, not after it as "
      'a turn of its own',
    ),
    Rule(
      'date_line',
      'a line such as "Current date: 2026-01-31" (pi) or "Today\'s date: ..." '
      'in the system text; pinned to the first one of the session',
      head=_pin(
        'date_line',
        r"^(\W*(?:Current date|Today's date|Current time|Date)"
        r'(?: and time)?):[^\n]*',
      ),
      turn=_pin(
        'date_line', r"^(\W*(?:Current date|Today's date)(?: and time)?):[^\n]*"
      ),
    ),
    Rule(
      'openclaw_runtime',
      'sessionId in OpenClaw\'s "Runtime:" line; pinned',
      head=_pin('openclaw_runtime', r'^(Runtime:)[^\n]*'),
    ),
    Rule(
      'openclaw_clock',
      'minute timestamp such as "[Mon 2026-01-31 12:34 UTC]" before user '
      'text in OpenClaw; removed',
      turn=_cut(
        r'^\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d'
        r' [A-Z0-9+:-]+\] ?'
      ),
    ),
    Rule(
      'openclaw_context',
      'internal-context message that OpenClaw moves to the end at every call; '
      'it stays where it first stood',
      moves=_starts('<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>'),
    ),
    Rule(
      'openclaw_queued',
      'prefix that OpenClaw puts before user text when it retries; removed',
      turn=_cut(
        r'\A\[Queued user message from a previous active turn;[^\]]*\]\s*'
      ),
    ),
    Rule(
      'tool_space',
      'white space around tool results, which OpenClaw strips on replay; '
      'stripped from the start',
      tool=lambda text, seen: text.strip(),
    ),
  )
}


class Rules:
  """The rules of one session, with what they have pinned.

  Attributes:
    chosen: names as given.
    names: rules in force, those of `ALWAYS` included.
    seen: pinned values by place; part of the session's record.
  """

  def __init__(self, names: Sequence[str] = ()):
    off = {n[1:] for n in names if n.startswith('-')}
    wanted = dict.fromkeys((*ALWAYS, *(n for n in names if n[:1] != '-')))
    unknown = sorted({*wanted, *off} - RULES.keys())
    if unknown:
      raise errors.ConfigError(
        f'wanted rules of {", ".join(RULES)}, got {", ".join(unknown)}'
      )
    self.chosen = tuple(names)
    self.names = tuple(n for n in wanted if n not in off)
    self.seen: dict[str, str] = {}
    self._rules = [RULES[n] for n in self.names]
    self._turn = [r for r in self._rules if r.turn or r.tool]
    self._moves = [r for r in self._rules if r.moves]

  def head(self, blocks: Sequence[str], applied: list[str]) -> str:
    """Normalised system text; names of what changed it go to `applied`."""
    kept = []
    for text in blocks:
      for rule in self._rules:
        if rule.head:
          changed = rule.head(text, self.seen)
          if changed != text:
            applied.append(rule.name)
          text = changed
      if text:
        kept.append(text)
    return '\n\n'.join(kept)

  def turns(
    self, turn: canonical.Turn, applied: list[str]
  ) -> tuple[canonical.Turn, ...]:
    """A turn, normalised, or two where nothing may be joined."""
    apart = turn.apart if JOINS not in self.names else ()
    return tuple(self._turn_of(t, applied) for t in apart or (turn,))

  def _turn_of(
    self, turn: canonical.Turn, applied: list[str]
  ) -> canonical.Turn:
    """Normalised turn; assistant turns are left alone."""
    if not self._turn or turn.role == 'assistant':
      return turn
    messages = tuple(self._message(m, applied) for m in turn.messages)
    return dataclasses.replace(turn, messages=messages)

  def _message(
    self, message: types.Message, applied: list[str]
  ) -> types.Message:
    text = message.content
    for rule in self._turn:
      apply = rule.tool if message.role == 'tool' else rule.turn
      if apply:
        changed = apply(text, self.seen)
        if changed != text:
          applied.append(rule.name)
        text = changed
    return dataclasses.replace(message, content=text)

  def moves(self, message: types.Message) -> bool:
    """Whether a user message is one that its harness moves to the end."""
    return any(r.moves(message.content) for r in self._moves)
