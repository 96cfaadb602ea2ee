"""Token ids of a growing conversation, stored once.

A prompt extends the one before it, so all prompts of a conversation are views
of one buffer that grows at its end. A branch that leaves in the middle copies
what it shares. Views never change: what is appended lies behind them, and a
buffer that is too small is replaced, not resized.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Chain:
  """An append-only int32 buffer; `used` ids are valid."""

  __slots__ = ('buffer', 'used')

  def __init__(self, ids: Sequence[int] | np.ndarray = (), *, room: int = 256):
    ids = np.asarray(ids, np.int32)
    self.buffer = np.empty(max(room, 2 * len(ids)), np.int32)
    self.buffer[: len(ids)] = ids
    self.used = len(ids)

  def view(self, length: int) -> np.ndarray:
    """The first `length` ids, read-only."""
    view = self.buffer[:length]
    view.flags.writeable = False
    return view

  def _append(self, ids: np.ndarray) -> None:
    end = self.used + len(ids)
    if end > len(self.buffer):
      grown = np.empty(2 * end, np.int32)
      grown[: self.used] = self.buffer[: self.used]
      self.buffer = grown
    self.buffer[self.used : end] = ids
    self.used = end


def extend(
  chain: Chain, length: int, ids: Sequence[int] | np.ndarray
) -> tuple[Chain, int]:
  """Continues the first `length` ids of `chain` with `ids`.

  Returns:
    The chain that holds the result (the same one where possible) and the
    number of its ids that count.
  """
  ids = np.asarray(ids, np.int32)
  end = length + len(ids)
  if chain.used == length:
    chain._append(ids)
  elif chain.used < end or not np.array_equal(chain.buffer[length:end], ids):
    chain = Chain(chain.buffer[:length], room=2 * end)
    chain._append(ids)
  return chain, end
