"""Every sampled token is trained once or flagged with a reason.

T1 to T7 are traffic shapes on which other trainers lose tokens, train them
twice or train tokens that nobody sampled. p1 = 3 prompt tokens; o1, o2, o3 =
50, 30, 10 sampled tokens.
"""

import numpy as np
import pytest

from clawjax import trie

P1 = [1, 2, 3]
O1 = list(range(100, 150))
O2 = list(range(200, 230))
O3 = list(range(300, 310))


def deliver(calls):
  """build, filter, pack; checks the laws; returns (trie, report, batch)."""
  tree, report = trie.filter(trie.build(calls))
  batch = trie.pack([tree], row_tokens=512)
  by_id = {c.call_id: c for c in calls}
  seen = {}
  B, E = batch.term_slot.shape
  for b in range(B):
    for e in range(E):
      if not batch.mask[b, e]:
        assert batch.weight[b, e] == 0
        continue
      _, call_id = batch.call_keys[batch.term_call[b, e]]
      slot = int(batch.term_slot[b, e])
      path = []
      while slot >= 0:
        path.append(int(batch.tokens[b, slot]))
        slot = int(batch.parent[b, slot])
      path = path[::-1]
      call = by_id[call_id]
      position = len(path) - 1 - len(call.prompt_ids)
      whole = [*call.prompt_ids.tolist(), *call.sample.token_ids.tolist()]
      # trained in the context it was sampled in, with its own log-prob
      assert path == whole[: len(path)]
      assert position >= 0
      assert batch.rollout_logprob[b, e] == call.sample.logprobs[position]
      assert (call_id, position) not in seen, 'trained twice'
      seen[call_id, position] = True
  counts = dict(report.tokens)
  assert counts.pop('sampled') == sum(len(c.sample.token_ids) for c in calls)
  assert counts['trained'] == len(seen) == batch.stats['terms']
  assert report.tokens['sampled'] == sum(counts.values())
  return tree, report, batch


def test_T1_three_clean_turns(script):
  call = script()
  call(P1, O1)
  call([*P1, *O1, 7, 8], O2)
  call([*P1, *O1, 7, 8, *O2, 9], O3)
  tree, report, batch = deliver(call.calls)
  assert report.tokens == {'sampled': 90, 'trained': 90}
  assert report.leaves == 1
  assert len(tree) == batch.stats['tokens'] == 96


def test_T2_thinking_stripped(script):
  """Prompt 2 lacks the first 20 tokens of o1, prompt 3 also 10 of o2."""
  call = script()
  call(P1, O1)
  call([*P1, *O1[20:], 7, 8], O2, break_cause='thinking stripped')
  call([*P1, *O1[20:], 7, 8, *O2[10:], 9], O3, break_cause='thinking stripped')
  _, report, _ = deliver(call.calls)
  assert report.tokens == {'sampled': 90, 'trained': 90}
  assert report.leaves == 3
  assert report.rewritten == 2  # two breaks


@pytest.mark.parametrize('named', [True, False])
def test_T3_retry(script, named):
  """p1 twice; only the second answer is continued."""
  call = script()
  second = [t + 1000 for t in O1]
  call(P1, O1)
  call(P1, second, retry_of='c0' if named else '')
  call([*P1, *second, 7], O2)
  tree, report, _ = deliver(call.calls)
  assert report.tokens == {'sampled': 130, 'trained': 80, 'retry': 50}
  assert tree.reasons == ('retry', '', '')


def test_T4_four_branches(script):
  """The 50 tokens of o1 count once, not four times."""
  call = script()
  call(P1, O1)
  for i in range(4):
    call([*P1, *O1, 10 + i], [t + 100 * i for t in O3])
  _, report, _ = deliver(call.calls)
  assert report.tokens == {'sampled': 90, 'trained': 90}
  assert report.leaves == 4


def test_T4_four_samples_of_one_prompt_without_sign_of_a_retry(script):
  call = script()
  call(P1, O1)
  for i in range(4):
    call([*P1, *O1, 10], [t + 100 * i for t in O3])
  _, report, _ = deliver(call.calls)
  assert report.tokens == {'sampled': 90, 'trained': 90}


def test_T5_rewritten_answer_is_context_not_training_data(script):
  """Prompt 2 = p1 + last 30 of o1 + 60 tool tokens: nothing of it is trained."""
  call = script()
  call(P1, O1)
  call([*P1, *O1[20:], *range(400, 460)], O2)
  _, report, _ = deliver(call.calls)
  assert report.tokens == {'sampled': 80, 'trained': 80}


def six_turns(call, *, retry_of_turn_2=False):
  ids = list(P1)
  for turn in range(6):
    answer = [1000 + 10 * turn + i for i in range(3)]
    call(ids, answer)
    if turn == 1 and retry_of_turn_2:
      call(ids, [2000, 2001, 2002], retry_of='c1')
    ids = [*ids, *answer, 500 + turn]


def test_T6_six_turns(script):
  call = script()
  six_turns(call)
  _, report, _ = deliver(call.calls)
  assert report.calls == {'trained': 6}
  assert report.tokens == {'sampled': 18, 'trained': 18}


def test_T7_a_retry_whose_first_answer_is_continued(script):
  call = script()
  six_turns(call, retry_of_turn_2=True)
  tree, report, _ = deliver(call.calls)
  assert report.calls == {'trained': 6, 'retry': 1}
  assert report.tokens == {'sampled': 21, 'trained': 18, 'retry': 3}
  assert tree.reasons[2] == 'retry'


def test_an_answer_that_can_not_be_trained_is_still_context(script):
  """The first answer has no log-probs: its continuation is trained on it."""
  call = script()
  call(P1, O1, logprobs=np.full(50, np.nan))
  call([*P1, *O1, 7], O2)
  _, report, batch = deliver(call.calls)
  assert report.tokens == {
    'sampled': 80,
    'trained': 30,
    'logprobs_not_finite': 50,
  }
  assert batch.stats['tokens'] == 3 + 50 + 1 + 30
