"""The three rules on drawn trees."""

import pytest

from clawjax import trie


def reasons(calls, **options):
  tree, report = trie.filter(trie.build(calls), **options)
  return list(tree.reasons), report


def test_dead_leaf(script):
  """p - a          dead: b answers the same prompt and goes on
  \\ b - 9 - c
  """
  call = script()
  call([1, 2], [3])
  call([1, 2], [4])
  call([1, 2, 4, 9], [5])
  got, report = reasons(call.calls)
  assert got == ['retry', '', '']
  assert report.leaves == 1
  assert report.delivered == 2 / 3


def test_both_answers_go_on(script):
  """p - a - 8 - c      two real branches: nothing is dead
  \\ b - 9 - d
  """
  call = script()
  call([1, 2], [3])
  call([1, 2], [4])
  call([1, 2, 3, 8], [5])
  call([1, 2, 4, 9], [6])
  got, report = reasons(call.calls)
  assert got == ['', '', '', '']
  assert report.leaves == 2


def test_last_answer_retried(script):
  """Neither is continued; the record says that b replaced a."""
  call = script()
  call([1, 2], [3])
  call([1, 2], [4], retry_of='c0')
  assert reasons(call.calls)[0] == ['retry', '']


def test_malformed_answer_asked_for_again(script):
  """With the same prompt, and with a prompt of its own."""
  call = script()
  call([1, 2], [3], malformed=True)
  call([1, 2], [4])
  assert reasons(call.calls)[0] == ['regenerated', '']
  call = script()
  call([1, 2], [3], malformed=True)
  call([1, 2, 9], [4])
  assert reasons(call.calls)[0] == ['regenerated', '']


def test_malformed_answer_that_was_answered_is_trained(script):
  call = script()
  call([1, 2], [3], malformed=True)
  call([1, 2, 3, 9], [4])
  assert reasons(call.calls)[0] == ['', '']


def test_longest_leaf_per_compaction_segment(script):
  """segment 1:  p - a - 8 - c        kept (path of 5)
               \\ b                 dead
  compaction
  segment 2:  q - d                dead (path of 2)
               \\ 7 - e             kept (path of 3)
  """
  call = script()
  call([1, 2], [3])
  call([1, 2], [4])
  call([1, 2, 3, 8], [5])
  call([1, 2, 3, 8, 5, 6], [6, 6], role='compaction')
  call([9], [3])
  call([9, 7], [4])
  got, report = reasons(call.calls, dead_leaves='longest')
  assert got == ['', 'dead_leaf', '', 'compaction', 'dead_leaf', '']
  assert report.leaves == 2
  got, _ = reasons(call.calls, dead_leaves='keep')
  assert got == ['', '', '', 'compaction', '', '']


def test_over_branching_drops_the_rollout(script):
  call = script()
  for i in range(5):
    call([1, 10 + i], [3])
  got, report = reasons(call.calls, max_leaves=4)
  assert got == ['over_branching'] * 5
  assert report.dropped
  assert report.leaves == 5
  assert report.tokens == {'sampled': 5, 'trained': 0, 'over_branching': 5}
  got, report = reasons(call.calls, max_leaves=5)
  assert got == [''] * 5
  assert not report.dropped


def test_dead_leaves_do_not_count_as_branching(script):
  call = script()
  for i in range(4):
    call([1], [10 + i])
  call([1, 13, 5], [6])
  got, report = reasons(call.calls, max_leaves=1)
  assert got == ['retry', 'retry', 'retry', '', '']
  assert report.leaves == 1


def test_auxiliary_roles(script):
  call = script()
  call([1], [2])
  call([5], [6], role='subagent')
  call([7], [8], role='side')
  got, report = reasons(call.calls)
  assert got == ['', 'subagent', 'side']
  assert report.tokens == {
    'sampled': 3,
    'trained': 1,
    'subagent': 1,
    'side': 1,
  }
  got, _ = reasons(call.calls, auxiliary='train')
  assert got == ['', '', '']


def test_auxiliary_roles_get_groups_of_their_own(script):
  call = script('r0')
  call([1], [2])
  call([5], [6], role='subagent')
  tree, _ = trie.filter(
    trie.build(call.calls, group=('task', 'pi')), auxiliary='train'
  )
  batch = trie.pack([tree], row_tokens=16)
  assert batch.rollout_ids == ('r0', 'r0')
  assert batch.roles == ('main', 'subagent')
  assert batch.groups == (('task', 'pi'), (('task', 'pi'), 'subagent'))


def test_earlier_reasons_stay(script):
  call = script()
  call([1], [2], status='aborted', role='side')
  assert reasons(call.calls)[0] == ['aborted']


def test_unknown_options_are_refused(script):
  with pytest.raises(ValueError, match='dead_leaves'):
    trie.FilterConfig(dead_leaves='longst')
  with pytest.raises(TypeError):
    trie.filter(trie.build([]), max_leafs=3)


def test_adaptive_limit():
  """Quantile 0.5 of 1..9 is 5; twice that is 10; never below the floor."""
  counts = list(range(1, 10))
  limit = trie.adaptive_leaf_limit(counts, quantile=0.5, least=9)
  assert limit == 10
  assert trie.adaptive_leaf_limit(counts, quantile=0.5, least=10) is None
  assert trie.adaptive_leaf_limit([1] * 50) == 8
