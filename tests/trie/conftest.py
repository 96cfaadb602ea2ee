"""Calls in a line: `call(prompt, output, ...)` with invented log-probs."""

import numpy as np
import pytest

from clawjax.types import Call, Sample


class Script:
  """Makes numbered calls of one rollout."""

  def __init__(self, rollout_id: str = 'r'):
    self.rollout_id = rollout_id
    self.calls: list[Call] = []

  def __call__(self, prompt, output, *, logprobs=None, routes=None, **fields):
    index = len(self.calls)
    if logprobs is None:  # one per token, each different
      logprobs = -0.01 * (1 + np.arange(len(output))) - index
    prompt_routes, output_routes = routes or (None, None)
    sample = Sample(
      token_ids=np.asarray(output, np.int32),
      logprobs=np.asarray(logprobs, np.float32),
      finish='stop',
      policy_version=fields.pop('version', 0),
      prompt_routes=prompt_routes,
      routes=output_routes,
    )
    fields.setdefault('call_id', f'c{index}')
    call = Call(
      rollout_id=self.rollout_id,
      index=index,
      prompt_ids=np.asarray(prompt, np.int32),
      sample=sample,
      **fields,
    )
    self.calls.append(call)
    return call


@pytest.fixture
def script():
  """A maker of scripts: `script('rollout id')`."""
  return Script
