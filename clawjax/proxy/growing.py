"""Bodies that go on from the last one: only what is new is read.

  reader = Reader()
  value, marked = reader.read(body)   # value: as `canonical.loads(body)`

A harness sends its whole conversation with each request, and reading 150 kB of
JSON takes longer than all that the proxy does with a turn. Such a body shares
its first bytes with the one before, up to the end of the message list: there
the old one says `]` and the new one `,`. What stood before is kept as objects,
and these are the same objects in the next value, so that comparing two
histories is comparing addresses.

Nothing is guessed. Where a list of messages opens, where its known part ends,
and what follows are each read by the JSON reader inside brackets that close
only at that depth (a place inside a string has an odd number of quotes behind
it, one at another depth has brackets left over), so that a value is put
together only where it is the one that the whole body means. Anything else is
read whole.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
from typing import Any, NamedTuple

import numpy as np
import orjson

from clawjax.proxy import canonical

_KEPT = 4  # Conversations of a session that take turns.
_MOST = 8 * 1024 * 1024  # Bytes of a body that is kept.
_LIST = re.compile(rb'"(messages|input)"\s*:\s*\[')
_COMMA, _CLOSE = ord(','), ord(']')
# No key of a request: it cannot be known to who sends one.
_REST = secrets.token_hex(12)
MARK = b'"cache_control"'


class Body(NamedTuple):
  """A body, read.

  Attributes:
    value: its JSON.
    marked: `MARK` is in it.
  """

  value: Any
  marked: bool


@dataclasses.dataclass(frozen=True)
class _List:
  """The list of messages of a body, read up to a place.

  Attributes:
    head: what stands before it, with the list itself empty.
    name: its key.
    items: its elements so far.
    end: offset in bytes right after the last of them.
    marked: `MARK` stands before `end`.
  """

  head: dict[str, Any]
  name: str
  items: list[Any]
  end: int
  marked: bool


@dataclasses.dataclass(frozen=True)
class _Known:
  """A body that was read; `found` is None until one goes on from it."""

  body: bytes
  found: _List | None = None


class Reader:
  """Reads the bodies of one session; values share parts, so leave them be."""

  def __init__(self) -> None:
    self._known: list[_Known] = []

  def read(self, body: bytes) -> Body:
    """Reads a body.

    Raises:
      ValueError: not JSON, not UTF-8, or nested too deep.
    """
    for i, known in enumerate(self._known):
      at = _shared(known.body, body)
      if known.body[at : at + 1] == b']' and body[at : at + 1] == b',':
        try:
          value, found = _go_on(known, body, at)
        except orjson.JSONDecodeError:
          continue
        if found is not None:
          del self._known[i]
          self._keep(_Known(body, found))
          return Body(value, found.marked or _marked(body, at))
    value = canonical.loads(body)
    self._keep(_Known(body))
    return Body(value, MARK in body)

  def _keep(self, known: _Known) -> None:
    if len(known.body) <= _MOST:
      self._known.insert(0, known)
      del self._known[_KEPT:]


def _shared(old: bytes, new: bytes) -> int:
  """Number of leading bytes that are equal."""
  n = min(len(old), len(new))
  differ = np.frombuffer(old, np.uint8, n) != np.frombuffer(new, np.uint8, n)
  at = int(differ.argmax()) if n else 0
  return at if n and differ[at] else n


def _marked(body: bytes, start: int, end: int | None = None) -> bool:
  """Whether `MARK` ends in this part of a body."""
  return body.find(MARK, max(0, start - len(MARK)), end) >= 0


def _go_on(known: _Known, body: bytes, at: int) -> tuple[Any, _List | None]:
  """The value of a body that leaves a known one at the end of its list.

  Args:
    known: what was read before.
    body: equal to it up to `at`, where it goes on with a comma.
    at: where the known one closes a list.

  Returns:
    The value and its list up to `at`; (None, None) when that is no list of
    messages.

  Raises:
    JSONDecodeError: neither.
  """
  found = known.found
  if found is None or found.end > at:
    found = _opened(body, at)
    if found is None:
      return None, None
  else:
    more = orjson.loads(b'[0' + body[found.end : at] + b']')
    found = _List(
      found.head,
      found.name,
      found.items + more[1:],
      at,
      found.marked or _marked(body, found.end, at),
    )
  rest = orjson.loads(b'{"%s":[0%s' % (_REST.encode(), body[at:]))
  new = rest.pop(_REST)[1:]
  if found.name in rest:  # Said twice: the last one counts.
    return None, None
  return {**found.head, found.name: found.items + new, **rest}, found


def _opened(body: bytes, end: int) -> _List | None:
  """The list of messages that opens before `end`, if it is still open there.

  Raises:
    JSONDecodeError: it is not.
  """
  place = _LIST.search(body, 0, end)
  if place is None:
    return None
  name = place.group(1).decode()
  head = orjson.loads(body[: place.end()] + b']}')
  if head.get(name) != [] or next(reversed(head)) != name:
    return None
  items = orjson.loads(b'[' + body[place.end() : end] + b']')
  return _List(head, name, items, end, MARK in body[:end])
