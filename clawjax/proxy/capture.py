"""The record of a session: one append-only JSONL file, written before sending.

Lines, in the order they happen:

  open   the session: ids, key, seed, rules
  start  a request: its new turns (ids and what they are recognised by), where
         its prompt ends in the tree of turns, how it is sampled
  end    its outcome: sampled ids, log-probs, the kept turn
  close  the session has ended

Only what is new is written: a prompt is the path of its leaf plus the opening,
so a record grows with the conversation and not with its square. A line is
handed to the operating system before the answer's last event is sent, so a
proxy that is killed loses no finished call; a `start` without its `end` is a
call that was in flight. `fsync` also survives a machine that dies.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import urllib.parse
from typing import Any

import orjson

from clawjax import types
from clawjax.proxy import prompting
from clawjax.proxy.served import Served


def file_name(rollout_id: str) -> str:
  """A file name for any rollout id."""
  return urllib.parse.quote(rollout_id, safe='') + '.jsonl'


def sample_json(sample: types.Sample) -> dict[str, Any]:
  """A sample's fields, arrays as they are (`_dumps` writes them)."""
  return {
    f.name: getattr(sample, f.name) for f in dataclasses.fields(types.Sample)
  }


def start_line(served: Served, placed: prompting.Placed) -> dict[str, Any]:
  """What is written of a request."""
  return {
    'call': served.call_id,
    'index': served.index,
    't': served.start,
    'dialect': served.dialect,
    'new': placed.made,
    'leaf': served.leaf.number,
    'opening': served.opening,
    'params': dataclasses.asdict(served.params),
    'parent': served.parent,
    'rival': served.rival,
    'has_tools': served.has_tools,
    'user_text': served.user_text,
    'normalised': served.normalised,
    'break_cause': served.break_cause,
    'pinned': placed.pinned,
  }


def end_line(served: Served) -> dict[str, Any]:
  """What is written of its outcome."""
  value: dict[str, Any] = {
    'call': served.call_id,
    't': served.end,
    'status': served.status,
    'error': served.error,
  }
  node = served.node
  if node is not None and served.sample is not None:
    value |= {
      'sample': sample_json(served.sample),
      'malformed': served.malformed,
      'flags': served.flags,
      'text': served.text,
      'content': served.content,
      'calls': [[c.name, c.arguments] for c in served.calls],
      'n': node.number,
      'key': node.key.hex(),
      'closing': node.chain.view(node.length)[node.open_length :],
      'ids': sorted(node.ids),
      'reasoning': node.reasoning.hex(),
    }
  return value


def _dumps(value: dict[str, Any]) -> bytes:
  try:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
  except TypeError:  # Arrays that are not contiguous, huge numbers.
    return json.dumps(value, default=lambda a: a.tolist()).encode()


class Recorder:
  """Appends lines to one session's record."""

  def __init__(
    self, path: pathlib.Path, *, fsync: bool = False, repair: bool = False
  ):
    path.parent.mkdir(parents=True, exist_ok=True)
    if repair:
      _drop_torn_line(path)
    # The session's key is in it.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    self._fd = os.open(path, flags, 0o600)
    self._fsync = fsync
    self.path = path

  def write(self, kind: str, value: dict[str, Any]) -> None:
    """Appends one line; it has left this process when this returns."""
    line = _dumps({'type': kind, **value}) + b'\n'
    view = memoryview(line)
    while view:
      view = view[os.write(self._fd, view) :]
    if self._fsync:
      os.fsync(self._fd)

  def close(self) -> None:
    """Closes the file; writing on is an error."""
    if self._fd >= 0:
      os.close(self._fd)
      self._fd = -1


def _drop_torn_line(path: pathlib.Path) -> None:
  """Cuts off a last line that was not written to its end."""
  with path.open('rb+') as f:
    data = f.read()
    f.truncate(data.rfind(b'\n') + 1)
