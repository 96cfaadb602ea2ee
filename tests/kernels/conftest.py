"""Random packed rows as subtree_end alone."""

import numpy as np
import pytest


def random_ends(rng: np.random.Generator, rows: int, slots: int) -> np.ndarray:
  """int32 [rows, slots] subtree_end of random forests with padding behind."""
  out = np.tile(np.arange(1, slots + 1, dtype=np.int32), (rows, 1))
  for row in out:
    real = int(rng.integers(slots // 2, slots + 1))
    open_nodes: list[int] = []
    for t in range(real):
      # long runs, sometimes back to an ancestor, sometimes a new tree
      if open_nodes and rng.random() < 0.05:
        del open_nodes[int(rng.integers(0, len(open_nodes) + 1)) :]
      for a in open_nodes:
        row[a] = t + 1
      open_nodes.append(t)
  return out


@pytest.fixture
def ends():
  return random_ends
