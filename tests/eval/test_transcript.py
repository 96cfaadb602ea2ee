"""Trees of tokens by hand."""

import math

import numpy as np
import pytest

from clawjax import types
from clawjax.eval import transcript


def _call(index, prompt, answer, *, status='ok', role='main'):
  ids = np.array(answer, np.int32)
  return types.Call(
    call_id=str(index),
    rollout_id='r',
    index=index,
    prompt_ids=np.array(prompt, np.int32),
    sample=types.Sample(ids, np.full(ids.size, -0.5, np.float32), 'stop'),
    status=status,
    role=role,
  )


def _plain(node):
  return (node.ids, [_plain(c) for c in node.children.values()])


def test_a_chain_is_one_stretch():
  # Call 1 extends call 0's prompt and answer.
  calls = [_call(0, [1, 2], [3]), _call(1, [1, 2, 3, 4], [5])]
  tree = transcript.tree(calls)
  assert _plain(tree) == ([1, 2, 3], [([4, 5], [])])
  assert tree.marks[2] == (0, -0.5)
  assert tree.marks[:2] == [None, None]


def test_a_fork_shares_the_stem():
  """
  1 2 - 3 4   call 0
      - 5     call 1
  """
  tree = transcript.tree([_call(0, [1, 2], [3, 4]), _call(1, [1, 2], [5])])
  assert _plain(tree) == ([1, 2], [([3, 4], []), ([5], [])])


def test_a_fork_inside_an_answer():
  # Call 1 repeats half of call 0's answer as context: sampled stays sampled.
  tree = transcript.tree([_call(0, [1], [2, 3]), _call(1, [1, 2, 9], [4])])
  assert _plain(tree) == ([1, 2], [([3], []), ([9, 4], [])])
  assert tree.marks == [None, (0, -0.5)]


def test_two_roots():
  tree = transcript.tree([_call(0, [1], [2]), _call(1, [7], [8])])
  assert _plain(tree) == ([], [([1, 2], []), ([7, 8], [])])


def test_context_that_is_sampled_later_gets_its_mark():
  tree = transcript.tree([_call(0, [1, 2, 3], [4]), _call(1, [1, 2], [3])])
  assert _plain(tree) == ([1, 2, 3, 4], [])
  assert tree.marks[2] == (1, -0.5)


def test_counts():
  calls = [_call(0, [1, 2], [3]), _call(1, [1, 2, 3, 4], [5])]
  # flat: 3 + 5 tokens; tree: 1 2 3 4 5.
  assert transcript.counts(calls) == transcript.Counts(8, 5, 2)
  assert transcript.counts([]) == transcript.Counts(0, 0, 0)


def test_pieces_keep_characters_whole(synthetic):
  text = 'a\u00e9\u20ac\U0001f600b'
  ids = synthetic.Bytes().encode(text)
  found = list(transcript.pieces(ids, synthetic.Bytes().decode))
  assert [t for t, _ in found] == list(text)
  assert [n for _, n in found] == [1, 2, 3, 4, 1]


def test_pieces_give_up_on_what_is_no_character(synthetic):
  ids = [0xE2] + [0x82] * 0 + [0x41] * 2
  found = list(transcript.pieces(ids, synthetic.Bytes().decode))
  assert sum(n for _, n in found) == 3
  assert ''.join(t for t, _ in found) == '\ufffdAA'


def test_drawing(parse, synthetic):
  rng = np.random.default_rng(0)
  item = synthetic.rollout(rng, 'train', 3, 'synth/x', 0, 0.5, forked=True)
  page = parse(
    transcript.draw(
      item, tokenizer=synthetic.Bytes(), advantage=-0.7, why='a reason'
    )
  )
  assert 'advantage \u22120.700' in page.text
  assert 'a reason' in page.text
  assert 'colour = amber\\x1b[0m' in page.text
  branches = [a for t, a in page.tags if a.get('class') == 'branch']
  # One fork for the side call at the root, one where the retry parts.
  assert len(branches) == 4
  tokens = [a for t, a in page.tags if t == 'i']
  sampled = sum(len(c.sample.token_ids) for c in item.calls)
  assert sampled - 4 <= len(tokens) <= sampled  # two characters of 2-3 bytes
  assert all('log-prob' in a['data-t'] for a in tokens)


def test_calls_that_are_never_trained_look_different(parse, synthetic):
  rng = np.random.default_rng(0)
  calls = (
    synthetic.call(rng, 'r', 0, 'ab', 'cd'),
    synthetic.call(rng, 'r', 1, 'x', 'yz', role='side'),
    synthetic.call(rng, 'r', 2, 'q', 'w', status='aborted'),
  )
  item = types.Rollout('r', 't', 'pi', calls=calls)
  page = parse(transcript.draw(item, tokenizer=synthetic.Bytes()))
  assert [a for t, a in page.tags].count({'class': 'off'}) == 2


def test_long_environment_text_is_folded_and_cut(parse, synthetic):
  rng = np.random.default_rng(0)
  prompt = 'HEAD' + 'x' * 30_000 + 'TAIL'
  item = types.Rollout(
    'r', 't', 'pi', calls=(synthetic.call(rng, 'r', 0, prompt, 'ok'),)
  )
  source = transcript.draw(item, tokenizer=synthetic.Bytes())
  page = parse(source)
  assert 'HEAD' in page.text and 'TAIL' in page.text
  assert 'characters left out' in page.text
  assert len(source) < 12_000


def test_deep_forks_end(parse, synthetic):
  # Call i shares i tokens with the one before it: a ladder of 300 forks.
  calls = [_call(i, [1] * i + [2], [3]) for i in range(1, 300)]
  item = types.Rollout('r', 't', 'pi', calls=tuple(calls))
  page = parse(transcript.draw(item, tokenizer=synthetic.Bytes()))
  assert 'deeper branches are not drawn' in page.text


@pytest.mark.parametrize(
  'p, tint',
  [(0.95, ''), (0.6, 'q1'), (0.3, 'q2'), (0.01, 'q3'), (math.nan, '')],
)
def test_tints(p, tint):
  assert transcript._tint(math.log(p)) == (f' class="{tint}"' if tint else '')


def test_rewards_of_calls_stand_at_the_calls(parse, synthetic):
  calls = (_call(0, [1, 2], [3]), _call(1, [1, 2, 3, 4], [5]))
  rollout = types.Rollout(
    'r', 't', 'pi', calls=calls, reward=1.0,
    extra={'process': {'rewards': {'0': 0.25, '1': -0.5}}},
  )  # fmt: skip
  page = parse(transcript.draw(rollout, tokenizer=synthetic.Bytes()))
  first, second = page.text.index('+0.250'), page.text.index('\u22120.500')
  assert page.text.index('call 0') < first < page.text.index('call 1') < second
