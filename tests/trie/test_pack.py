"""Rows and terms: what stands where, and what packing must not change."""

import numpy as np
import pytest

from clawjax import trie


def group_of(
  script, rng, *, rollouts=3, turns=3, group='g', stem=20, side=True
):
  """Rollouts of one task: a common prompt, then turns that differ."""
  tries = []
  prompt = rng.integers(0, 50, stem).tolist()
  for r in range(rollouts):
    call = script(f'{group}/{r}')
    ids = list(prompt)
    for turn in range(turns):
      answer = rng.integers(0, 50, rng.integers(1, 9)).tolist()
      call(ids, answer)
      if side and turn == 1:  # a branch from the middle of the history
        call([*ids[:-3], 99], rng.integers(0, 50, 4).tolist())
      ids = [*ids, *answer, *rng.integers(0, 50, rng.integers(1, 6)).tolist()]
    tries.append(trie.build(call.calls, group=group))
  return tries


def terms_of(batch: trie.TreeBatch) -> dict:
  """(call key, depth, token, context) -> log-prob, independent of the layout."""
  found = {}
  for b, e in np.argwhere(batch.mask):
    slot = int(batch.term_slot[b, e])
    depth = int(batch.depth[b, slot])
    path = []
    at = slot
    while at >= 0:
      path.append(int(batch.tokens[b, at]))
      at = int(batch.parent[b, at])
    key = (batch.call_keys[batch.term_call[b, e]], depth, tuple(path[::-1]))
    assert key not in found, 'one sampled token, two terms'
    assert batch.rollout_ids[batch.term_rollout[b, e]] == key[0][0]
    found[key] = float(batch.rollout_logprob[b, e])
  return found


def expected_terms(tries) -> dict:
  """The same from the calls, without any tree."""
  found = {}
  for tree in tries:
    for i in tree.trained:
      call = tree.calls[i]
      ids = [*call.prompt_ids.tolist(), *call.sample.token_ids.tolist()]
      for t, logprob in enumerate(call.sample.logprobs):
        depth = len(call.prompt_ids) + t
        key = ((call.rollout_id, call.call_id), depth, tuple(ids[: depth + 1]))
        found[key] = float(logprob)
  return found


def check_rows(batch: trie.TreeBatch):
  """The slot fields agree with each other, by brute force."""
  B, T = batch.tokens.shape
  for b in range(B):
    parent, depth = batch.parent[b], batch.depth[b]
    end = np.arange(1, T + 1)
    for t in range(T - 1, -1, -1):
      p = parent[t]
      assert p < t
      assert depth[t] == (depth[p] + 1 if p >= 0 else 0)
      if p >= 0:
        end[p] = max(end[p], end[t])
    assert batch.subtree_end[b].tolist() == end.tolist()


@pytest.mark.parametrize('row_tokens', [56, 100, 333, 1000])
@pytest.mark.parametrize(
  'options', [{}, {'share': False}, {'fill': 0.0}, {'share_across': True}]
)
def test_every_term_once_in_its_own_context(script, row_tokens, options):
  rng = np.random.default_rng(0)
  tries = [
    tree for g in range(4) for tree in group_of(script, rng, group=f'g{g}')
  ]
  batch = trie.pack(tries, row_tokens=row_tokens, **options)
  assert batch.stats['too_long_calls'] == 0
  check_rows(batch)
  assert terms_of(batch) == expected_terms(tries)


@pytest.mark.parametrize(
  'order', ['largest', 'smallest', 'creation', 'reversed']
)
def test_child_order_changes_the_layout_only(script, order):
  tries = group_of(script, np.random.default_rng(1))
  batch = trie.pack(tries, row_tokens=256, order=order)
  check_rows(batch)
  assert terms_of(batch) == expected_terms(tries)


def test_a_group_shares_its_stem(script):
  """Two rollouts, prompt of 4, answers of 2 that differ: 4 + 2 + 2 slots."""
  tries = []
  for r in range(2):
    call = script(f'r{r}')
    call([1, 2, 3, 4], [10 + r, 5])
    tries.append(trie.build(call.calls, group='task'))
  batch = trie.pack(tries, row_tokens=16)
  assert batch.stats['tokens'] == 8
  assert batch.stats['call_tokens'] == 12
  assert batch.stats['call_ratio'] == 1.5
  apart = trie.pack(tries, row_tokens=16, groups=['a', 'b'])
  assert apart.stats['tokens'] == 12
  across = trie.pack(tries, row_tokens=16, groups=['a', 'b'], share_across=True)
  assert across.stats['tokens'] == 8
  assert across.groups == ('a', 'b')
  # No group knows of the other's branches.
  assert all(len(b.here) == 1 and not b.above for b in across.branches)


def test_padding(script):
  """Padding slots see only themselves; padding terms weigh nothing."""
  call = script()
  call([1, 2], [3])
  batch = trie.pack([trie.build(call.calls)], row_tokens=8, row_buckets=(8,))
  assert batch.tokens.tolist() == [[1, 2, 3, 0, 0, 0, 0, 0]]
  assert batch.parent.tolist() == [[-1, 0, 1, -1, -1, -1, -1, -1]]
  assert batch.depth.tolist() == [[0, 1, 2, 0, 0, 0, 0, 0]]
  assert batch.subtree_end.tolist() == [[3, 3, 3, 4, 5, 6, 7, 8]]
  assert batch.mask.sum() == 1
  assert batch.term_slot[0, 0] == 2
  assert batch.weight.sum() == 1
  assert batch.stats['padding'] == 5 / 8
  for field in ('old_logprob', 'ref_logprob', 'advantage', 'value_target'):
    assert not getattr(batch, field).any()


def test_a_tree_larger_than_a_row_is_split(script):
  """Stem 6, three answers of 3: 15 slots. Rows of 12 hold two answers; the
  third row part repeats the stem: 12 + 9 slots, 6 computed twice."""
  tries = []
  for r in range(3):
    call = script(f'r{r}')
    call([1, 2, 3, 4, 5, 6], [10 + r, 7, 8])
    tries.append(trie.build(call.calls, group='task'))
  batch = trie.pack(tries, row_tokens=12)
  assert batch.stats['rows'] == 2
  assert batch.stats['tokens'] == 21
  assert batch.stats['repeated'] == 6
  assert batch.stats['terms'] == 9
  assert terms_of(batch) == expected_terms(tries)


def test_terms_of_a_call_stay_in_one_row(script):
  """Sequence-level ratios need them together, also when the tree is split."""
  rng = np.random.default_rng(2)
  tries = group_of(script, rng, rollouts=6)
  batch = trie.pack(tries, row_tokens=50)
  assert batch.stats['rows'] > 1
  for number in range(len(batch.call_keys)):
    rows = np.unique(np.nonzero(batch.term_call == number)[0])
    assert len(rows) == 1


def test_a_context_longer_than_a_row_is_counted(script):
  call = script()
  call([1, 2], [3, 4])
  call([1, 2, 3, 4, *range(20)], [5, 6])
  batch = trie.pack([trie.build(call.calls)], row_tokens=16)
  assert batch.stats['too_long_calls'] == 1
  assert batch.stats['too_long_terms'] == 2
  assert batch.stats['terms'] == 2


def test_untrained_calls_take_no_slots(script):
  call = script()
  call([1, 2], [3])
  call([7, 8, 9], [6], role='side')
  tree, _ = trie.filter(trie.build(call.calls))
  assert trie.pack([tree], row_tokens=16).stats['tokens'] == 3


def test_policy_versions_are_carried_per_term(script):
  call = script()
  call([1, 2], [3, 4], version=5)
  call([1, 2, 3, 4], [6], version=7)
  batch = trie.pack([trie.build(call.calls)], row_tokens=16)
  assert batch.term_version[batch.mask].tolist() == [5, 5, 7]


def test_shapes_come_from_few_buckets(script):
  """Many different batches, few (T, E): compiled steps are reused."""
  rng = np.random.default_rng(3)
  shapes = set()
  for _ in range(40):
    tries = group_of(script, rng, rollouts=int(rng.integers(2, 9)), turns=4)
    batch = trie.pack(tries, row_tokens=256, row_multiple=2, row_steps=4)
    B, T = batch.tokens.shape
    assert B % 2 == 0
    assert T in (64, 128, 192, 256)
    shapes.add((T, batch.term_slot.shape[1]))
  assert len(shapes) <= 8


def chains(script, lengths):
  """One trie per length, each a single call of its own group."""
  tries = []
  for i, length in enumerate(lengths):
    call = script(f'r{i}')
    call([1] * (length - 1), [2])
    tries.append(trie.build(call.calls, group=f'g{i}'))
  return tries


def test_the_length_of_rows_with_the_fewest_slots_is_taken(script):
  """Three trees of 6 in rows of up to 16: two rows of 16 or 12 hold them, but
  three of 6 have no slot to spare."""
  batch = trie.pack(chains(script, [6, 6, 6]), row_tokens=16)
  assert batch.tokens.shape == (3, 6)
  assert batch.stats['padding'] == 0


def test_rows_are_filled_evenly(script):
  """5 4 3 3 in two rows: first-fit in 9 would give 9 and 6; 8 and 7 fit in 8."""
  batch = trie.pack(
    chains(script, [5, 4, 3, 3]), row_tokens=9, row_buckets=(8, 9)
  )
  assert batch.tokens.shape == (2, 8)
  assert batch.stats['tokens'] == 15


def test_fewer_steps_mean_fewer_lengths(script):
  """Of 4 8 12 16 the smallest that holds 9 is 12."""
  batch = trie.pack(chains(script, [9]), row_tokens=16, row_steps=4)
  assert batch.tokens.shape == (1, 12)


def test_rows_are_not_rounded_up(script):
  """Nine full rows are nine rows; only row_multiple adds empty ones."""
  tries = chains(script, [8] * 9)
  options = {'row_tokens': 8, 'row_buckets': (8,)}
  assert trie.pack(tries, **options).tokens.shape == (9, 8)
  assert trie.pack(tries, row_multiple=4, **options).tokens.shape == (12, 8)


def test_a_relayed_tree_takes_rows_in_a_row(script):
  """A path of 20 in rows of 16: slots 16 to 19 stand in the second row, and so
  do the terms of the call that ends there, one of them in slot 15."""
  call = script()
  call([1] * 15, [2, 3, 4, 5, 6])
  tries = [trie.build(call.calls)]
  assert trie.pack(tries, row_tokens=16).stats['too_long_calls'] == 1
  batch = trie.pack(tries, row_tokens=16, relay=2)
  assert batch.tokens.shape == (2, 16)
  assert batch.row_offset.tolist() == [0, 16]
  assert batch.stats['relayed_rows'] == 1
  assert batch.stats['too_long_calls'] == 0
  assert batch.tokens[1, :4].tolist() == [3, 4, 5, 6]
  assert batch.parent[1, :5].tolist() == [15, 16, 17, 18, -1]
  assert batch.depth[1, :5].tolist() == [16, 17, 18, 19, 0]
  assert batch.subtree_end[0].tolist() == [20] * 16
  assert batch.subtree_end[1, :5].tolist() == [20, 20, 20, 20, 21]
  assert not batch.mask[0].any()
  assert batch.term_slot[batch.mask].tolist() == [15, 16, 17, 18, 19]


def test_short_calls_stay_out_of_the_relay_unless_it_holds_them(script):
  """The first call is a part of the long path, the other ends beside it."""
  call = script()
  call([1] * 6, [2])
  call([*[1] * 6, 2, *[3] * 12], [4])
  call([1] * 6, [5, 5])
  batch = trie.pack([trie.build(call.calls)], row_tokens=16, relay=2)
  assert batch.stats['terms'] == 4
  rows = {
    batch.call_keys[c][1]: int(r)
    for r, c in zip(
      np.nonzero(batch.mask)[0], batch.term_call[batch.mask], strict=True
    )
  }
  assert rows['c0'] == 0 and rows['c1'] == 1
  assert batch.stats['call_tokens'] == 7 + 20 + 8


def test_branches(script):
  """Who holds a token, and who holds the fork above it:

  1 2 - 3 - 4    r0
         \\ 5    r1
  """
  tries = []
  for r, last in enumerate((4, 5)):
    call = script(f'r{r}')
    call([1, 2], [3, last])
    tries.append(trie.build(call.calls, group='task'))
  batch = trie.pack(tries, row_tokens=16)
  names = batch.rollout_ids
  found = {}
  for b, e in np.argwhere(batch.mask):
    here, above = batch.branches[batch.term_branch[b, e]]
    token = int(batch.tokens[b, batch.term_slot[b, e]])
    found[token] = ({names[i] for i in here}, {names[i] for i in above})
  both = {'r0', 'r1'}
  assert found == {3: (both, set()), 4: ({'r0'}, both), 5: ({'r1'}, both)}
  assert (batch.term_branch[~batch.mask] == -1).all()


def test_no_tries_and_nothing_trained(script):
  batch = trie.pack([], row_tokens=64)
  assert batch.tokens.shape == (1, 4)
  assert not batch.mask.any()
  call = script()
  call([1], [2], status='error')
  batch = trie.pack([trie.build(call.calls)], row_tokens=64)
  assert not batch.mask.any()
  assert batch.rollout_ids == ()


def test_rows_and_arrays(script):
  tries = group_of(script, np.random.default_rng(4), rollouts=6)
  batch = trie.pack(tries, row_tokens=60)
  part = batch.rows(slice(0, 1))
  assert part.tokens.shape == (1, batch.tokens.shape[1])
  assert part.rollout_ids == batch.rollout_ids
  assert set(batch.arrays()) == set(trie.batch.ARRAYS) - {'routes'}


def test_routes_follow_their_tokens(script):
  call = script()
  some = np.arange(4, dtype=np.int16).reshape(4, 1, 1)
  call([1, 2, 3, 4], [5], routes=(some, np.full((1, 1, 1), -1, np.int16)))
  batch = trie.pack([trie.build(call.calls)], row_tokens=8, row_buckets=(8,))
  assert batch.routes[0, :, 0, 0].tolist() == [0, 1, 2, 3, -1, -1, -1, -1]


def test_unknown_options_are_refused():
  with pytest.raises(TypeError):
    trie.pack([], row_tokns=3)
  with pytest.raises(ValueError, match='group keys'):
    trie.pack([], groups=['a'])
  with pytest.raises(ValueError, match='row_buckets'):
    trie.PackConfig(row_tokens=8, row_buckets=(4,))


def test_previous_terms(script):
  """Answers 3 4, then 6 (extends it) and 8 (branches after the 3):

  1 - 3 - 4 - 5 - 6
       \\ 7 - 8
  """
  call = script()
  call([1], [3, 4])
  call([1, 3, 4, 5], [6])
  call([1, 3, 7], [8])
  batch = trie.pack([trie.build(call.calls)], row_tokens=16)
  token = {
    int(batch.tokens[b, batch.term_slot[b, e]]): b * batch.mask.shape[1] + e
    for b, e in np.argwhere(batch.mask)
  }
  previous = batch.term_previous.reshape(-1)
  assert previous[token[3]] == -1
  assert previous[token[4]] == token[3]
  assert previous[token[6]] == token[4]
  assert previous[token[8]] == token[3]
  assert (previous[~batch.mask.reshape(-1)] == -1).all()
