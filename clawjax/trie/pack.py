"""Tries become rows: groups share their stem, big trees are split, rows filled.

The trained calls of a group are merged into one tree, so that the common prompt
of its rollouts is computed once. A tree is cut into fragments between leaves
when it is larger than a row, or when a part of it fills the rest of a row; the
path to the cut is then computed twice, but every call belongs to one fragment
only, so each term is counted once and a call's terms stay in one row.

  leaves in depth-first order   l0 l1 l2 | l3 l4      cut: path(l3) above the
  fragments                     {l0 l1 l2} {l3 l4}    common ancestor repeats

Trees are placed first-fit in decreasing order of modelled cost (tokens plus
attention pairs), for each allowed length of rows, and the cheapest length wins:
three rows and a bit of 32k are five of 20k, not four of 32k.

A path longer than a row cannot be cut. With `relay` its leaves make a tree of
their own, laid out over several rows in a row (`TreeBatch.row_offset`).
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from clawjax.trie.batch import Branch, TreeBatch
from clawjax.trie.build import Grower, output_ids
from clawjax.trie.radix import ChildOrder, Layout, Radix
from clawjax.trie.trie import Trie

# Attention pairs that cost as much as one token in the rest of the network
# (6 P / (14 L H C): 23 k for Qwen3-8B, 7 k for Qwen3-30B-A3B).
PAIRS_PER_TOKEN = 8192


@dataclasses.dataclass(frozen=True)
class PackConfig:
  """Options of `pack`.

  Attributes:
    row_tokens: T, most slots in a row.
    row_buckets: allowed T; (): the multiples of row_tokens / row_steps.
    row_steps: fewer steps mean fewer compiled programs and more padding.
    row_multiple: B is a multiple of this (data-parallel devices).
    term_multiple: E is a multiple of this.
    share: rollouts of a group share a tree.
    share_across: those of other groups too (tasks with one system prompt; it is
      then computed once per row and not once per task).
    fill: cut trees to fill rows while the repeated path is at most this
      fraction of the part cut off; 0: only cut what is larger than a row.
    order: order of siblings; largest first gives the fewest partial blocks.
    relay: most rows that one tree may go on over; 1: calls whose context is
      longer than a row are left out and counted.
  """

  row_tokens: int = 4096
  row_buckets: tuple[int, ...] = ()
  row_steps: int = 16
  row_multiple: int = 1
  term_multiple: int = 64
  share: bool = True
  share_across: bool = False
  fill: float = 0.25
  order: ChildOrder = 'largest'
  relay: int = 1

  def __post_init__(self) -> None:
    if self.row_steps < 1 or self.relay < 1:
      raise ValueError(
        'row_steps and relay: wanted 1 or more, got'
        f' {self.row_steps} and {self.relay}'
      )
    if self.relay > 1 and self.row_tokens % 16:
      raise ValueError(
        f'row_tokens: wanted a multiple of 16 with relay, got {self.row_tokens}'
      )
    if self.row_tokens < 2:
      raise ValueError(f'row_tokens: wanted 2 or more, got {self.row_tokens}')
    if self.row_buckets and max(self.row_buckets) != self.row_tokens:
      raise ValueError(
        f'row_buckets: wanted the largest to be row_tokens={self.row_tokens}, '
        f'got {self.row_buckets}'
      )


def pack(
  tries: Sequence[Trie],
  *,
  row_tokens: int | None = None,
  groups: Sequence[Hashable] | None = None,
  config: PackConfig | None = None,
  **changes: object,
) -> TreeBatch:
  """Packs the trained calls of tries into rows.

  Args:
    tries: one per rollout.
    row_tokens: T, most slots in a row.
    groups: group key per trie; None: the tries' own. Tries whose key is ''
      share with nobody.
    config: see `PackConfig`.
    **changes: fields of `PackConfig` to set.

  Returns:
    The batch. `stats` has: 'rows' (used), 'tokens', 'slots' (B x T), 'padding'
    (share of slots), 'terms', 'trees', 'fragments', 'repeated' (tokens
    computed twice because of cuts), 'call_tokens' and 'branch_tokens' (what
    per-call and per-branch training would compute), 'call_ratio' and
    'branch_ratio' (against 'tokens'), 'pairs' (attention pairs),
    'relayed_rows' (that go on with the row above), 'too_long_calls' and
    'too_long_terms' (left out: their context exceeds `relay` rows).
  """
  if row_tokens is not None:
    changes['row_tokens'] = row_tokens
  config = dataclasses.replace(config or PackConfig(), **changes)  # type: ignore[arg-type]
  keys = [t.group for t in tries] if groups is None else list(groups)
  if len(keys) != len(tries):
    raise ValueError(f'wanted {len(tries)} group keys, got {len(keys)}')
  index = _Index(tries, keys)
  trees = _merge(tries, keys, index, config)
  T, rows = _cheapest(trees, config)
  return _fill(rows, T, trees, index, config)


# ---- what the terms belong to ----------------------------------------------


class _Index:
  """Numbers of rollouts (per role) and calls, in the order of the tries."""

  def __init__(self, tries: Sequence[Trie], keys: Sequence[Hashable]):
    self.rollout_ids: list[str] = []
    self.roles: list[str] = []
    self.groups: list[Hashable] = []
    self.call_keys: list[tuple[str, str]] = []
    self.number: dict[tuple[int, int], tuple[int, int]] = {}
    for t, trie in enumerate(tries):
      entries: dict[str, int] = {}
      for i in trie.trained:
        call = trie.calls[i]
        if not len(trie.output_nodes(i)):
          continue
        if call.role not in entries:
          entries[call.role] = len(self.rollout_ids)
          self.rollout_ids.append(trie.rollout_id)
          self.roles.append(call.role)
          main = call.role == 'main'
          self.groups.append(keys[t] if main else (keys[t], call.role))
        self.number[t, i] = (entries[call.role], len(self.call_keys))
        self.call_keys.append((trie.rollout_id, call.call_id))


# ---- one tree per group ----------------------------------------------------


@dataclasses.dataclass
class _Span:
  """Sampled tokens of one call inside one chunk; the call ends at `end`.

  `position` is that of its first token within the answer.
  """

  end: int
  chunk: int
  inside: int
  length: int
  position: int
  rollout: int
  call: int
  logprob: np.ndarray
  version: np.ndarray
  branch: Branch


@dataclasses.dataclass
class _Tree:
  """Leaves of a group's tree, in depth-first order.

  The leaves that fit a row and those that must be relayed are two `_Tree`s of
  one radix tree, with one list of spans and of owners.
  """

  radix: Radix
  leaves: list[int]
  paths: list[list[int]]
  length: np.ndarray
  shared: np.ndarray
  spans: list[_Span]
  before: dict[int, tuple[int, int]]
  long: bool = False
  unique: int = 0
  call_tokens: int = 0
  too_long: tuple[int, int] = (0, 0)
  owner: dict[int, tuple[bool, int]] = dataclasses.field(default_factory=dict)

  def tokens(self, first: int, stop: int) -> int:
    """Tokens of the union of the paths to leaves first..stop-1."""
    new = self.length[first:stop].sum() - self.shared[first + 1 : stop].sum()
    return int(new)

  def fits(self, first: int, room: int) -> int:
    """The largest stop with `tokens(first, stop) <= room` (first: none)."""
    new = (self.length - self.shared)[first:].copy()
    new[0] = self.length[first]
    total = np.cumsum(new)
    return first + bisect.bisect_right(total.tolist(), room)

  def pairs(self, first: int, stop: int) -> int:
    """Attention pairs of that union."""
    whole = self.length[first:stop] * (self.length[first:stop] + 1) // 2
    above = self.shared[first + 1 : stop]
    return int(whole.sum() - (above * (above + 1) // 2).sum())


def _merge(
  tries: Sequence[Trie],
  keys: Sequence[Hashable],
  index: _Index,
  config: PackConfig,
) -> list[_Tree]:
  members: dict[Hashable, list[int]] = {}
  for t, key in enumerate(keys):
    alone = not config.share or key == ''
    common = 'all' if config.share_across else key
    members.setdefault(('alone', t) if alone else ('group', common), []).append(
      t
    )
  return [
    tree
    for numbers in members.values()
    for tree in _grow(tries, keys, numbers, index, config)
  ]


def _grow(
  tries: Sequence[Trie],
  keys: Sequence[Hashable],
  numbers: list[int],
  index: _Index,
  config: PackConfig,
) -> list[_Tree]:
  radix = Radix()
  grower = Grower(
    radix, routes=any(tries[t].routes is not None for t in numbers)
  )
  ends: dict[tuple[int, int], int] = {}
  long_calls = long_terms = call_tokens = 0
  for t in numbers:
    for i in tries[t].trained:
      if (t, i) not in index.number:
        continue
      call = tries[t].calls[i]
      outputs = len(output_ids(call))
      total = len(call.prompt_ids) + outputs
      if total > config.row_tokens * config.relay:
        long_calls, long_terms = long_calls + 1, long_terms + outputs
        continue
      call_tokens += total
      ends[t, i] = grower.add(call)
  branches = {}
  for key in {keys[t] for t in numbers}:
    own = {k: end for k, end in ends.items() if keys[k[0]] == key}
    branches[key] = _branches(radix, own, index)
  spans = [
    span
    for (t, i), end in ends.items()
    for span in _spans(
      radix, end, tries[t], i, index.number[t, i], branches[keys[t]]
    )
  ]
  layout = radix.layout(order=config.order)
  leaves = [c for c in layout.chunks.tolist() if not radix.children[c]]
  before = _before(radix, spans, ends, index, tries)
  owner: dict[int, tuple[bool, int]] = {}
  found = []
  for long in (True, False):
    mine = [c for c in leaves if (radix.stop(c) > config.row_tokens) == long]
    paths = [radix.path(c) for c in mine]
    tree = _Tree(
      radix=radix,
      leaves=mine,
      paths=paths,
      length=np.array([radix.stop(c) for c in mine], np.int64),
      shared=np.array(_shared(radix, paths), np.int64),
      spans=spans,
      before=before,
      long=long,
      owner=owner,
    )
    if mine or not long:
      found.append(tree)
  # Counted once, whichever of the two there are.
  found[0].unique = sum(map(len, radix.tokens))
  found[0].call_tokens = call_tokens
  found[0].too_long = (long_calls, long_terms)
  return found


def _shared(radix: Radix, paths: list[list[int]]) -> list[int]:
  """Tokens that each path shares with the one before it."""
  shared = [0] * len(paths)
  for number, (before, path) in enumerate(
    zip(paths, paths[1:], strict=False), start=1
  ):
    for a, b in zip(before, path, strict=False):
      if a != b:
        break
      shared[number] = radix.stop(a)
  return shared


def _branches(
  radix: Radix, ends: dict[tuple[int, int], int], index: _Index
) -> list[Branch]:
  """`Branch` of each chunk, as the calls of one group see it."""
  members = [0] * len(radix.tokens)  # sets of rollouts as bits
  numbers = sorted({index.number[key][0] for key in ends})
  bit = {number: 1 << i for i, number in enumerate(numbers)}
  for key, end in ends.items():
    members[end] |= bit[index.number[key][0]]
  by_depth = sorted(range(1, len(members)), key=lambda c: radix.depth[c])
  for chunk in reversed(by_depth):
    members[radix.parent[chunk]] |= members[chunk]

  def named(bits: int) -> tuple[int, ...]:
    return tuple(n for n in numbers if bits & bit[n])

  fork = [0] * len(members)
  found = [Branch((), ())] * len(members)
  known: dict[tuple[int, int], Branch] = {}
  for chunk in by_depth:
    above = radix.parent[chunk]
    fork[chunk] = fork[above] if members[above] == members[chunk] else above
    bits = (members[chunk], members[fork[chunk]] if fork[chunk] else 0)
    if bits not in known:
      known[bits] = Branch(named(bits[0]), named(bits[1]))
    found[chunk] = known[bits]
  return found


def _spans(
  radix: Radix,
  end: int,
  trie: Trie,
  i: int,
  number: tuple[int, int],
  branches: list[Branch],
) -> list[_Span]:
  call = trie.calls[i]
  sample = call.sample
  assert sample is not None
  left = len(sample.token_ids)
  logprob = np.asarray(sample.logprobs, np.float32)
  version = sample.token_versions
  if version is None:
    version = np.full(left, sample.policy_version, np.int32)
  chunk, found = end, []
  while left > 0:
    length = len(radix.tokens[chunk])
    take = min(left, length)
    found.append(
      _Span(
        end=end,
        chunk=chunk,
        inside=length - take,
        length=take,
        position=left - take,
        rollout=number[0],
        call=number[1],
        logprob=logprob[left - take : left],
        version=np.asarray(version, np.int32)[left - take : left],
        branch=branches[chunk],
      )
    )
    left -= take
    chunk = radix.parent[chunk]
  return found[::-1]


def _before(
  radix: Radix,
  spans: list[_Span],
  ends: dict[tuple[int, int], int],
  index: _Index,
  tries: Sequence[Trie],
) -> dict[int, tuple[int, int]]:
  """For each call the (call, position) of the token its rollout sampled last
  in the prompt; calls without one are not in the dict."""
  sampled: dict[tuple[int, int], list[_Span]] = {}
  for span in spans:
    sampled.setdefault((span.rollout, span.chunk), []).append(span)
  found = {}
  for (t, i), chunk in ends.items():
    rollout, number = index.number[t, i]
    prompt = len(tries[t].calls[i].prompt_ids)
    while chunk > 0 and number not in found:
      best = -1
      for span in sampled.get((rollout, chunk), ()):
        first = radix.depth[chunk] + span.inside
        last = min(first + span.length, prompt) - 1
        if first <= last and last > best:
          best = last
          found[number] = (span.call, span.position + last - first)
      chunk = radix.parent[chunk]
  return found


# ---- fragments and rows ----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Fragment:
  """Leaves first..stop-1 of tree number `tree`."""

  tree: int
  first: int
  stop: int
  tokens: int


@dataclasses.dataclass
class _Row:
  """Fragments that stand in one row, or in `pieces` rows that go on."""

  room: int
  pieces: int = 1
  fragments: list[_Fragment] = dataclasses.field(default_factory=list)

  @property
  def tokens(self) -> int:
    return sum(f.tokens for f in self.fragments)


def _cheapest(trees: list[_Tree], config: PackConfig) -> tuple[int, list[_Row]]:
  """The length of rows with the least modelled cost, and its rows."""
  steps = range(1, config.row_steps + 1)
  lengths = set(
    config.row_buckets
    or (-(-config.row_tokens * i // config.row_steps) for i in steps)
  )
  if any(t.long and t.leaves for t in trees):
    lengths = {config.row_tokens}
  longest = max(
    (int(t.length.max()) for t in trees if t.leaves and not t.long), default=0
  )
  best = None
  allowed = sorted(length for length in lengths if length >= longest)
  for room in allowed:
    rows = _level(_place(trees, room, config))
    needed = max((row.tokens for row in rows if row.pieces == 1), default=0)
    T = next(length for length in allowed if length >= needed)
    count = max(1, sum(row.pieces for row in rows))
    count = -(-count // config.row_multiple) * config.row_multiple
    pairs = sum(
      trees[f.tree].pairs(f.first, f.stop)
      for row in rows
      for f in row.fragments
    )
    cost = (count * T + pairs / PAIRS_PER_TOKEN, -T)
    if best is None or cost < best[0]:
      best = (cost, T, rows)
  assert best is not None
  return best[1], best[2]


def _level(rows: list[_Row]) -> list[_Row]:
  """The same fragments dealt anew, largest first, each to the emptiest row.

  First-fit puts the largest trees together, and the fullest row sets T.
  """
  plain = [row for row in rows if row.pieces == 1]
  level = [_Row(row.room + row.tokens) for row in plain]
  for fragment in sorted(
    (f for row in plain for f in row.fragments), key=lambda f: -f.tokens
  ):
    row = max(level, key=lambda r: r.room)
    row.fragments.append(fragment)
    row.room -= fragment.tokens
  if max((r.tokens for r in level), default=0) >= max(
    (r.tokens for r in plain), default=0
  ):
    return rows
  return [row for row in rows if row.pieces > 1] + level


def _place(trees: list[_Tree], T: int, config: PackConfig) -> list[_Row]:
  """First-fit decreasing by cost in rows of T slots."""
  rows: list[_Row] = []

  def put(row: _Row, tree: int, first: int, stop: int) -> None:
    tokens = trees[tree].tokens(first, stop)
    row.fragments.append(_Fragment(tree, first, stop, tokens))
    row.room -= tokens

  def new(tree: _Tree, first: int) -> tuple[_Row, int]:
    """An empty row, long enough, and the leaf up to which it is filled."""
    stop = tree.fits(first, T * (config.relay if tree.long else 1))
    pieces = -(-tree.tokens(first, stop) // T)
    rows.append(_Row(pieces * T, pieces))
    return rows[-1], stop

  def cost(tree: _Tree) -> float:
    leaves = len(tree.leaves)
    pairs = tree.pairs(0, leaves) / PAIRS_PER_TOKEN
    return tree.tokens(0, leaves) + pairs

  order = [i for i, t in enumerate(trees) if t.leaves]
  # Relayed trees come first: they own what they hold of their group's calls.
  order.sort(key=lambda i: (not trees[i].long, -cost(trees[i])))
  for number in order:
    tree, first = trees[number], 0
    last = len(tree.leaves)
    while first < last:
      need = tree.tokens(first, last)
      row = next((r for r in rows if r.room >= need), None)
      if row is not None:
        put(row, number, first, last)
        break
      row = max(rows, key=lambda r: r.room, default=None)
      stop = tree.fits(first, row.room) if row else first
      if row is None or stop == first or not _worth(tree, first, stop, config):
        row, stop = new(tree, first)
      put(row, number, first, stop)
      first = stop
  return rows


def _worth(tree: _Tree, first: int, stop: int, config: PackConfig) -> bool:
  """Whether cutting here repeats little enough."""
  if stop == len(tree.leaves):
    return True
  own = tree.tokens(first, stop) - int(tree.shared[first])
  return tree.shared[stop] <= config.fill * own


# ---- arrays ----------------------------------------------------------------


def bucket(count: int, multiple: int = 1) -> int:
  """The smallest of multiple x {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20,
  24, ...} (four steps per doubling) that is at least `count`."""
  units = max(1, -(-count // multiple))
  step = 1
  while units > 8 * step:
    step *= 2
  return -(-units // step) * step * multiple


def _fill(
  rows: list[_Row],
  T: int,
  trees: list[_Tree],
  index: _Index,
  config: PackConfig,
) -> TreeBatch:
  count = max(1, sum(row.pieces for row in rows))
  B = -(-count // config.row_multiple) * config.row_multiple
  offset = np.zeros(B, np.int32)
  # Filled as one line of slots; a row and those that go on are a part of it.
  tokens = np.zeros(B * T, np.int32)
  parent = np.full(B * T, -1, np.int32)
  depth = np.zeros(B * T, np.int32)
  subtree_end = np.tile(np.arange(1, T + 1, dtype=np.int32), B)
  routes: np.ndarray | None = None
  terms: list[list[tuple[np.ndarray, _Span]]] = [[] for _ in range(B)]
  pairs = first = 0
  for row in rows:
    offset[first : first + row.pieces] = np.arange(row.pieces) * T
    at, base = 0, first * T
    subtree_end[base : base + row.pieces * T] = np.arange(row.pieces * T) + 1
    for fragment in sorted(row.fragments, key=lambda f: -f.tokens):
      tree = trees[fragment.tree]
      layout, kept = _lay_out(tree, fragment, config)
      here = slice(base + at, base + at + fragment.tokens)
      tokens[here] = layout.tokens
      parent[here] = np.where(layout.parent < 0, -1, layout.parent + at)
      depth[here] = layout.depth
      subtree_end[here] = layout.subtree_end + at
      pairs += int((layout.depth.astype(np.int64) + 1).sum())
      if layout.routes is not None:
        if routes is None:
          routes = np.full((B * T, *layout.routes.shape[1:]), -1, np.int16)
        routes[here] = layout.routes
      mine = (tree.long, fragment.first)
      for chunk in kept:
        tree.owner.setdefault(chunk, mine)
      for span in tree.spans:
        if tree.owner.get(span.end) == mine and layout.start[span.chunk] >= 0:
          # All terms of a call stand in the row in which the call ends.
          last = layout.start[span.end] + len(tree.radix.tokens[span.end]) - 1
          start = int(layout.start[span.chunk]) + span.inside + at
          terms[first + (int(last) + at) // T].append(
            (np.arange(start, start + span.length), span)
          )
      at += fragment.tokens
    first += row.pieces

  counts = [sum(len(slots) for slots, _ in row) for row in terms]
  E = bucket(max(counts, default=0), config.term_multiple)
  branches = tuple(dict.fromkeys(s.branch for row in terms for _, s in row))
  batch = TreeBatch(
    tokens=tokens.reshape(B, T),
    parent=parent.reshape(B, T),
    depth=depth.reshape(B, T),
    subtree_end=subtree_end.reshape(B, T),
    routes=None if routes is None else routes.reshape(B, T, *routes.shape[1:]),
    **_term_arrays(terms, branches, B, E),
    term_previous=_previous(terms, trees, B, E),
    row_offset=offset if offset.any() else None,
    branches=branches,
    rollout_ids=tuple(index.rollout_ids),
    roles=tuple(index.roles),
    groups=tuple(index.groups),
    call_keys=tuple(index.call_keys),
    stats={},
  )
  return batch.replace(stats=_stats(rows, trees, B, T, sum(counts), pairs))


def _lay_out(
  tree: _Tree, fragment: _Fragment, config: PackConfig
) -> tuple[Layout, list[int]]:
  keep = np.zeros(len(tree.radix.tokens), bool)
  for path in tree.paths[fragment.first : fragment.stop]:
    keep[path] = True
  layout = tree.radix.layout(order=config.order, keep=keep)
  return layout, np.flatnonzero(keep).tolist()


def _term_arrays(
  terms: list[list[tuple[np.ndarray, _Span]]],
  branches: tuple[Branch, ...],
  B: int,
  E: int,
) -> dict[str, np.ndarray]:
  ints = {
    'term_slot': np.zeros((B, E), np.int32),
    'term_rollout': np.full((B, E), -1, np.int32),
    'term_call': np.full((B, E), -1, np.int32),
    'term_version': np.full((B, E), -1, np.int32),
    'term_branch': np.full((B, E), -1, np.int32),
  }
  number = {branch: i for i, branch in enumerate(branches)}
  floats = {
    name: np.zeros((B, E), np.float32)
    for name in (
      'rollout_logprob',
      'old_logprob',
      'ref_logprob',
      'advantage',
      'value_target',
      'old_value',
      'weight',
    )
  }
  for r, row in enumerate(terms):
    at = 0
    for slots, span in row:
      here = slice(at, at + span.length)
      ints['term_slot'][r, here] = slots
      ints['term_rollout'][r, here] = span.rollout
      ints['term_call'][r, here] = span.call
      ints['term_version'][r, here] = span.version
      ints['term_branch'][r, here] = number[span.branch]
      floats['rollout_logprob'][r, here] = span.logprob
      floats['weight'][r, here] = 1.0
      at += span.length
  return ints | floats


def _previous(
  terms: list[list[tuple[np.ndarray, _Span]]],
  trees: list[_Tree],
  B: int,
  E: int,
) -> np.ndarray:
  """Flat index of the term before each term; see `TreeBatch`."""
  first: dict[int, int] = {}  # call -> flat index of its first term
  length: dict[int, int] = {}
  for r, row in enumerate(terms):
    at = 0
    for _, span in row:
      first.setdefault(span.call, r * E + at)
      length[span.call] = length.get(span.call, 0) + span.length
      at += span.length
  previous = np.full(B * E, -1, np.int64)
  before = {k: v for tree in trees for k, v in tree.before.items()}
  for call, start in first.items():
    stop = start + length[call]
    previous[start:stop] = np.arange(start - 1, stop - 1)
    other, position = before.get(call, (-1, 0))
    previous[start] = first[other] + position if other >= 0 else -1
  return previous.reshape(B, E)


def _stats(
  rows: list[_Row],
  trees: list[_Tree],
  B: int,
  T: int,
  terms: int,
  pairs: int,
) -> dict[str, float]:
  tokens = sum(row.tokens for row in rows)
  unique = sum(t.unique for t in trees)
  branch = sum(int(t.length.sum()) for t in trees)
  calls = sum(t.call_tokens for t in trees)
  return {
    'rows': sum(row.pieces for row in rows),
    'relayed_rows': sum(row.pieces - 1 for row in rows),
    'tokens': tokens,
    'slots': B * T,
    'padding': 1 - tokens / (B * T),
    'terms': terms,
    'trees': sum(t.unique > 0 for t in trees),
    'fragments': sum(len(row.fragments) for row in rows),
    'repeated': tokens - unique,
    'call_tokens': calls,
    'branch_tokens': branch,
    'call_ratio': calls / max(tokens, 1),
    'branch_ratio': branch / max(tokens, 1),
    'pairs': pairs,
    'too_long_calls': sum(t.too_long[0] for t in trees),
    'too_long_terms': sum(t.too_long[1] for t in trees),
  }
