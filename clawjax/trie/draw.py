"""A trie or packed rows as text and as SVG.

  python -m clawjax.trie.draw FILE [--svg OUT] [--no-filter]

FILE holds a rollout or calls as JSON (`clawjax.types.to_json`): one object, a
list, or one object per line. In the text a run of tokens is a line; a branch
goes one step to the right:

  120 context
  34 sampled c0
    8 context
    50 sampled c1
    12 sampled c2  retry, not trained

In the SVG a run is a bar from its first to its last position; bars below each
other are branches; sampled runs are filled (darker: trained).
"""

from __future__ import annotations

import argparse
import dataclasses
import html
import json
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

from clawjax.errors import ClawjaxError
from clawjax.trie.batch import TreeBatch
from clawjax.trie.build import build
from clawjax.trie.filter import filter  # noqa: A004
from clawjax.trie.trie import Trie
from clawjax.types import Call, call_from_json, rollout_from_json


@dataclasses.dataclass(frozen=True)
class Run:
  """Nodes start..stop-1: no branch inside, one kind of token.

  Attributes:
    start, stop: nodes.
    parent: number of the run above, -1 at roots.
    level: branch points above it.
    depth: position of its first token.
    calls: numbers of the calls that sampled it; () for context.
  """

  start: int
  stop: int
  parent: int
  level: int
  depth: int
  calls: tuple[int, ...]


def runs(trie: Trie) -> list[Run]:
  """The trie's runs in depth-first order."""
  N = len(trie)
  if not N:
    return []
  sampled: list[tuple[int, ...]] = [()] * N
  for i in range(len(trie.calls)):
    for node in trie.output_nodes(i).tolist():
      sampled[node] = (*sampled[node], i)
  parent = trie.parent.tolist()
  children = np.bincount(trie.parent[trie.parent >= 0], minlength=N)
  starts = [
    t
    for t in range(N)
    if parent[t] != t - 1 or children[t - 1] > 1 or sampled[t] != sampled[t - 1]
  ]
  of_node = np.zeros(N, int)
  found: list[Run] = []
  for start, stop in zip(starts, [*starts[1:], N], strict=True):
    above = parent[start]
    up = int(of_node[above]) if above >= 0 else -1
    level = 0
    if up >= 0:
      level = found[up].level + (children[above] > 1)
    of_node[start:stop] = len(found)
    found.append(
      Run(start, stop, up, int(level), int(trie.depth[start]), sampled[start])
    )
  return found


def text(trie: Trie) -> str:
  """The trie as indented lines, with a head and the account of tokens."""
  account = trie.account()
  fates = ', '.join(f'{n} {k}' for k, n in account.items())
  lines = [
    f'{trie.rollout_id or "trie"}: {len(trie.calls)} calls, '
    f'{len(trie)} nodes; tokens: {fates}'
  ]
  for run in runs(trie):
    lines.append('  ' * (run.level + 1) + _label(trie, run))
  empty = [
    c.call_id for i, c in enumerate(trie.calls) if not len(trie.output_nodes(i))
  ]
  if empty:
    lines.append(f'  without an answer: {", ".join(empty)}')
  return '\n'.join(lines)


def svg(trie: Trie, *, width: int = 960) -> str:
  """The trie as an SVG document."""
  found = runs(trie)
  longest = max((r.depth + r.stop - r.start for r in found), default=1)
  scale = (width - 20) / longest
  line: dict[int, int] = {}
  lines = 0
  for number, run in enumerate(found):
    first = run.parent < 0 or any(
      r.parent == run.parent for r in found[:number]
    )
    if first or run.parent not in line:
      line[number] = lines
      lines += 1
    else:
      line[number] = line[run.parent]
  parts = []
  for number, run in enumerate(found):
    x, y = 10 + run.depth * scale, 10 + 16 * line[number]
    size = max((run.stop - run.start) * scale, 1.0)
    if run.parent >= 0 and line[run.parent] != line[number]:
      top = 10 + 16 * line[run.parent] + 10
      parts.append(f'<path class="edge" d="M{x:.1f} {top}V{y + 5:.1f}h1"/>')
    parts.append(
      f'<rect class="{_kind(trie, run)}" x="{x:.1f}" y="{y}" '
      f'width="{size:.1f}" height="10">'
      f'<title>{html.escape(_label(trie, run))}</title></rect>'
    )
  height = 20 + 16 * lines
  title = html.escape(f'prefix tree of {trie.rollout_id or "a rollout"}')
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    f'width="{width}" height="{height}" role="img" aria-label="{title}">'
    f'<title>{title}</title><style>{_STYLE}</style>{"".join(parts)}</svg>'
  )


def rows_text(batch: TreeBatch, *, width: int = 72) -> str:
  """Packed rows, one line each: `#` trained, `-` context, `.` padding."""
  B, T = batch.tokens.shape
  cells = min(width, T)
  lines = []
  for b in range(B):
    real = batch.subtree_end[b] > np.arange(1, T + 1)
    real |= batch.parent[b] >= 0
    trained = np.zeros(T, bool)
    trained[batch.term_slot[b][batch.mask[b]]] = True
    kind = np.where(trained, 2, np.where(real, 1, 0))
    groups = np.array_split(kind, cells)
    lines.append(''.join('.-#'[int(np.median(g))] for g in groups))
  return '\n'.join(lines)


_STYLE = (
  '.context{fill:#c9ced6}.trained{fill:#1f6feb}.untrained{fill:#e7a13d}'
  '.edge{fill:none;stroke:#8a929c;stroke-width:1}'
)


def _kind(trie: Trie, run: Run) -> str:
  if not run.calls:
    return 'context'
  trained = any(not trie.reasons[i] for i in run.calls)
  return 'trained' if trained else 'untrained'


def _label(trie: Trie, run: Run) -> str:
  count = run.stop - run.start
  if not run.calls:
    return f'{count} context'
  names = []
  for i in run.calls:
    name = trie.calls[i].call_id
    if trie.calls[i].role != 'main':
      name += f' ({trie.calls[i].role})'
    if trie.reasons[i]:
      name += f'  {trie.reasons[i]}, not trained'
    names.append(name)
  return f'{count} sampled {", ".join(names)}'


def read_calls(path: pathlib.Path) -> list[Call]:
  """Calls from a JSON or JSON-lines file of calls or rollouts.

  Raises:
    ClawjaxError: the file holds neither.
  """
  content = path.read_text()
  try:
    data = json.loads(content)
  except json.JSONDecodeError:
    try:
      data = [json.loads(x) for x in content.splitlines() if x.strip()]
    except json.JSONDecodeError as error:
      raise ClawjaxError(f'{path}: wanted JSON, got {error}') from error
  calls: list[Call] = []
  for record in data if isinstance(data, list) else [data]:
    try:
      if 'calls' in record:
        calls.extend(rollout_from_json(record).calls)
      else:
        calls.append(call_from_json(record))
    except (KeyError, TypeError, ValueError) as error:
      raise ClawjaxError(
        f'{path}: wanted calls or rollouts as JSON, got a record that is '
        f'neither ({type(error).__name__}: {error})'
      ) from error
  return calls


def main(argv: Sequence[str] | None = None) -> int:
  """Draws each rollout in a file; see the head of this file."""
  parser = argparse.ArgumentParser(
    prog='python -m clawjax.trie.draw', description='Draws prefix trees.'
  )
  parser.add_argument('file', type=pathlib.Path)
  parser.add_argument('--svg', type=pathlib.Path, help='write an SVG here')
  parser.add_argument(
    '--no-filter', action='store_true', help='do not apply the filter rules'
  )
  options = parser.parse_args(argv)
  try:
    calls = read_calls(options.file)
  except (ClawjaxError, OSError) as error:
    print(error, file=sys.stderr)
    return 2
  by_rollout: dict[str, list[Call]] = {}
  for call in calls:
    by_rollout.setdefault(call.rollout_id, []).append(call)
  tries = [build(c) for c in by_rollout.values()]
  if not options.no_filter:
    tries = [filter(t)[0] for t in tries]
  print('\n\n'.join(text(t) for t in tries))
  if options.svg and tries:
    options.svg.write_text(svg(tries[0]))
    more = f' (the first of {len(tries)})' if len(tries) > 1 else ''
    print(f'wrote {options.svg}{more}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
