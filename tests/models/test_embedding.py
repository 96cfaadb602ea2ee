"""Embeddings on a mesh: the same numbers, and little sent for them."""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
D, TOKENS = 32, 8 * 16  # of the cases


@pytest.fixture(scope='module')
def cases():
  done = subprocess.run(
    [sys.executable, HERE / 'embedding_cases.py'],
    env=os.environ | {'PYTHONPATH': f'{ROOT}:{ROOT / "tests" / "bench"}'},
    capture_output=True, text=True, timeout=300,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-3000:]
  return [json.loads(line) for line in done.stdout.splitlines()]


def test_equal_to_one_device(cases):
  assert len(cases) == 5
  for case in cases:
    assert case['embeddings'] == 0, case
    assert case['gradient'] < 2e-6, case


def test_hidden_states_travel_once_each_way(cases):
  """Parts of D are traded for tokens; nobody gathers a batch of states.

  A device's states are S = tokens x D x 4 / 8 bytes where rows and slots are
  cut into 8. Each all-to-all over n devices sends (n - 1) / n of S, both ways.
  """
  for case in cases:
    mesh, sent = case['mesh'], case['sent']
    rows = mesh.get('data', 1) * mesh.get('fsdp', 1) * mesh.get('expert', 1)
    slots = mesh.get('context', 1)
    state = TOKENS * D * 4 / (rows * slots)
    cuts = mesh.get('fsdp', 1), mesh.get('expert', 1), slots  # of D
    traded = sum((n - 1) / n for n in cuts)
    assert sent.get('all-to-all', 0) == 2 * traded * state, case
    # Ids only: 4 bytes a token of the group.
    group = TOKENS * 4 / (rows * slots) * math.prod(cuts)
    assert sent.get('all-gather', 0) <= group, case
