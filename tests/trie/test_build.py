"""The trie of drawn call sets, and its laws on random ones."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clawjax import trie
from clawjax.types import Call, Sample


def by_hand(tree: trie.Trie) -> dict:
  return {
    'tokens': tree.tokens.tolist(),
    'parent': tree.parent.tolist(),
    'depth': tree.depth.tolist(),
    'end': tree.subtree_end.tolist(),
  }


def test_two_calls_that_fork(script):
  """Largest child first:

  1 - 2 - 3 - 4 - 5      slots 0 1 2 3 4
       \\ 6 - 7           slots 5 6
  """
  call = script()
  call([1, 2, 3], [4, 5])
  call([1, 2, 6], [7])
  tree = trie.build(call.calls)
  assert by_hand(tree) == {
    'tokens': [1, 2, 3, 4, 5, 6, 7],
    'parent': [-1, 0, 1, 2, 3, 1, 5],
    'depth': [0, 1, 2, 3, 4, 2, 3],
    'end': [7, 7, 5, 5, 5, 7, 7],
  }
  assert tree.output_nodes(0).tolist() == [3, 4]
  assert tree.output_nodes(1).tolist() == [6]
  assert tree.extends == (-1, -1)


def test_two_roots(script):
  """A subagent with a prompt of its own is a second root."""
  call = script()
  call([1], [2])
  call([3, 4], [5, 6])
  tree = trie.build(call.calls)
  assert by_hand(tree) == {
    'tokens': [3, 4, 5, 6, 1, 2],
    'parent': [-1, 0, 1, 2, -1, 4],
    'depth': [0, 1, 2, 3, 0, 1],
    'end': [4, 4, 4, 4, 6, 6],
  }


def test_branch_inside_an_answer(script):
  """The second prompt holds half of the first answer: 2 is shared context."""
  call = script()
  call([1], [2, 3, 4])
  call([1, 2, 9], [8])
  tree = trie.build(call.calls)
  assert tree.tokens.tolist() == [1, 2, 3, 4, 9, 8]
  assert tree.output_nodes(0).tolist() == [1, 2, 3]
  assert tree.output_nodes(1).tolist() == [5]
  assert tree.extends == (-1, -1)  # the answer as a whole is not extended


def test_continuation_and_what_the_harness_inserted(script):
  call = script()
  call([1, 2], [3, 4])
  call([1, 2, 3, 4, 50, 51], [5])
  call([1, 2, 3, 4, 50, 51, 5, 60], [6])
  tree = trie.build(call.calls)
  assert tree.extends == (-1, 0, 1)
  assert trie.inserted(tree, 0).tolist() == [1, 2]
  assert trie.inserted(tree, 1).tolist() == [50, 51]
  assert trie.inserted(tree, 2).tolist() == [60]
  assert len(tree) == 9


def test_equal_answers_share_nodes_and_keep_their_terms(script):
  """Two calls sampled the same tokens: 2 nodes, 4 terms."""
  call = script()
  call([1], [2, 3])
  call([1], [2, 3])
  tree = trie.build(call.calls)
  assert len(tree) == 3
  assert tree.term_node.tolist() == [1, 2, 1, 2]


def test_the_named_parent_wins_among_equal_answers(script):
  call = script()
  call([1], [2, 3])
  call([1], [2, 3])
  call([1, 2, 3, 4], [5], parent='c1')
  assert trie.build(call.calls).extends == (-1, -1, 1)


def test_empty_answer_and_prompt_inside_another(script):
  call = script()
  call([1, 2, 3], [])
  call([1, 2], [9])
  tree = trie.build(call.calls)
  assert len(tree) == 4
  assert tree.output_nodes(0).tolist() == []
  assert tree.account() == {'sampled': 1, 'trained': 1}


def test_no_calls():
  tree = trie.build([])
  assert len(tree) == 0
  assert tree.trained == ()


@pytest.mark.parametrize(
  ('fields', 'reason'),
  [
    ({'status': 'aborted'}, 'aborted'),
    ({'status': 'error'}, 'error'),
    ({'logprobs': [-1.0]}, 'logprobs_missing'),
    ({'logprobs': [-1.0, float('nan')]}, 'logprobs_not_finite'),
  ],
)
def test_what_cannot_be_trained_has_a_reason(script, fields, reason):
  call = script()
  call([1], [2, 3], **fields)
  tree = trie.build(call.calls)
  assert tree.reasons == (reason,)
  assert tree.account() == {'sampled': 2, 'trained': 0, reason: 2}


def test_a_prompt_of_nothing_has_no_log_prob_for_its_first_token(script):
  call = script()
  call([], [2, 3])
  assert trie.build(call.calls).reasons == ('empty_prompt',)


def route(*experts):
  """int16 [len, 1, 1]: one layer, one expert per token."""
  return np.array(experts, np.int16).reshape(-1, 1, 1)


def test_routes_that_differ_split_the_tree(script):
  """Same tokens 1 2 3; expert of token 2 is 5 in one call, 6 in the other."""
  call = script()
  call([1, 2], [3], routes=(route(4, 5), route(-1)))
  call([1, 2], [3], routes=(route(4, 6), route(-1)))
  tree = trie.build(call.calls)
  assert tree.tokens.tolist() == [1, 2, 3, 2, 3]
  assert tree.routes[:, 0, 0].tolist() == [4, 5, -1, 6, -1]
  merged = trie.build(call.calls, routes='ignore')
  assert len(merged) == 3
  assert merged.routes is None


def test_an_unknown_route_is_filled_in_by_who_knows(script):
  """The last sampled token is never fed back, so its route is unknown (-1)
  until the next call's prompt holds it."""
  call = script()
  call([1], [2, 3], routes=(route(4), route(5, -1)))
  call([1, 2, 3, 7], [8], routes=(route(4, 5, 6, 7), route(-1)))
  tree = trie.build(call.calls)
  assert tree.tokens.tolist() == [1, 2, 3, 7, 8]
  assert tree.routes[:, 0, 0].tolist() == [4, 5, 6, 7, -1]


def test_routes_of_a_wrong_length_are_refused(script):
  call = script()
  call([1, 2], [3], routes=(route(4), route(-1)))
  with pytest.raises(ValueError, match='routes of 2 tokens'):
    trie.build(call.calls)


# ---- laws ------------------------------------------------------------------

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@st.composite
def call_sets(draw):
  """Up to 6 calls over 3 tokens; some extend an earlier one exactly."""
  made = []
  for index in range(draw(st.integers(1, 6))):
    prompt = draw(IDS)
    if made and draw(st.booleans()):
      before = draw(st.sampled_from(made))
      prompt = [*before.prompt_ids, *before.sample.token_ids, *prompt]
    output = draw(st.lists(st.integers(0, 2), max_size=6))
    made.append(
      Call(
        call_id=f'c{index}',
        rollout_id='r',
        index=index,
        prompt_ids=np.array(prompt, np.int32),
        sample=Sample(
          np.array(output, np.int32),
          -np.ones(len(output), np.float32),
          'stop',
        ),
      )
    )
  return made


def ancestors(tree: trie.Trie, node: int) -> list[int]:
  found = []
  while node >= 0:
    found.append(node)
    node = int(tree.parent[node])
  return found[::-1]


@settings(max_examples=200, deadline=None)
@given(call_sets())
def test_laws(calls):
  tree = trie.build(calls)
  # One node per distinct prefix (an independent count).
  prefixes = set()
  for c in calls:
    ids = (*c.prompt_ids.tolist(), *c.sample.token_ids.tolist())
    prefixes |= {ids[:n] for n in range(1, len(ids) + 1)}
  assert len(tree) == len(prefixes)
  # The path above each sampled token is the call's own history.
  for i, c in enumerate(calls):
    history = [*c.prompt_ids, *c.sample.token_ids]
    for t, node in enumerate(tree.output_nodes(i)):
      path = ancestors(tree, int(node))
      assert tree.tokens[path].tolist() == history[: len(c.prompt_ids) + t + 1]
      assert tree.depth[path].tolist() == list(range(len(path)))
  # k <= q < subtree_end[k] is "k is an ancestor of q or q itself".
  N = len(tree)
  for q, k in itertools.product(range(N), range(N)):
    seen = k <= q < tree.subtree_end[k]
    assert seen == (k in ancestors(tree, q))
  # extends: the longest history that the prompt starts with.
  for i, c in enumerate(calls):
    prompt = c.prompt_ids.tolist()
    lengths = [
      len(full)
      for j, o in enumerate(calls)
      if j != i and len(o.sample.token_ids)
      for full in [[*o.prompt_ids.tolist(), *o.sample.token_ids.tolist()]]
      if prompt[: len(full)] == full
    ]
    j = tree.extends[i]
    got = (
      len(calls[j].prompt_ids) + len(calls[j].sample.token_ids) if j >= 0 else 0
    )
    assert got == max(lengths, default=0)


@settings(max_examples=50, deadline=None)
@given(call_sets(), st.randoms())
def test_order_of_calls_does_not_matter(calls, random):
  shuffled = list(calls)
  random.shuffle(shuffled)
  a, b = trie.build(calls), trie.build(shuffled)
  assert [c.call_id for c in a.calls] == [c.call_id for c in b.calls]
  assert by_hand(a) == by_hand(b)
