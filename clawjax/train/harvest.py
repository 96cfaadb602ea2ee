"""From finished groups of rollouts to filled loss terms.

  gather   group -> tries -> filter -> one packed chunk, as groups come in
  fill     all chunks of a step -> advantages (credit.py) and weights, in
           minibatches

A chunk is what was packed together; no rollout is ever in two chunks, so a
minibatch is a set of chunks. Rollouts that are not valid never get here;
over-branching ones leave the statistics as well as the loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from clawjax import trie as trie_lib
from clawjax import types
from clawjax.losses import weights
from clawjax.train import credit
from clawjax.train.credit import CreditConfig as CreditConfig
from clawjax.train.credit import entries
from clawjax.trie import TreeBatch


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Rows packed together, with the rollouts that they came from.

  Attributes:
    batch: rows and terms; advantage and weight not yet filled.
    rollouts: valid rollouts that entered the group statistics.
    reports: filter report per rollout id, dropped ones included.
  """

  batch: TreeBatch
  rollouts: tuple[types.Rollout, ...]
  reports: Mapping[str, trie_lib.FilterReport]


def gather(
  rollouts: Sequence[types.Rollout],
  *,
  filter_config: trie_lib.FilterConfig,
  pack_config: trie_lib.PackConfig,
) -> Chunk | None:
  """Builds, filters and packs; None when nothing is left to train."""
  tries, kept, reports = [], [], {}
  for rollout in rollouts:
    if not rollout.valid:
      continue
    tree, report = trie_lib.filter(
      trie_lib.build(rollout, group=rollout.group), filter_config
    )
    reports[rollout.rollout_id] = report
    if report.dropped:
      continue
    kept.append(rollout)
    tries.append(tree)
  if not any(tree.trained for tree in tries):
    return None
  batch = trie_lib.pack(tries, config=pack_config)
  return Chunk(batch, tuple(kept), reports)


@dataclasses.dataclass(frozen=True)
class Filled:
  """Minibatches ready for `Learner.update`, and what is known of them.

  Attributes:
    minibatches: each one optimiser step; chunks without a term that may move
      weights are in none.
    advantage: rollout id -> mean advantage of its terms (for the report).
    statistics: of groups, rewards and values, see `credit.assign`.
    packing: of rows, see `trie.pack`.
  """

  minibatches: tuple[TreeBatch, ...]
  advantage: Mapping[str, float]
  statistics: Mapping[str, float]
  packing: Mapping[str, float]


def fill(
  chunks: Sequence[Chunk],
  config: CreditConfig,
  *,
  minibatches: int,
  rng: np.random.Generator,
  order: np.random.Generator,
) -> Filled:
  """Fills advantages and weights of a whole step.

  Args:
    chunks: all chunks of the step; `old_logprob` filled, and `old_value` and
      `ref_logprob` where `config` wants them.
    config: see `CreditConfig`.
    minibatches: optimiser steps to cut the step into.
    rng: deals out the rewards in the control.
    order: deals the chunks out over the minibatches.
  """
  given = credit.assign(
    [(c.batch, c.rollouts) for c in chunks], config, rng=rng
  )
  used = [
    b
    for b in given.batches
    if _allowed(b, given.active)[b.term_rollout[b.term_rollout >= 0]].any()
  ]
  places = order.permutation(len(used))
  count = min(minibatches, len(used))
  batches = []
  for part in np.array_split(places, count) if count else ():
    batch = concatenate([used[i] for i in part])
    batches.append(
      batch.replace(
        weight=weights.term_weights(
          batch.term_rollout,
          groups=batch.groups,
          aggregation=config.aggregation,
          active=_allowed(batch, given.active),
          constant=config.constant,
        ),
      )
    )
  return Filled(
    minibatches=tuple(batches),
    advantage=given.by_rollout,
    statistics=given.statistics,
    packing=_total([c.batch.stats for c in chunks]),
  )


def _allowed(
  batch: TreeBatch, active: Mapping[credit.Entry, bool]
) -> np.ndarray:
  """Whether each entry's terms may move weights, bool [entries]."""
  return np.array([active[key] for key in entries(batch)], bool)


def accounting(
  reports: Mapping[str, trie_lib.FilterReport],
) -> dict[str, float]:
  """Delivered-token fraction and the reasons for the rest, over rollouts."""
  tokens: dict[str, int] = {}
  for report in reports.values():
    for reason, count in report.tokens.items():
      tokens[reason] = tokens.get(reason, 0) + count
  sampled = tokens.pop('sampled', 0)
  trained = tokens.pop('trained', 0)
  metrics = {
    'sampled_tokens': float(sampled),
    'trained_tokens': float(trained),
    'delivered_fraction': trained / sampled if sampled else float('nan'),
    'dropped_rollouts': float(sum(r.dropped for r in reports.values())),
  }
  for reason, count in sorted(tokens.items()):
    metrics[f'undelivered_{reason}'] = count / sampled if sampled else 0.0
  return metrics


def concatenate(batches: Sequence[TreeBatch]) -> TreeBatch:
  """Rows of several batches as one; the shorter axes are padded.

  What only serves to assign credit (`term_previous`, `term_branch`) is left out
  when there is more than one.
  """
  if len(batches) == 1:
    return batches[0]
  slots = max(b.tokens.shape[1] for b in batches)
  terms = max(b.term_slot.shape[1] for b in batches)
  with_routes = any(b.routes is not None for b in batches)
  with_relay = any(b.row_offset is not None for b in batches)
  parts: dict[str, list[np.ndarray]] = {}
  rollout_ids: list[str] = []
  call_keys: list[tuple[str, str]] = []
  roles: list[str] = []
  groups: list = []
  for batch in batches:
    arrays = batch.arrays()
    if with_relay:
      offset = batch.row_offset
      if offset is None:
        offset = np.zeros(len(batch.tokens), np.int32)
      elif batch.tokens.shape[1] != slots:
        raise ValueError('relayed rows cannot be made longer')
      parts.setdefault('row_offset', []).append(offset)
    if with_routes and 'routes' not in arrays:
      raise ValueError('wanted routes in all batches or in none')
    offsets = {'term_rollout': len(rollout_ids), 'term_call': len(call_keys)}
    for name, value in arrays.items():
      if name in offsets:
        value = np.where(value >= 0, value + offsets[name], -1)
        value = value.astype(np.int32)
      wide = slots if name in _SLOT_FIELDS else terms
      parts.setdefault(name, []).append(_widen(name, value, wide))
    rollout_ids += batch.rollout_ids
    call_keys += batch.call_keys
    roles += batch.roles
    groups += batch.groups
  return batches[0].replace(
    **{name: np.concatenate(values) for name, values in parts.items()},
    rollout_ids=tuple(rollout_ids),
    call_keys=tuple(call_keys),
    roles=tuple(roles),
    groups=tuple(groups),
    stats=_total([b.stats for b in batches]),
    term_previous=None,
    term_branch=None,
    branches=(),
  )


_SLOT_FIELDS = ('tokens', 'parent', 'depth', 'subtree_end', 'routes')


def _widen(name: str, value: np.ndarray, size: int) -> np.ndarray:
  missing = size - value.shape[1]
  if not missing:
    return value
  shape = (value.shape[0], missing, *value.shape[2:])
  if name == 'subtree_end':
    tail = np.arange(value.shape[1] + 1, size + 1, dtype=value.dtype)
    return np.concatenate([value, np.broadcast_to(tail, shape)], axis=1)
  minus = ('parent', 'routes', 'term_rollout', 'term_call', 'term_version')
  tail = np.full(shape, -1 if name in minus else 0, value.dtype)
  return np.concatenate([value, tail], axis=1)


_SUMMED = (
  'rows',
  'tokens',
  'slots',
  'terms',
  'trees',
  'fragments',
  'repeated',
  'relayed_rows',
  'call_tokens',
  'branch_tokens',
  'pairs',
  'too_long_calls',
  'too_long_terms',
)


def _total(stats: Sequence[Mapping[str, float]]) -> dict[str, float]:
  """Packing statistics of several batches together."""
  total = {name: float(sum(s.get(name, 0) for s in stats)) for name in _SUMMED}
  tokens = max(total['tokens'], 1.0)
  total['padding'] = 1 - total['tokens'] / max(total['slots'], 1.0)
  total['call_ratio'] = total['call_tokens'] / tokens
  total['branch_ratio'] = total['branch_tokens'] / tokens
  return total
