"""Copying drills: what a model from nothing must know before it can imitate.

A fresh model learns the form of a trajectory within minutes and then stands
still for a long time: all that is left to learn is to copy names from the
instruction into a command, and only one token in twelve is such a name. A drill
is nothing but copying. Names are listed, then asked for again,

  prompt   amber candle frost ... lemon <end of turn>
  answer   amber candle frost ... lemon <end of turn>

half of the tokens are copies, each with names never listed in that order
before. Drills come before the trajectories, like any pre-training, and are
packed and fitted in the same way.

The first `even` steps list the same number of names each time: then the name to
copy stands at a fixed distance, which is soon found, and a layer learns to hand
a name on. Finding it at any distance is learned on top of that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from clawjax import types


@dataclasses.dataclass(frozen=True)
class DrillConfig:
  """How much to drill.

  Attributes:
    steps: optimiser steps; 0: none.
    even: of these, the first so many with `shortest` names throughout.
    batch: drills per step.
    shortest, longest: names per drill.
  """

  steps: int = 0
  even: int = 0
  batch: int = 40
  shortest: int = 4
  longest: int = 24

  def __post_init__(self):
    if not 1 <= self.shortest <= self.longest or self.batch < 1:
      raise ValueError('wanted 1 <= shortest <= longest and batch >= 1')


class Drills:
  """Draws drills.

  Args:
    tokenizer: turns words into ids.
    words: the names.
    config: see `DrillConfig`.
  """

  def __init__(self, tokenizer: Any, words: Sequence[str], config: DrillConfig):
    self._config = config
    # Listed with or without a blank before it, asked for with one.
    self._listed = [
      (tokenizer.encode(word), tokenizer.encode(f' {word}')) for word in words
    ]
    self._end = [tokenizer.im_end]

  def draw(self, number: int, rng: np.random.Generator) -> types.Rollout:
    """Drill number `number`, as a trajectory of one call."""
    config = self._config
    even = number < config.even * config.batch
    longest = config.shortest if even else config.longest
    count = int(rng.integers(config.shortest, longest + 1))
    chosen = rng.integers(0, len(self._listed), count)
    form = int(rng.integers(0, 2))
    prompt = [i for w in chosen for i in self._listed[w][form]] + self._end
    answer = [i for w in chosen for i in self._listed[w][1]] + self._end
    call = types.Call(
      call_id='c0',
      rollout_id=f'drill/{number}',
      index=0,
      prompt_ids=np.array(prompt, np.int32),
      sample=types.Sample(
        np.array(answer, np.int32), np.zeros(len(answer), np.float32), 'stop'
      ),
    )
    return types.Rollout(
      rollout_id=f'drill/{number}',
      task_id='drill',
      harness='none',
      calls=(call,),
      reward=1.0,
    )
