"""Requests on the engine: which pages each one holds, and what a burst adds.

The mechanics between a scheduler's decisions and the engine's arrays: matching
a prompt with the prefix cache, prefilling its next chunk, handing finished
pages to the cache, laying out the rows of a burst and taking in what it drew.
Nothing here decides who goes first; `scheduler.py` and `jetstream.py` do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clawjax.serving import sampler
from clawjax.serving.engine import Batch, Burst, Engine
from clawjax.serving.prefix import PrefixCache
from clawjax.serving.request import MAX_STOP_IDS, Request


class Sequences:
  """Pages and rows of the requests on one engine; not thread-safe.

  Attributes:
    cache: who owns which page.
  """

  def __init__(self, engine: Engine, *, reuse: bool = True):
    """Args:
    engine: the pages and programs.
    reuse: keep a prefix cache; without it every prompt is prefilled whole.
    """
    self.engine = engine
    self.cache = PrefixCache(engine.pages, engine.page_size)
    self.reuse = reuse

  def pages_for(self, tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // self.engine.page_size)

  def begin(self, request: Request) -> bool:
    """Matches a prompt with the cache and takes pages for the rest of it.

    Returns:
      False when there are not enough pages; nothing is held then.
    """
    known = request.ids[:-1]
    request.stale = False
    partial = None
    if self.reuse:
      match = self.cache.match(known, self.engine.version)
      request.path, partial = list(match.nodes), match.partial
    kept = request.path + ([partial] if partial is not None else [])
    self.cache.lock(kept)
    pages = self.cache.take(self.pages_for(len(known)) - len(request.path))
    if pages is None:
      self.cache.unlock(kept)
      request.path = []
      return False
    request.own = pages
    request.cached = len(request.path) * self.engine.page_size
    request.routes = [n.routes for n in request.path if n.routes is not None]
    if partial is not None:
      self.engine.copy_page(partial.page, pages[0])
      request.cached += match.partial_tokens
      if partial.routes is not None:
        request.routes.append(partial.routes[: match.partial_tokens])
      self.cache.unlock([partial])
    return True

  def prefill(self, request: Request) -> int:
    """Prefills the next chunk of a request; returns its number of tokens."""
    left, at = request.left_to_prefill, request.cached
    count = min(left, self.engine.chunk_for(left))
    tokens = np.asarray(request.ids[at : at + count], np.int32)
    routes = self.engine.prefill(tokens, at, request.table)
    if routes is not None:
      request.routes.append(routes)
    request.cached += count
    self.share(request, last=False)
    return count

  def share(self, request: Request, *, last: bool) -> None:
    """Hands a sequence's full pages (at the end also the last) to the cache."""
    if request.stale or not self.reuse:
      return
    size = self.engine.page_size
    start = len(request.path) * size
    stop = request.cached if last else request.cached // size * size
    if stop <= start:
      return
    count = self.pages_for(stop - start)
    routes = None
    if request.routes:
      request.routes = [np.concatenate(request.routes)]
      routes = request.routes[0][start:stop]
    pages, request.own = request.own[:count], request.own[count:]
    self.cache.extend(
      request.path,
      request.ids[start:stop],
      pages,
      self.engine.version,
      routes,
    )

  def release(self, request: Request) -> None:
    """Gives back all pages of a sequence."""
    self.cache.unlock(request.path)
    self.cache.give(request.own)
    request.path, request.own, request.cached = [], [], 0

  def grow(self, request: Request, steps: int) -> bool:
    """Takes the pages for a burst; False when there are not enough."""
    tokens = request.cached + min(steps, request.budget)
    need = self.pages_for(tokens) - len(request.path) - len(request.own)
    pages = self.cache.take(need) if need > 0 else []
    if pages is None:
      return False
    request.own += pages
    return True

  def batch(self, rows: Sequence[Request | None]) -> Batch:
    """The engine's view of requests; None makes an idle row."""
    engine = self.engine
    size = next(b for b in engine.batches if b >= len(rows))
    tables = [[] if r is None else r.table for r in rows]
    longest = max(map(len, tables))
    pages = next(p for p in engine.contexts if p >= longest)
    table_BP = np.zeros((size, pages), np.int32)
    length_B = np.zeros(size, np.int32)
    token_B = np.zeros(size, np.int32)
    index_B = np.zeros(size, np.int32)
    budget_B = np.zeros(size, np.int32)
    stop_BE = np.full((size, MAX_STOP_IDS), -1, np.int32)
    temperature_B = np.ones(size, np.float32)
    top_k_B = np.zeros(size, np.int32)
    top_p_B = np.ones(size, np.float32)
    min_p_B = np.zeros(size, np.float32)
    seed_B2 = np.zeros((size, 2), np.uint32)
    for b, (request, table) in enumerate(zip(rows, tables, strict=True)):
      if request is None:
        continue
      p = request.params
      table_BP[b, : len(table)] = table
      length_B[b] = request.cached
      token_B[b] = request.ids[-1]
      index_B[b] = request.drawn
      budget_B[b] = request.budget
      stop_BE[b, : len(p.stop_ids)] = p.stop_ids
      temperature_B[b], top_k_B[b] = p.temperature, p.top_k
      top_p_B[b], min_p_B[b] = p.top_p, p.min_p
      seed_B2[b] = sampler.split_seed(p.seed)
    if rows:  # idle rows spread over the experts as the others do
      token_B = np.resize(token_B[: len(rows)], size)
    return Batch(
      table_BP,
      length_B,
      token_B,
      index_B,
      budget_B,
      stop_BE,
      sampler.Draws(temperature_B, top_k_B, top_p_B, min_p_B, seed_B2),
    )

  def take_in(self, request: Request, burst: Burst, row: int) -> int:
    """Adds what a burst drew for a request; returns the number of tokens."""
    count = int(burst.count_B[row])
    request.ids += burst.token_BN[row, :count].tolist()
    request.logprobs += burst.logprob_BN[row, :count].tolist()
    request.raw_logprobs += burst.raw_logprob_BN[row, :count].tolist()
    request.versions += [self.engine.version] * count
    request.cached += count
    assert request.cached == len(request.ids) - 1
    if burst.routes_BNLA is not None:
      request.routes.append(burst.routes_BNLA[row, :count])
    if burst.kept_BNR is not None:
      most = burst.kept_BNR.shape[-1]
      for i in range(count):
        size = int(burst.kept_count_BN[row, i])
        whole = size <= most
        request.kept.append(burst.kept_BNR[row, i, :size] if whole else None)
    return count
