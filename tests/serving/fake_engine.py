"""An engine without a model: pages hold token ids, and draws depend on them.

The next token is a hash of every (token, version) that the page table leads to
plus the token fed. If the scheduler or the prefix cache ever points a sequence
at a wrong page, or leaves a page of older weights in it, the answer differs
from `expected`.
"""

import types
import zlib

import numpy as np

from clawjax.errors import EngineError
from clawjax.serving.engine import Burst

VOCAB = 50


def next_token(ids, version):
  text = np.asarray([*ids, version], np.int64).tobytes()
  return zlib.crc32(text) % VOCAB


def expected(prompt, count, version=0):
  ids = [int(i) for i in prompt]
  for _ in range(count):
    ids.append(next_token(ids, version))
  return ids[len(prompt) :]


class FakeEngine:
  """See the top of the file; the interface is that of `Engine`."""

  def __init__(self, *, slots=4, window=64, page_size=4, pages=None, burst=4):
    self.config = types.SimpleNamespace(vocab=VOCAB)
    self.slots, self.window, self.page_size = slots, window, page_size
    self.pages_per_row = window // page_size
    self.pages = pages or 1 + 2 * slots * self.pages_per_row
    self.burst, self.version = burst, 0
    self.chunks, self.batches = (4, 8), (slots,)
    self.contexts = (self.pages_per_row,)
    self.tokens = np.full((self.pages, page_size), -1)
    self.versions = np.full((self.pages, page_size), -1)
    self.crash_at = None
    self.calls = 0
    self.check_versions = True

  def chunk_for(self, left):
    return 8 if left > 4 else 4

  def load_params(self, params, version):
    if params == 'bad':
      raise EngineError('bad', kind='bad_params')
    self.version = version

  def _put(self, table, at, token):
    page = table[at // self.page_size]
    assert page > 0
    self.tokens[page, at % self.page_size] = token
    self.versions[page, at % self.page_size] = self.version

  def _context(self, table, length):
    at = np.arange(length)
    pages = np.asarray(table, int)[at // self.page_size]
    assert (pages > 0).all()
    if self.check_versions:
      made = self.versions[pages, at % self.page_size]
      assert (made == self.version).all(), 'keys of other weights'
    return self.tokens[pages, at % self.page_size].tolist()

  def prefill(self, tokens_T, start, table):
    for i, token in enumerate(tokens_T):
      self._put(table, start + i, token)

  def copy_page(self, source, target):
    assert source > 0 and target > 0 and source != target
    self.tokens[target] = self.tokens[source]
    self.versions[target] = self.versions[source]

  def decode(self, batch, *, steps, min_active=1):
    self.calls += 1
    if self.crash_at is not None and self.calls >= self.crash_at:
      raise RuntimeError('the device is on fire')
    rows, shape = len(batch.token_B), (len(batch.token_B), self.burst)
    out = Burst(
      np.zeros(shape, np.int32),
      np.full(shape, -1.0, np.float32),
      np.full(shape, -1.0, np.float32),
      np.zeros(rows, np.int32),
      np.zeros(rows, bool),
      np.ones(rows, bool),
      None,
      steps,
    )
    fed = batch.token_B.copy()
    active = batch.budget_B > 0
    for i in range(min(steps, self.burst)):
      if active.sum() < max(1, min_active):
        break
      for b in np.flatnonzero(active):
        at = batch.length_B[b] + i
        self._put(batch.table_BP[b], at, fed[b])
        token = next_token(
          self._context(batch.table_BP[b], at + 1), self.version
        )
        fed[b] = out.token_BN[b, i] = token
        out.count_B[b] += 1
        out.stopped_B[b] = token in batch.stop_BE[b]
        if out.stopped_B[b] or out.count_B[b] >= batch.budget_B[b]:
          active[b] = False
    return out
