"""A session from its record: what a restarted proxy serves on.

Lines are replayed in order; nothing is rendered or sampled again. A torn last
line (the machine died while it was written) is left out. A call that has a
start and no end was in flight: it comes back as aborted and says so.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from clawjax import errors, types
from clawjax.chat import render
from clawjax.proxy import chain, session, tree
from clawjax.proxy.served import Served

IN_FLIGHT = 'in flight when the proxy stopped'


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
  """The whole lines of a record.

  Raises:
    CaptureError: a line in the middle is damaged.
  """
  found = []
  raw = path.read_bytes().split(b'\n')
  for number, line in enumerate(raw, 1):
    if not line:
      continue
    try:
      found.append(json.loads(line))
    except ValueError as e:
      if number == len(raw):
        break
      raise errors.CaptureError(f'{path}:{number}: damaged: {e}') from e
  return found


def calls(path: pathlib.Path) -> tuple[types.Call, ...]:
  """The calls of a record, those in flight as aborted.

  Needs no tokenizer: ids are ids. For tools that look at finished runs.
  """
  return _replayed(path, lines(path), None).calls()


def resume(
  path: pathlib.Path, renderer: render.Renderer, *, window: int
) -> session.Session | None:
  """A session from its record, None when it had been closed.

  Raises:
    CaptureError: the record is damaged, or was made with another tokenizer.
  """
  found = lines(path)
  if not found or found[-1]['type'] == 'close':
    return None
  opened = found[0]
  name = renderer.tokenizer.name
  if opened.get('tokenizer') != name:
    raise errors.CaptureError(
      f'{path}: wanted a record of tokenizer {name!r}, '
      f'got one of {opened.get("tokenizer")!r}'
    )
  return _replayed(path, found, renderer, window=window)


def _replayed(
  path: pathlib.Path,
  found: list[dict[str, Any]],
  renderer: render.Renderer | None,
  *,
  window: int = 0,
) -> session.Session:
  if not found or found[0].get('type') != 'open':
    raise errors.CaptureError(f'{path}: wanted a line of type open first')
  opened = found[0]
  options = dict(opened['options'])
  options['sampling'] = _params(options['sampling'])
  options['rules'] = tuple(options['rules'])
  made = session.Session(
    opened['session'],
    opened['key'],
    renderer,  # type: ignore[arg-type]  # None only for reading.
    window=window or opened['window'],
    options=session.Options(**options),
  )
  replay = _Replay(made)
  for line in found[1:]:
    step = getattr(replay, line['type'], None)
    if step is not None:
      step(line)
  for served in made.served:
    made.fail(served, 'aborted', IN_FLIGHT)
  return made


def _params(value: Mapping[str, Any]) -> types.SamplingParams:
  fields = dict(value)
  fields['stop'] = tuple(fields['stop'])
  fields['stop_ids'] = tuple(fields['stop_ids'])
  return types.SamplingParams(**fields)


class _Replay:
  """Applies the lines of a record; one method per type of line."""

  def __init__(self, made: session.Session):
    self._session = made
    self._nodes: dict[int, tree.Node] = {}

  def _add(self, node: tree.Node) -> None:
    self._nodes[node.number] = node
    self._session.tree.count = max(self._session.tree.count, node.number)

  def turns(self, line: Mapping[str, Any]) -> None:
    """New heads and turns."""
    made = self._session
    for new in line['new']:
      if 'head' in new:
        node = tree.Node(new['n'], None, b'', 'head', new['ids'])
        made.tree.roots[new['head']] = node
        digests = bytes.fromhex(new['system']), bytes.fromhex(new['tools'])
        made.heads.append(digests)
      else:
        up = self._nodes[new['up']]
        key = bytes.fromhex(new['key'])
        node = tree.Node(new['n'], up, key, new['role'], new['ids'])
        node.moves = new.get('moves', False)
        up.attach(node)
      self._add(node)
    made.rules.seen.update(dict(line['pinned']))

  def start(self, line: Mapping[str, Any]) -> None:
    """A request."""
    self.turns(line)
    made = self._session
    leaf = self._nodes[line['leaf']]
    at = chain.extend(leaf.chain, leaf.length, line['opening'])
    made.add(
      Served(
        call_id=line['call'],
        index=line['index'],
        dialect=line['dialect'],
        prompt_ids=at[0].view(at[1]),
        leaf=leaf,
        opening=np.asarray(line['opening'], np.int32),
        at=at,
        params=_params(line['params']),
        start=line['t'],
        answer_id='',
        parent=line['parent'],
        rival=line['rival'],
        has_tools=line['has_tools'],
        user_text=line['user_text'],
        normalised=tuple(line['normalised']),
        break_cause=line['break_cause'],
      )
    )

  def end(self, line: Mapping[str, Any]) -> None:
    """The outcome of a request."""
    made = self._session
    served = made.by_call[line['call']]
    if 'sample' not in line:
      made.fail(served, line['status'], line['error'])
      served.end = line['t']
      return
    served.sample = types.sample_from_json(line['sample'])
    served.malformed = line['malformed']
    served.flags = tuple(line['flags'])
    served.text, served.content = line['text'], line['content']
    served.calls = tuple(types.ToolCall(*c) for c in line['calls'])
    served.node = made.keep(
      served,
      line['n'],
      bytes.fromhex(line['key']),
      line['closing'],
      frozenset(line['ids']),
      bytes.fromhex(line['reasoning']),
    )
    self._add(served.node)
    made.captured(served)
    served.end = line['t']
