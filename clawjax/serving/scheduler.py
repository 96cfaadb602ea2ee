"""Continuous batching: many requests, one engine, one thread.

Each turn of the loop applies what was asked for (new weights, cancellations),
admits requests while there are slots and pages, prefills at most one chunk's
worth of tokens, and runs one burst of decode. A prompt of 60,000 tokens thus
costs the others one chunk per burst, and short prompts pass long ones.

Prompts are matched against the prefix cache when their prefill begins, not
when they arrive, so siblings that come together share what the first one
makes. A sequence that runs out of pages is pre-empted: its pages go back, its
drawn tokens stay, and it is prefilled again later; draws depend on the token's
index, so nothing changes in what it says.

New weights go in between two bursts. What running sequences do about it is
`on_load`: 'recompute' (default: their caches are rebuilt under the new weights,
so each token's log-prob is exactly that of the version it is stamped with),
'continue' (old keys and values stay) or 'drain' (they finish first).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from clawjax.errors import EngineError
from clawjax.serving.engine import Engine
from clawjax.serving.request import (
  Deliver,
  OnTokens,
  Request,
  check_request,
)
from clawjax.serving.sequences import Sequences
from clawjax.types import Finish, SamplingParams

OnLoad = Literal['recompute', 'continue', 'drain']
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SchedulerConfig:
  """How requests share the engine.

  Attributes:
    queue: most requests waiting; more are refused with 'busy'.
    on_load: see the top of the file.
    reuse: keep a prefix cache.
    keep_versions: how many versions before the current one keep their prefixes
      (while no one needs the pages), for engines that go back and forth, say
      between a policy and the checkpoint it is compared with. A version must
      then always name the same weights. 0: nothing survives new weights.
    patience: rounds after which a long prompt is prefilled before short ones.
    prefill_steps: decode steps per turn while a prompt of several chunks is
      prefilled. While shorter ones are left over, the turn has one step: they
      are about to join, and a step costs about the same for few rows as for
      many.
  """

  queue: int = 1024
  on_load: OnLoad = 'recompute'
  reuse: bool = True
  keep_versions: int = 0
  patience: int = 8
  prefill_steps: int = 8


@dataclasses.dataclass
class _Load:
  params: Any
  version: int
  mode: OnLoad
  done: threading.Event = dataclasses.field(default_factory=threading.Event)
  error: Exception | None = None


@dataclasses.dataclass
class Counters:
  """Totals since the start.

  Attributes:
    requests, finished, cancelled, failed, refused: by fate.
    prompt_tokens, reused_tokens, prefilled_tokens, drawn_tokens: tokens.
    bursts, steps: decode calls and decode steps.
    row_steps: steps times rows that were still going.
    preempted: sequences that lost their pages for a while.
    loads: weight updates.
    busy_s, prefill_s, decode_s, load_s: seconds.
  """

  requests: int = 0
  finished: int = 0
  cancelled: int = 0
  failed: int = 0
  refused: int = 0
  prompt_tokens: int = 0
  reused_tokens: int = 0
  prefilled_tokens: int = 0
  drawn_tokens: int = 0
  bursts: int = 0
  steps: int = 0
  row_steps: int = 0
  preempted: int = 0
  loads: int = 0
  busy_s: float = 0.0
  prefill_s: float = 0.0
  decode_s: float = 0.0
  load_s: float = 0.0


class Scheduler:
  """Runs an engine for many callers."""

  def __init__(
    self,
    engine: Engine,
    config: SchedulerConfig = SchedulerConfig(),
    *,
    decode_text: Callable[[Sequence[int]], str] | None = None,
  ):
    """Args:
    engine: used by this scheduler alone from now on.
    config: see `SchedulerConfig`.
    decode_text: ids -> text, needed for stop strings.
    """
    self.engine = engine
    self.config = config
    self._on = Sequences(engine, reuse=config.reuse)
    self.cache = self._on.cache
    self._kept_versions: list[int] = []  # oldest first
    self.counters = Counters()
    self._decode_text = decode_text
    self._wake = threading.Condition()
    self._inbox: list[Request] = []
    self._loads: list[_Load] = []
    self._stopping = False
    self._thread: threading.Thread | None = None
    self._crash: Exception | None = None
    self._order = 0
    self._waiting: list[Request] = []
    self._prefilling: list[Request] = []
    self._decoding: list[Request] = []

  # ---- from any thread -----------------------------------------------------

  def start(self) -> Scheduler:
    """Starts the thread; returns itself."""
    assert self._thread is None
    self._thread = threading.Thread(
      target=self._run, name='clawjax-scheduler', daemon=True
    )
    self._thread.start()
    return self

  @property
  def crash(self) -> Exception | None:
    """What ended the thread, if anything did."""
    return self._crash

  def stop(self) -> None:
    """Ends the thread; requests under way fail with 'closed'."""
    with self._wake:
      self._stopping = True
      self._wake.notify()
    if self._thread is not None:
      self._thread.join()

  def client(self) -> Any:
    """A `SamplingClient` for coroutines of any event loop."""
    from clawjax.serving.client import LocalClient

    return LocalClient(self)

  def submit(
    self,
    prompt_ids: np.ndarray,
    params: SamplingParams,
    deliver: Deliver,
    *,
    session_id: str = '',
    priority: int = 0,
    on_tokens: OnTokens | None = None,
  ) -> Request:
    """Queues a request.

    Args:
      prompt_ids: int32 [N], N >= 1.
      params: how to sample.
      deliver: called once from the scheduler's thread.
      session_id: requests of one session take turns with other sessions'.
      priority: higher goes first.
      on_tokens: called from the scheduler's thread after each burst.

    Raises:
      EngineError: 'too_long', 'busy', 'closed', 'crashed' or 'bad_request'.
    """
    prompt = np.asarray(prompt_ids, np.int32)
    check_request(
      prompt,
      params,
      vocab=self.engine.config.vocab,
      window=self.engine.window,
      has_text=self._decode_text is not None,
    )
    room = self.engine.window - len(prompt)
    limit = room if params.max_tokens is None else min(params.max_tokens, room)
    request = Request(
      prompt,
      params,
      limit,
      deliver,
      session_id=session_id,
      priority=priority,
      on_tokens=on_tokens,
    )
    with self._wake:
      if self._crash is not None:
        raise EngineError(f'the engine has crashed: {self._crash!r}')
      if self._stopping:
        raise EngineError('the engine is closed', kind='closed')
      if len(self._inbox) + len(self._waiting) >= self.config.queue:
        self.counters.refused += 1
        raise EngineError(
          f'{self.config.queue} requests are waiting already; try again later',
          kind='busy',
        )
      request.order = self._order
      self._order += 1
      self._inbox.append(request)
      self._wake.notify()
    return request

  def cancel(self, request: Request) -> None:
    """Ends a request whose caller has gone; it delivers nothing more."""
    request.cancelled = True
    with self._wake:
      self._wake.notify()

  def load_params(
    self,
    params: Any,
    version: int,
    *,
    mode: OnLoad | None = None,
    timeout_s: float = 600.0,
  ) -> None:
    """Puts new weights in between two bursts and waits until they serve.

    Args:
      params: see `Engine.load_params`.
      version: their policy version.
      mode: overrides `SchedulerConfig.on_load`.
      timeout_s: how long to wait.

    Raises:
      EngineError: they do not fit or did not go in; the old weights serve on.
    """
    load = _Load(params, version, mode or self.config.on_load)
    with self._wake:
      if self._crash is not None:
        raise EngineError(f'the engine has crashed: {self._crash!r}')
      running = self._thread is not None and not self._stopping
      if running:
        self._loads.append(load)
        self._wake.notify()
    if not running:
      self._apply_load(load)
    elif not load.done.wait(timeout_s):
      raise EngineError(f'no new weights within {timeout_s} s', kind='busy')
    if load.error is not None:
      raise load.error

  def stats(self) -> dict[str, Any]:
    """Counters, the share of prompt tokens reused, and what is going on."""
    out: dict[str, Any] = dataclasses.asdict(self.counters)
    out |= {
      'policy_version': self.engine.version,
      'waiting': len(self._waiting) + len(self._inbox),
      'prefilling': len(self._prefilling),
      'decoding': len(self._decoding),
      'pages': self.engine.pages - 1,
      'pages_free': self.cache.free,
      'pages_cached': self.cache.cached,
      'pages_evicted': self.cache.evicted,
      'reused_share': out['reused_tokens'] / max(1, out['prompt_tokens']),
      'rows_per_step': out['row_steps'] / max(1, out['steps']),
    }
    return out

  # ---- the thread ----------------------------------------------------------

  def _run(self) -> None:
    try:
      while self._wait_for_work():
        began = time.perf_counter()
        self._apply_loads()
        self._sweep()
        self._admit()
        self._prefill()
        self._decode()
        self.counters.busy_s += time.perf_counter() - began
      self._fail_all(EngineError('the engine was closed', kind='closed'))
    except Exception as error:  # the boundary: nothing may hang on a crash
      _log.exception('the scheduler crashed')
      with self._wake:
        self._crash = error
      self._fail_all(EngineError(f'the engine crashed: {error!r}'))

  def _wait_for_work(self) -> bool:
    with self._wake:
      while not (
        self._stopping
        or self._inbox
        or self._loads
        or self._waiting
        or self._prefilling
        or self._decoding
      ):
        self._wake.wait()
      self._waiting += self._inbox
      self._inbox.clear()
      return not self._stopping

  def _fail_all(self, error: EngineError) -> None:
    with self._wake:
      every = [
        *self._inbox,
        *self._waiting,
        *self._prefilling,
        *self._decoding,
      ]
      loads, self._loads = self._loads, []
      for row in (
        self._inbox,
        self._waiting,
        self._prefilling,
        self._decoding,
      ):
        row.clear()
    for request in every:
      self._on.release(request)
      self._hand_over(request, None, error)
    for load in loads:
      load.error = error
      load.done.set()

  # ---- weights -------------------------------------------------------------

  def _apply_loads(self) -> None:
    with self._wake:
      loads, self._loads = self._loads, []
    for i, load in enumerate(loads):
      if load.mode == 'drain' and (self._decoding or self._prefilling):
        with self._wake:
          self._loads[:0] = loads[i:]
        return
      self._apply_load(load)

  def _apply_load(self, load: _Load) -> None:
    began = time.perf_counter()
    before = self.engine.version
    try:
      self.engine.load_params(load.params, load.version)
    except Exception as error:  # the old weights serve on
      if not isinstance(error, EngineError):
        error = EngineError(f'new weights failed: {error!r}', kind='bad_params')
      load.error = error
    else:
      self.counters.loads += 1
      self._forget_versions(before)
      for request in [*self._prefilling, *self._decoding]:
        if load.mode == 'continue':
          request.stale = True
        else:
          self._preempt(request)
    self.counters.load_s += time.perf_counter() - began
    load.params = None
    load.done.set()

  def _forget_versions(self, before: int) -> None:
    """Drops all prefixes but those to keep; `before` has just been replaced."""
    count = self.config.keep_versions
    if not count:
      self.cache.drop()
      return
    now = self.engine.version
    kept = [v for v in self._kept_versions if v not in (before, now)]
    kept += [before] if before != now else []
    self._kept_versions = kept[-count:]
    self.cache.drop(keep=(*self._kept_versions, now))

  # ---- requests in and out -------------------------------------------------

  def _sweep(self) -> None:
    for row in (self._waiting, self._prefilling, self._decoding):
      for request in [r for r in row if r.cancelled]:
        row.remove(request)
        self._on.release(request)
        self.counters.cancelled += 1

  def _admit(self) -> None:
    """Moves waiting requests to prefill while slots and pages last."""
    if any(load.mode == 'drain' for load in self._loads):
      return
    while self._waiting:
      active = [*self._prefilling, *self._decoding]
      if len(active) >= self.engine.slots:
        return
      busy: dict[str, int] = {}
      for request in active:
        busy[request.session_id] = busy.get(request.session_id, 0) + 1
      request = min(
        self._waiting,
        key=lambda r: (-r.priority, busy.get(r.session_id, 0), r.order),
      )
      # Room for its prompt and a burst, on top of a burst for the others.
      ahead = -(-self.engine.burst // self.engine.page_size)
      need = self._on.pages_for(len(request.ids)) + ahead * (1 + len(active))
      if active and need > self.cache.available:
        return
      self._waiting.remove(request)
      self._prefilling.append(request)

  def _begin(self, request: Request) -> bool:
    if not self._on.begin(request):
      return False
    if not request.counted:
      request.counted, request.reused = True, request.cached
      self.counters.requests += 1
      self.counters.prompt_tokens += len(request.prompt)
      self.counters.reused_tokens += request.cached
    return True

  def _preempt(self, request: Request) -> None:
    for row in (self._prefilling, self._decoding):
      if request in row:
        row.remove(request)
    self._on.release(request)
    request.routes = []
    self._waiting.append(request)  # its early order puts it first
    self.counters.preempted += 1

  def _finish(self, request: Request, finish: Finish) -> None:
    self._decoding.remove(request)
    sample = request.sample(finish)
    self._on.share(request, last=True)
    self._on.release(request)
    self.counters.finished += 1
    self._hand_over(request, sample, None)

  def _hand_over(self, request: Request, sample, error) -> None:
    if error is not None:
      self.counters.failed += 1
    if request.cancelled:
      return
    try:
      request.deliver(sample, error)
    except Exception:  # a caller's fault must not end everybody's engine
      _log.exception('a caller failed to take its sample')

  # ---- work ----------------------------------------------------------------

  def _prefill(self) -> None:
    """Prefills up to one largest chunk of tokens, short prompts first."""
    budget = self.engine.chunks[-1]
    while budget > 0 and self._prefilling:
      late = [r for r in self._prefilling if r.skipped >= self.config.patience]
      request = min(
        late or self._prefilling, key=lambda r: (r.left_to_prefill, r.order)
      )
      for other in self._prefilling:
        other.skipped += other is not request
      request.skipped = 0
      if not request.path and not request.own and not self._begin(request):
        # Pages ran out after it was admitted; running ones will free some.
        self._prefilling.remove(request)
        self._waiting.append(request)
        if not self._decoding and not self._prefilling:
          raise RuntimeError('no pages for a lone request: pages were lost')
        continue
      if request.left_to_prefill:
        began = time.perf_counter()
        count = self._on.prefill(request)
        budget -= count
        self.counters.prefilled_tokens += count
        self.counters.prefill_s += time.perf_counter() - began
      if not request.left_to_prefill:
        self._prefilling.remove(request)
        self._decoding.append(request)

  def _decode(self) -> None:
    """Runs a burst for all sequences that are ready."""
    steps = self.engine.burst
    if self._prefilling:
      chunk = self.engine.chunks[-1]
      short = any(r.left_to_prefill <= chunk for r in self._prefilling)
      steps = 1 if short else min(steps, self.config.prefill_steps)
    rows = self._grow(steps)
    if not rows:
      return
    began = time.perf_counter()
    # A burst ends with the first row that does (of many rows, with the first
    # few): its caller goes on at once, and sessions soon call again (15 % more
    # tokens per second than full bursts).
    burst = self.engine.decode(
      self._on.batch(rows),
      steps=steps,
      min_active=len(rows) - len(rows) // 16,
    )
    self.counters.bursts += 1
    self.counters.steps += burst.steps
    for b, request in enumerate(rows):
      count = self._on.take_in(request, burst, b)
      self.counters.row_steps += count
      self.counters.drawn_tokens += count
      self._judge(
        request, count, bool(burst.stopped_B[b]), bool(burst.finite_B[b])
      )
    self.counters.decode_s += time.perf_counter() - began

  def _judge(
    self, request: Request, count: int, stopped: bool, finite: bool
  ) -> None:
    """Reports `count` new tokens of a request and ends it if it is done."""
    had = request.drawn - count
    stopped |= self._stop_string(request)
    if finite and request.on_tokens is not None and not request.cancelled:
      new = request.ids[len(request.prompt) + had :]
      try:
        request.on_tokens(new, request.logprobs[had:], self.engine.version)
      except Exception:
        _log.exception('a caller failed to take its tokens')
    if not finite:
      self._decoding.remove(request)
      self._on.release(request)
      self._hand_over(
        request,
        None,
        EngineError(
          f'token {request.drawn - 1} has a log-prob that is not a number '
          f'(policy version {self.engine.version})',
          kind='non_finite',
        ),
      )
    elif stopped:
      self._finish(request, 'stop')
    elif request.budget <= 0:
      wanted = request.params.max_tokens
      full = wanted is None or request.drawn < wanted
      self._finish(request, 'context_full' if full else 'length')

  def _stop_string(self, request: Request) -> bool:
    """Cuts a request after the token that completes a stop string."""
    stops = request.params.stop
    if not stops:
      return False
    out = request.ids[len(request.prompt) :]
    text = self._decode_text(out)
    if not any(s in text for s in stops):
      return False
    # Few tokens are new, and this happens once per request: try each end.
    for end in range(request.text_from + 1, len(out) + 1):
      if any(s in self._decode_text(out[:end]) for s in stops):
        request.cut(end)
        request.cached = min(request.cached, len(request.ids) - 1)
        return True
    request.text_from = len(out)
    return False

  def _grow(self, steps: int) -> list[Request]:
    """Takes pages for a burst; pre-empts the youngest when none are left."""
    ready = sorted(self._decoding, key=lambda r: (-r.priority, r.order))
    rows: list[Request] = []
    while ready:
      request = ready.pop(0)
      while not (fits := self._on.grow(request, steps)) and ready:
        self._preempt(ready.pop())
      if fits:
        rows.append(request)
      elif self._prefilling:
        self._preempt(max(self._prefilling, key=lambda r: r.order))
        ready.insert(0, request)
      else:
        self._preempt(request)
    return rows
