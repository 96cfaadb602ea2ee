"""Rollouts on the page: how they ended, and some of them as trees of tokens.

Few are drawn, and unlike each other: the best and the worst of the last
evaluation, those that the first and the last step pushed hardest up and down,
the one with most calls, one that did not end well.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from clawjax import types
from clawjax.eval import folder as folder_lib
from clawjax.eval import page, transcript

_ADVANTAGE_EPS = 1e-6


def outcomes(run: folder_lib.RunFolder) -> str:
  if not run.rollouts:
    return ''
  phases = sorted({r.phase for r in run.rollouts}, reverse=True)
  table: dict[str, collections.Counter] = {}
  reasons: collections.Counter = collections.Counter()
  for item in run.rollouts:
    outcome = item.rollout.outcome
    table.setdefault(outcome, collections.Counter())[item.phase] += 1
    if outcome != 'ok':
      reasons[outcome, item.rollout.reason or '(no reason given)'] += 1
  order = sorted(table, key=lambda k: (k != 'ok', -sum(table[k].values())))
  totals = collections.Counter(r.phase for r in run.rollouts)
  rows = [
    [page.escape(k)]
    + [
      f'{table[k][p]:,} <span class="ci">{table[k][p] / totals[p]:.1%}</span>'
      for p in phases
    ]
    + ['scored' if k in types.SCORED_OUTCOMES else 'left out']
    for k in order
  ]
  body = page.table(
    ['outcome', *map(page.escape, phases), 'its reward'],
    rows,
    text_columns=(0, len(phases) + 1),
  )
  if reasons:
    body += page.table(
      ['outcome', 'reason', 'rollouts'],
      [
        [page.escape(k), page.escape(page.one_line(why)), f'{n:,}']
        for (k, why), n in reasons.most_common(12)
      ],
      text_columns=(0, 1),
      caption='Why, most common first',
    )
  body += _call_table(run)
  return page.section('How rollouts ended', body)


def _call_table(run: folder_lib.RunFolder) -> str:
  """Answers that ended early, broke or were malformed, over all calls."""
  seen: collections.Counter = collections.Counter()
  total = 0
  for item in run.rollouts:
    for call in item.rollout.calls:
      total += 1
      if call.sample is not None and call.sample.finish != 'stop':
        seen[f'answer ended by {call.sample.finish}'] += 1
      if call.status != 'ok':
        seen[f'call {call.status}'] += 1
      if call.malformed:
        seen['malformed tool call'] += 1
      if call.retry_of:
        seen['retry of an earlier call'] += 1
      if call.role != 'main':
        seen[f'role {call.role}'] += 1
      if call.break_cause:
        seen[f'branched: {call.break_cause}'] += 1
  if not seen:
    return ''
  return page.table(
    ['among the calls', 'calls', 'share'],
    [
      [page.escape(page.one_line(k)), f'{n:,}', f'{n / total:.1%}']
      for k, n in seen.most_common(12)
    ],
    caption=f'{total:,} calls in all',
  )


def advantages(
  rollouts: Sequence[folder_lib.Recorded],
  stored: Mapping[str, float] | None = None,
) -> dict[int, float]:
  """Position in `rollouts` -> advantage.

  Args:
    rollouts: of any phase; only training has advantages.
    stored: rollout id -> advantage as the trainer used it. Where it stored
      none, (R - mean) / (std + eps) over the valid rollouts of the group that
      were read, with the population deviation.
  """
  found = {}
  groups: dict[tuple, list[int]] = {}
  for i, item in enumerate(rollouts):
    if item.phase != 'train' or not item.rollout.valid:
      continue
    if item.rollout.rollout_id in (stored or {}):
      found[i] = stored[item.rollout.rollout_id]
    elif not stored:
      key = (item.step, *item.rollout.group)
      groups.setdefault(key, []).append(i)
  for members in groups.values():
    rewards = np.array([rollouts[i].rollout.reward for i in members])
    if len(members) > 1:
      spread = rewards.std() + _ADVANTAGE_EPS
      for i, reward in zip(members, rewards, strict=True):
        found[i] = float((reward - rewards.mean()) / spread)
  return found


def rollouts(run: folder_lib.RunFolder, tokenizer, shown: int) -> str:
  if not run.rollouts:
    return ''
  known = advantages(run.rollouts, run.advantages)
  blocks = []
  for number, (index, why) in enumerate(_choose(run.rollouts, known, shown)):
    item = run.rollouts[index]
    try:
      blocks.append(
        transcript.draw(
          item.rollout,
          tokenizer=tokenizer,
          advantage=known.get(index),
          why=f'{item.phase} step {item.step.lstrip("0") or "0"}: {why}',
          opened=number == 0,
        )
      )
    except Exception as error:  # a broken record must not cost the page
      name = page.escape(item.rollout.rollout_id)
      blocks.append(
        f'<p class="cap">{name} could not be drawn: {page.escape(error)}</p>'
      )
  lead = (
    'Each stretch of tokens stands once; where calls part ways the branches are '
    'indented. Grey text came from the harness or the environment. Tinted '
    'tokens were sampled by the model: <span class="sw">likely</span> '
    '<span class="sw q3">below 0.1</span>; point at one for its log-prob.'
  )
  return page.section('Rollouts', ''.join(blocks), lead=lead)


def _choose(
  rollouts: Sequence[folder_lib.Recorded],
  known: Mapping[int, float],
  shown: int,
) -> list[tuple[int, str]]:
  """Which rollouts to draw, each with the reason: few, and unlike each other."""
  with_calls = [i for i, r in enumerate(rollouts) if r.rollout.calls]
  train = [i for i in with_calls if rollouts[i].phase == 'train']
  held_out = [i for i in with_calls if rollouts[i].phase != 'train']

  def reward(i: int) -> float:
    value = rollouts[i].rollout.reward
    return -1.0 if value is None else value

  def last(items: list[int]) -> list[int]:
    step = max((rollouts[i].step for i in items), default='')
    return [i for i in items if rollouts[i].step == step]

  def first(items: list[int]) -> list[int]:
    step = min((rollouts[i].step for i in items), default='')
    return [i for i in items if rollouts[i].step == step]

  def best(items, score, why):
    return (max(items, key=score), why) if items else None

  scored = [i for i in held_out if rollouts[i].rollout.valid]
  pushed = [i for i in train if i in known]
  odd = [i for i in with_calls if rollouts[i].rollout.outcome != 'ok']
  wanted = [
    best(last(scored), reward, 'highest reward'),
    best(last(scored), lambda i: -reward(i), 'lowest reward'),
    best(last(pushed), lambda i: known[i], 'largest advantage'),
    best(last(pushed), lambda i: -known[i], 'smallest advantage'),
    best(first(pushed), lambda i: known[i], 'largest advantage'),
    best(first(pushed), lambda i: -known[i], 'smallest advantage'),
    best(with_calls, lambda i: len(rollouts[i].rollout.calls), 'most calls'),
    best(odd, lambda i: i, 'did not end well'),
    best(first(with_calls), lambda i: -i, 'the first one recorded'),
  ]
  chosen: dict[int, str] = {}
  for pick in wanted:
    if pick and pick[0] not in chosen and len(chosen) < shown:
      chosen[pick[0]] = pick[1]
  return list(chosen.items())


def load_tokenizer(run: folder_lib.RunFolder, notes: list[str]):
  """The run's tokenizer, or None with a note."""
  if not run.rollouts:
    return None
  name = folder_lib.plain(folder_lib.find(run.config, 'tokenizer'))
  if not name:
    notes.append('The config names no tokenizer: transcripts show no tokens.')
    return None
  try:
    from clawjax.chat import tokenizers

    return tokenizers.load(name)
  except Exception as error:  # whatever it is, the page can do without
    notes.append(
      f'Tokenizer {name!r} cannot be loaded ({error}): transcripts show no '
      'tokens.'
    )
    return None
