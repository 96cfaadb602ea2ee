"""A drill's answer is its prompt again, and nothing else."""

import numpy as np
import pytest

from clawjax import errors
from clawjax.chat import tokenizers
from clawjax.config import build
from clawjax.tasks import words
from clawjax.train import drill

TINY = tokenizers.load('tiny')


def test_the_answer_is_the_list():
  config = drill.DrillConfig(steps=1, shortest=3, longest=9)
  drills = drill.Drills(TINY, words.WORDS, config)
  forms = set()
  for number in range(30):
    rollout = drills.draw(number, np.random.default_rng(number))
    [call] = rollout.calls
    prompt = TINY.decode(call.prompt_ids)
    answer = TINY.decode(call.sample.token_ids)
    assert prompt.endswith('<|im_end|>') and answer.endswith('<|im_end|>')
    assert answer.replace(' ', '') == prompt.replace(' ', '')
    names = answer.removesuffix('<|im_end|>').split()
    assert 3 <= len(names) <= 9 and set(names) <= set(words.WORDS)
    assert len(call.sample.token_ids) == len(names) + 1
    forms.add(prompt.startswith(' '))
  assert forms == {True, False}  # listed with and without blanks


def test_the_first_drills_are_all_of_one_length():
  config = drill.DrillConfig(steps=4, even=2, batch=5, shortest=3, longest=9)
  drills = drill.Drills(TINY, words.WORDS, config)
  lengths = [
    len(drills.draw(n, np.random.default_rng(n)).calls[0].prompt_ids)
    for n in range(60)
  ]
  assert set(lengths[:10]) == {4}  # three names and the end of the turn
  assert len(set(lengths[10:])) > 4


def test_an_empty_drill_is_refused():
  with pytest.raises(errors.ConfigError, match='shortest'):
    build(drill.DrillConfig, {'shortest': 0}, path='drill')
