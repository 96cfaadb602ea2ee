"""Draws one rollout as a tree of tokens, for people to read.

The calls of a rollout share most of their prompts. Laid into a prefix tree,
each stretch of tokens stands once: first the stem, and where calls part ways,
one indented branch per continuation. Tokens that the model sampled are tinted,
darker the less likely they were, with the log-prob on hover; what the harness
or the environment wrote is grey, and folded where it is long.

Answers that the default filter would keep from training (retries, side calls,
broken calls) are underlined instead of tinted, with the reason in their label.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from clawjax import trie as trie_lib
from clawjax import types
from clawjax.eval import page

Decode = Callable[[Sequence[int]], str]


class Tokenizer(Protocol):
  """What is needed to show tokens as text."""

  def decode(self, ids: Sequence[int]) -> str:
    """Text of `ids`, special tokens shown."""


@dataclasses.dataclass(frozen=True)
class Limits:
  """How much of a rollout is put on the page.

  Attributes:
    env_shown: characters of an environment stretch that show unfolded.
    env_kept: characters kept in all; the middle of the rest is left out.
    model_tokens: sampled tokens drawn one by one; later ones are plain text.
    forks: deepest nesting of branches.
  """

  env_shown: int = 700
  env_kept: int = 6000
  model_tokens: int = 3000
  forks: int = 40


@dataclasses.dataclass
class Node:
  """A stretch of tokens without a fork.

  Attributes:
    ids: token ids.
    marks: per token (number of the call that sampled it, its log-prob), or
      None for tokens of the environment.
    children: first id of each continuation -> node.
  """

  ids: list[int]
  marks: list[tuple[int, float] | None]
  children: dict[int, Node]


@dataclasses.dataclass(frozen=True)
class Counts:
  """Sizes of a rollout in tokens.

  Attributes:
    flat: sum over calls of prompt and answer.
    tree: tokens in the tree, each counted once.
    sampled: tokens that the model sampled.
  """

  flat: int
  tree: int
  sampled: int


def tree(calls: Sequence[types.Call]) -> Node:
  """The prefix tree of `calls`; the root holds what all of them share."""
  top = Node([], [], {})
  for number, call in enumerate(calls):
    ids = [int(i) for i in call.prompt_ids]
    marks: list[tuple[int, float] | None] = [None] * len(ids)
    if call.sample is not None:
      ids += [int(i) for i in call.sample.token_ids]
      marks += [(number, float(p)) for p in call.sample.logprobs]
      marks += [(number, math.nan)] * (len(ids) - len(marks))
    _insert(top, ids, marks[: len(ids)])
  while not top.ids and len(top.children) == 1:
    top = next(iter(top.children.values()))
  return top


def _insert(
  node: Node, ids: list[int], marks: list[tuple[int, float] | None]
) -> None:
  at = 0
  while at < len(ids):
    child = node.children.get(ids[at])
    if child is None:
      node.children[ids[at]] = Node(ids[at:], marks[at:], {})
      return
    same = 0
    for mine, new in zip(child.ids, ids[at:], strict=False):
      if mine != new:
        break
      child.marks[same] = child.marks[same] or marks[at + same]
      same += 1
    if at + same == len(ids):
      return
    if same < len(child.ids):  # the new path leaves inside this stretch
      tail = Node(child.ids[same:], child.marks[same:], child.children)
      del child.ids[same:], child.marks[same:]
      child.children = {tail.ids[0]: tail}
    node = child
    at += same


def counts(calls: Sequence[types.Call]) -> Counts:
  """Sizes of the flat calls and of their tree."""
  total = 0
  stack = [tree(calls)]
  while stack:
    node = stack.pop()
    total += len(node.ids)
    stack.extend(node.children.values())
  sampled = sum(len(c.sample.token_ids) for c in calls if c.sample)
  return Counts(
    flat=sum(len(c.prompt_ids) for c in calls) + sampled,
    tree=total,
    sampled=sampled,
  )


# ---- drawing ---------------------------------------------------------------


def draw(
  rollout: types.Rollout,
  *,
  tokenizer: Tokenizer | None,
  advantage: float | None = None,
  why: str = '',
  opened: bool = False,
  limits: Limits = Limits(),
) -> str:
  """HTML of one rollout: a header with its numbers, then the tree.

  Args:
    rollout: with its calls.
    tokenizer: for the text; without one, `Call.text` is shown where recorded.
    advantage: as computed in its group, when known.
    why: why the page shows this one; plain text.
    opened: unfolded from the start.
    limits: how much to show.
  """
  size = counts(rollout.calls)
  reward = rollout.reward
  tone = '' if reward is None else ' good' if reward >= 0.999 else ' bad'
  pills = [
    f'<span class="pill{tone}">reward '
    f'{"unknown" if reward is None else page.number(reward)}</span>'
  ]
  if advantage is not None:
    pills.append(
      f'<span class="pill">advantage {page.signed(advantage)}</span>'
    )
  if rollout.outcome != 'ok':
    pills.append(
      f'<span class="pill bad">{page.escape(rollout.outcome)}</span>'
    )
  pills.append(f'<span class="pill">{len(rollout.calls)} calls</span>')
  pills.append(
    f'<span class="pill">{size.sampled:,} sampled of {size.tree:,} tokens in '
    f'the tree</span>'
  )
  if size.flat > size.tree:
    pills.append(
      f'<span class="pill">flat calls: {size.flat:,} '
      f'({size.flat / max(size.tree, 1):.1f}\u00d7)</span>'
    )
  head = (
    f'<summary><h3>{page.escape(rollout.rollout_id)} '
    f'<span class="why">{page.escape(why)}</span></h3>{"".join(pills)}'
    '</summary>'
  )
  reason = (
    f'<p class="cap">{page.escape(rollout.reason)}</p>'
    if rollout.reason
    else ''
  )
  body = _body(rollout, tokenizer, limits)
  return (
    f'<details class="rollout"{" open" if opened else ""}>{head}{reason}'
    f'{_checks(rollout.checks)}{body}</details>'
  )


def _checks(checks: Mapping[str, float]) -> str:
  if not checks:
    return ''
  return (
    '<p class="cap">'
    + ' '.join(
      f'<span class="pill {"good" if v >= 0.999 else "bad"}">'
      f'{page.escape(k)} {page.short(float(v))}</span>'
      for k, v in checks.items()
    )
    + '</p>'
  )


def _body(
  rollout: types.Rollout, tokenizer: Tokenizer | None, limits: Limits
) -> str:
  if not rollout.calls:
    return '<p class="cap">No call was captured.</p>'
  if tokenizer is None:
    return ''.join(
      f'<div class="tree"><span class="call">{_call_label(c)}</span>'
      f'{page.escape(c.text) if c.text else "(text not recorded)"}</div>'
      for c in rollout.calls
    )
  calls = sorted(rollout.calls, key=lambda c: c.index)
  rises = (rollout.extra.get('process') or {}).get('rewards') or {}
  painter = _Painter(calls, _reasons(rollout), rises, tokenizer.decode, limits)
  return f'<div class="tree">{painter.node(tree(calls))}</div>'


def _reasons(rollout: types.Rollout) -> tuple[str, ...]:
  """Per call, by index: why its answer is not trained ('' if it is)."""
  built = trie_lib.build(rollout, routes='ignore')
  return trie_lib.filter(built, max_leaves=None)[0].reasons


def _call_label(call: types.Call) -> str:
  parts = [f'call {call.index}']
  if call.role != 'main':
    parts.append(call.role)
  if call.status != 'ok':
    parts.append(call.status)
  if call.sample is not None:
    parts.append(call.sample.finish)
    parts.append(f'{len(call.sample.token_ids)} tokens')
    mean = (
      call.sample.logprobs.mean() if call.sample.logprobs.size else math.nan
    )
    parts.append(f'mean log-prob {page.number(float(mean), 2)}')
    parts.append(f'policy {call.sample.policy_version}')
  if call.malformed:
    parts.append('malformed tool call')
  if call.retry_of:
    parts.append('retry')
  if call.break_cause:
    parts.append(f'branches: {page.escape(call.break_cause)}')
  if call.error:
    parts.append(page.escape(call.error[:200]))
  return ' \u00b7 '.join(parts)


class _Painter:
  """Turns nodes into HTML within one rollout's limits."""

  def __init__(
    self,
    calls: Sequence[types.Call],
    reasons: Sequence[str],
    rises: Mapping[str, float],
    decode: Decode,
    limits: Limits,
  ):
    self._calls = calls
    self._reasons = reasons
    self._rises = rises
    self._decode = decode
    self._limits = limits
    self._left = limits.model_tokens
    self._labelled: set[int] = set()

  def node(self, node: Node, depth: int = 0) -> str:
    """HTML of a node and all below it; only forks recurse."""
    if depth > self._limits.forks:
      return '<span class="call">deeper branches are not drawn</span>'
    out = []
    while True:
      out.append(self._stretch(node))
      if len(node.children) != 1:
        break
      node = next(iter(node.children.values()))
    for child in node.children.values():
      out.append(f'<div class="branch">{self.node(child, depth + 1)}</div>')
    return ''.join(out)

  def _stretch(self, node: Node) -> str:
    out = []
    for call, start, stop in _runs(node.marks):
      ids = node.ids[start:stop]
      if call is None:
        out.append(self._environment(ids))
      else:
        out.append(self._sampled(call, ids, node.marks[start:stop]))
    return ''.join(out)

  def _environment(self, ids: Sequence[int]) -> str:
    text = self._decode(ids)
    limits = self._limits
    if len(text) <= limits.env_shown:
      return f'<span class="env">{page.escape(text)}</span>'
    head, tail = text[: limits.env_shown // 2], text[-limits.env_shown // 2 :]
    middle = text[len(head) : -len(tail)]
    if len(middle) > limits.env_kept:
      half = limits.env_kept // 2
      left_out = len(middle) - 2 * half
      middle = (
        f'{middle[:half]}\n[{left_out:,} characters left out]\n{middle[-half:]}'
      )
    return (
      f'<span class="env">{page.escape(head)}<details class="more"><summary>'
      f'\u2026 {len(text) - len(head) - len(tail):,} more characters \u2026'
      f'</summary>{page.escape(middle)}</details>{page.escape(tail)}</span>'
    )

  def _sampled(self, call: int, ids: Sequence[int], marks: Sequence) -> str:
    record = self._calls[call]
    label = ''
    if call not in self._labelled:
      self._labelled.add(call)
      why = self._reasons[call]
      label = f'<span class="call">{_call_label(record)}'
      if record.call_id in self._rises:
        rise = page.signed(self._rises[record.call_id])
        label += f' \u00b7 reward of the call {rise}'
      label += (
        f' \u00b7 not trained: {page.escape(why)}</span>' if why else '</span>'
      )
    if self._left <= 0:
      return f'{label}<i>{page.escape(self._decode(ids))}</i>'
    self._left -= len(ids)
    out = []
    at = 0
    for text, count in pieces(ids, self._decode):
      group = ids[at : at + count]
      logprob = math.fsum(m[1] for m in marks[at : at + count])
      at += count
      shown = page.escape(text)
      if not text.strip():
        shown = shown.replace('\n', '\u21b5\n')
      names = ' '.join(map(str, group))
      out.append(
        f'<i{_tint(logprob)} data-t="log-prob {page.short(logprob)}   '
        f'p {page.short(math.exp(logprob))}   id {names}">{shown}</i>'
      )
    off = ' class="off"' if self._reasons[call] else ''
    return f'{label}<span{off}>{"".join(out)}</span>'


def pieces(
  ids: Sequence[int], decode: Decode, *, longest: int = 8
) -> Iterator[tuple[str, int]]:
  """Text of each token, or of a few that only together are whole characters.

  Yields:
    (text, number of tokens).
  """
  pending: list[int] = []
  for token in ids:
    pending.append(token)
    text = decode(pending)
    if text.endswith('\ufffd') and len(pending) < longest:
      continue
    yield text, len(pending)
    pending = []
  if pending:
    yield decode(pending), len(pending)


def _runs(
  marks: Sequence[tuple[int, float] | None],
) -> Iterator[tuple[int | None, int, int]]:
  """(call number or None, start, stop) of each run of one origin."""
  start = 0
  for at in range(1, len(marks) + 1):
    here = marks[start][0] if marks[start] else None
    if at == len(marks) or (marks[at][0] if marks[at] else None) != here:
      yield here, start, at
      start = at


def _tint(logprob: float) -> str:
  """Class by probability: plain above 0.9, then above 0.5, 0.1 and below."""
  if not logprob < math.log(0.9):  # also for NaN
    return ''
  if logprob > math.log(0.5):
    return ' class="q1"'
  return ' class="q2"' if logprob > math.log(0.1) else ' class="q3"'
