"""One rollout's session: requests in, calls out, in exact token ids.

  begin(request)  match -> render what is new -> prompt ids (a `Pending`)
  finish(pending, sample)  cut, parse, keep the sampled turn, make the `Answer`
  fail(pending, status, why)  a call without a sample

Everything between two awaits is synchronous, so concurrent requests of one
session never see half a turn. The record on disk (`capture.py`) is written
here: a call is on disk before its answer can be sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clawjax import errors, types
from clawjax.chat import parsing, render
from clawjax.proxy import canonical, capture, chain, rules, tree

_TAIL_TOKENS = 16  # Enough to hold the generation prompt.


@dataclasses.dataclass
class Served:
  """One request and what became of it; turns into a `types.Call`.

  Attributes:
    call_id, index: name and number within the session.
    request: what was asked.
    prompt_ids: int32 [N] given to the engine.
    leaf: node that the prompt ends with (before the generation prompt).
    opening: ids of the generation prompt.
    params: how to sample.
    the rest: as in `types.Call`.
  """

  call_id: str
  index: int
  dialect: str
  prompt_ids: np.ndarray
  leaf: tree.Node
  opening: list[int]
  at: tuple[chain.Chain, int]
  params: types.SamplingParams
  start: float
  request: canonical.Request | None = None
  parent: str = ''
  end: float = 0.0
  status: str = ''
  sample: types.Sample | None = None
  role: types.Role = 'main'
  role_reason: str = ''
  retry_of: str = ''
  malformed: bool = False
  flags: tuple[str, ...] = ()
  normalised: tuple[str, ...] = ()
  break_cause: str = ''
  error: str = ''
  text: str = ''
  calls: tuple[types.ToolCall, ...] = ()
  content: str = ''
  reasoning: str = ''
  answer_id: str = ''
  own_s: float = 0.0

  @property
  def pending(self) -> bool:
    return not self.status

  def call(self, rollout_id: str) -> types.Call:
    """The finished call as a record."""
    return types.Call(
      call_id=self.call_id,
      rollout_id=rollout_id,
      index=self.index,
      prompt_ids=self.prompt_ids,
      sample=self.sample,
      params=self.params,
      dialect=self.dialect,
      status=self.status or 'error',
      start=self.start,
      end=self.end,
      parent=self.parent,
      role=self.role,
      role_reason=self.role_reason,
      retry_of=self.retry_of,
      malformed=self.malformed,
      normalised=self.normalised,
      break_cause=self.break_cause,
      error=self.error,
      text=self.text,
    )


class Overflow(errors.RequestError):
  """A prompt does not fit; each dialect has its own words for it.

  Attributes:
    prompt_tokens: its length.
    window: the most it may have.
  """

  def __init__(self, prompt_tokens: int, window: int):
    super().__init__(
      f'prompt is too long: {prompt_tokens} tokens > {window} maximum',
      kind='context_overflow',
    )
    self.prompt_tokens = prompt_tokens
    self.window = window


@dataclasses.dataclass
class Stats:
  """Counts of one session.

  Attributes:
    served: requests to the model that came in.
    captured: finished calls with a sample.
    pending: requests in flight.
    aborted, failed: requests without a sample.
    engine_s: seconds inside the engine, summed over calls.
    own_s: the proxy's own seconds, summed over calls.
    sampled_tokens: tokens of captured calls.
    malformed: captured calls with a tool call that could not be read.
  """

  served: int = 0
  captured: int = 0
  pending: int = 0
  aborted: int = 0
  failed: int = 0
  engine_s: float = 0.0
  own_s: float = 0.0
  sampled_tokens: int = 0
  malformed: int = 0


class Session:
  """The state of one rollout at the proxy.

  Attributes:
    id: the rollout's id.
    key: random, part of the URL.
    stats: counts.
    served: all requests so far, in order of arrival.
  """

  def __init__(
    self,
    rollout_id: str,
    key: str,
    renderer: render.Renderer,
    *,
    window: int,
    run_seed: int = 0,
    sampling: types.SamplingParams = types.SamplingParams(),
    rule_names: Sequence[str] = (),
    token_budget: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    follow_client: bool = False,
  ):
    self.id = rollout_id
    self.key = key
    self.renderer = renderer
    self.window = window
    self.run_seed = run_seed
    self.sampling = sampling
    self.rules = rules.Rules(rule_names)
    self.token_budget = token_budget
    self.metadata = dict(metadata or {})
    self.tree = tree.Tree()
    self.stats = Stats()
    self.served: list[Served] = []
    self.closed = False
    # What a dialect wants to find again (stored responses).
    self.memory: dict[str, Any] = {}
    self._follow_client = follow_client
    self._recorder: capture.Recorder | None = None

  def record(self, recorder: capture.Recorder) -> None:
    """Writes all that happens from now on."""
    self._recorder = recorder
    self._write(
      'open',
      session=self.id,
      key=self.key,
      run_seed=self.run_seed,
      sampling=types.to_json(self.sampling),
      rules=[*self.rules.chosen],
      token_budget=self.token_budget,
      metadata=self.metadata,
      window=self.window,
      tokenizer=self.renderer.tokenizer.name,
    )

  def _write(self, kind: str, **value: Any) -> None:
    if self._recorder is not None:
      self._recorder.write(kind, value)

  def close(self) -> None:
    """Ends the session; calls in flight count as aborted."""
    for served in self.served:
      self.fail(served, 'aborted', 'the session was closed')
    self.closed = True
    if self._recorder is not None:
      self._write('close', t=time.time(), stats=dataclasses.asdict(self.stats))
      self._recorder.close()
      self._recorder = None

  # ---- a request comes in --------------------------------------------------

  def _head(
    self,
    request: canonical.Request,
    applied: list[str],
    made: list[dict[str, Any]],
  ) -> tree.Node:
    system = self.rules.head(request.system, applied)
    text = self.renderer.head_text(system, request.tools)
    root = self.tree.roots.get(text)
    if root is None:
      ids = self.renderer.head(system, request.tools)
      root = tree.Node(self.tree.new_number(), None, b'', 'head', ids)
      self.tree.roots[text] = root
      made.append({'n': root.number, 'head': text, 'ids': ids})
    return root

  def count(self, request: canonical.Request) -> int:
    """Prompt length of a request; nothing is kept or recorded."""
    applied: list[str] = []
    system = self.rules.head(request.system, applied)
    text = self.renderer.head_text(system, request.tools)
    root = self.tree.roots.get(text)
    if root is None:
      ids = self.renderer.head(system, request.tools)
      root = tree.Node(0, None, b'', 'head', ids)
    match = self._match(root, request, applied)
    new = sum(len(self.renderer.turn(t.messages)) for t in match.new)
    return match.node.length + new + len(self._opening(request))

  def _match(
    self, root: tree.Node, request: canonical.Request, applied: list[str]
  ) -> tree.Match:
    return self.tree.match(
      root,
      request,
      moves=self.rules.moves,
      normalise=lambda turn: self.rules.turn(turn, applied),
    )

  def _opening(self, request: canonical.Request) -> list[int]:
    if request.prefill is not None:
      return self.renderer.prefill(request.prefill)
    return self.renderer.opening(request.thinking)

  def begin(self, request: canonical.Request) -> Served:
    """Matches and renders a request; counts it as served.

    Raises:
      RequestError: the prompt does not fit ('context_overflow'), or the
        session has spent its tokens ('budget').
    """
    applied = list(request.notes)
    made: list[dict[str, Any]] = []
    pinned = len(self.rules.seen)
    root = self._head(request, applied, made)
    match = self._match(root, request, applied)
    node, points = match.node, list(match.points)
    for turn in match.new:
      node = self._render(node, turn, made)
      points.append((turn.end, node))
    opening = self._opening(request)
    at = chain.extend(node.chain, node.length, opening)
    prompt_ids = at[0].view(at[1])
    self.tree.remember(tree.Tail(root, request.items, points))
    self._check_room(len(prompt_ids))
    index = self.stats.served
    served = Served(
      call_id=f'c{index}',
      index=index,
      dialect=request.dialect,
      prompt_ids=prompt_ids,
      leaf=node,
      opening=opening,
      at=at,
      params=self._params(request, len(prompt_ids), index),
      start=time.time(),
      request=request,
      parent=next((n.call_id for n in node.path() if n.call_id), ''),
      normalised=tuple(dict.fromkeys(applied)),
      answer_id=hashlib.blake2b(
        f'{self.id}/{self.key}/{index}'.encode(), digest_size=12
      ).hexdigest(),
    )
    self.stats.served += 1
    self.stats.pending += 1
    self.served.append(served)
    self._write_start(served, made, pinned)
    return served

  def _write_start(
    self, served: Served, made: list[dict[str, Any]], pinned: int
  ) -> None:
    if self._recorder is None:
      return
    seen = list(self.rules.seen.items())[pinned:]
    self._write(
      'start',
      call=served.call_id,
      index=served.index,
      t=served.start,
      dialect=served.dialect,
      new=made,
      leaf=served.leaf.number,
      opening=served.opening,
      params=types.to_json(served.params),
      parent=served.parent,
      normalised=served.normalised,
      pinned=seen,
      role=served.role,
      role_reason=served.role_reason,
      retry_of=served.retry_of,
      break_cause=served.break_cause,
    )

  def _render(
    self, node: tree.Node, turn: canonical.Turn, made: list[dict[str, Any]]
  ) -> tree.Node:
    ids = self.renderer.turn(turn.messages)
    key = canonical.turn_key(turn.messages)
    child = tree.Node(self.tree.new_number(), node, key, turn.role, ids)
    if turn.role == 'user':
      child.moves = self.rules.moves(turn.messages[0])
    node.attach(child)
    made.append(
      {
        'n': child.number,
        'up': node.number,
        'key': key.hex(),
        'role': turn.role,
        'ids': ids,
        **({'moves': True} if child.moves else {}),
      }
    )
    return child

  def _check_room(self, prompt_tokens: int) -> None:
    if prompt_tokens >= self.window:
      raise Overflow(prompt_tokens, self.window)
    budget = self.token_budget
    if budget is not None and self.stats.sampled_tokens >= budget:
      # Said like a full window: what clients stop or compact on.
      raise Overflow(prompt_tokens, min(prompt_tokens, self.window) - 1)

  def _params(
    self, request: canonical.Request, prompt_tokens: int, index: int
  ) -> types.SamplingParams:
    room = self.window - prompt_tokens
    limits = [room, request.max_tokens, self.sampling.max_tokens]
    if self.token_budget is not None:
      limits.append(self.token_budget - self.stats.sampled_tokens)
    # In thinking a stop string does not count, so the engine may only look
    # for it where no thinking can come.
    plain = self.renderer.thinking == 'off' or self.renderer.shows_empty_think(
      request.thinking
    )
    sampling = self.sampling
    if self._follow_client:
      sampling = _followed(sampling, request.sampling)
    return dataclasses.replace(
      sampling,
      max_tokens=min(x for x in limits if x is not None),
      stop=request.stop if plain else (),
      stop_ids=tuple(self.renderer.tokenizer.eos_ids),
      seed=types.sampling_seed(self.run_seed, self.id, index),
    )

  # ---- an answer is there --------------------------------------------------

  def finish(self, served: Served, sample: types.Sample) -> canonical.Answer:
    """Keeps a sampled turn and makes the answer.

    Raises:
      CaptureError: the sample lacks a finite log-prob for each token.
    """
    request = served.request
    assert request is not None
    sample = self._checked(sample)
    tokenizer = self.renderer.tokenizer
    ids = sample.token_ids
    ended = len(ids) > 0 and int(ids[-1]) in tokenizer.eos_ids
    text = tokenizer.decode(ids[:-1] if ended else ids)
    prompt_tail = tokenizer.decode(served.prompt_ids[-_TAIL_TOKENS:])
    finish = 'stop' if ended else sample.finish

    tools = request.tools + request.late_tools if request.allow_calls else ()

    def parse(text: str, finish: str) -> parsing.Parsed:
      return parsing.parse_output(
        text,
        tools=tools,
        finish=finish,
        prompt_tail=prompt_tail,
        stop=request.stop,
        control=False,
      )

    parsed = parse(text, finish)
    if parsed.stop_text:
      # Keep what was sampled up to and including the match.
      n = _shortest(
        len(ids),
        lambda n: bool(parse(tokenizer.decode(ids[:n]), 'stop').stop_text),
      )
      sample = _cut(sample, n)
      finish = 'stop_string'
    if finish == 'length' and len(served.prompt_ids) + len(ids) >= self.window:
      finish = 'context_full'
    answer = self._answer(served, sample, parsed, finish)
    self._keep(served, sample, parsed, answer, text)
    return answer

  def _checked(self, sample: types.Sample) -> types.Sample:
    ids = np.asarray(sample.token_ids, np.int32)
    logprobs = np.asarray(sample.logprobs, np.float32)
    if ids.shape != logprobs.shape:
      raise errors.CaptureError(
        f'wanted one log-prob per token, got {logprobs.shape} for {ids.shape}'
      )
    if not np.isfinite(logprobs).all():
      raise errors.CaptureError('wanted finite log-probs, got nan or inf')
    sample = dataclasses.replace(sample, token_ids=ids, logprobs=logprobs)
    stops = np.isin(ids, self.renderer.tokenizer.eos_ids)
    if stops[:-1].any():  # An engine that ran on after the end of the turn.
      sample = _cut(sample, int(stops.argmax()) + 1)
    return sample

  def _answer(
    self,
    served: Served,
    sample: types.Sample,
    parsed: parsing.Parsed,
    finish: str,
  ) -> canonical.Answer:
    request = served.request
    assert request is not None
    tail = served.answer_id
    pieces: list[str | types.ToolCall] = []
    calls = 0
    for piece in parsed.pieces:
      if isinstance(piece, types.ToolCall):
        calls += 1
        if calls > 1 and not request.parallel:
          break
        piece = dataclasses.replace(piece, id=f'{tail}{calls - 1:02d}')
      pieces.append(piece)
    reasoning_tokens = 0
    if parsed.reasoning:
      reasoning_tokens = self._reasoning_tokens(sample, parsed)
    return canonical.Answer(
      id=tail,
      model=request.model,
      parsed=parsed,
      pieces=tuple(pieces),
      reasoning=parsed.reasoning,
      finish=finish,
      stop_text=parsed.stop_text,
      prompt_tokens=len(served.prompt_ids),
      cached_tokens=min(sample.reused_tokens, len(served.prompt_ids)),
      output_tokens=len(sample.token_ids),
      reasoning_tokens=reasoning_tokens,
      created=int(served.start),
    )

  def _reasoning_tokens(
    self, sample: types.Sample, parsed: parsing.Parsed
  ) -> int:
    end = self.renderer.tokenizer.id_of('</think>')
    found = np.flatnonzero(sample.token_ids == end)
    if not len(found) or 'THINK_OPEN' in parsed.flags:
      return len(sample.token_ids)
    return int(found[0]) + 1

  def _keep(
    self,
    served: Served,
    sample: types.Sample,
    parsed: parsing.Parsed,
    answer: canonical.Answer,
    text: str,
  ) -> None:
    request = served.request
    assert request is not None
    # The turn is recognised by what the client may send back; when calls were
    # held back, by the whole, so that the edited history is seen as a branch.
    whole = len(answer.calls) == len(parsed.calls)
    message = types.Message(
      role='assistant',
      content=(request.prefill or '')
      + (answer.text if whole else parsed.content),
      calls=answer.calls if whole else parsed.calls,
      reasoning=parsed.reasoning,
    )
    ids = sample.token_ids
    closing = self.renderer.closing(int(ids[-1]) if len(ids) else None)
    node = tree.Node(
      self.tree.new_number(),
      served.leaf,
      canonical.turn_key([message]),
      'assistant',
      np.concatenate([ids, np.asarray(closing, np.int32)]),
      at=served.at,
    )
    node.call_id = served.call_id
    node.ids = frozenset(canonical.id_key(c.id) for c in answer.calls)
    node.reasoning = tree.reasoning_key(parsed.reasoning)
    served.leaf.attach(node)
    served.sample = sample
    served.malformed = parsed.malformed
    served.flags = parsed.flags
    served.text = text
    served.calls, served.content = parsed.calls, parsed.content
    served.reasoning = parsed.reasoning
    self._end(served, 'ok', node, closing)
    self.stats.captured += 1
    self.stats.sampled_tokens += len(ids)
    self.stats.malformed += parsed.malformed

  def _end(
    self,
    served: Served,
    status: str,
    node: tree.Node | None = None,
    closing: Sequence[int] = (),
  ) -> None:
    served.end = time.time()
    if self._recorder is not None:
      value: dict[str, Any] = {
        'call': served.call_id,
        't': served.end,
        'status': status,
        'error': served.error,
      }
      if node is not None and served.sample is not None:
        value |= {
          'sample': types.to_json(served.sample),
          'malformed': served.malformed,
          'flags': served.flags,
          'text': served.text,
          'n': node.number,
          'key': node.key.hex(),
          'closing': closing,
          'ids': sorted(node.ids),
          'reasoning': node.reasoning.hex(),
        }
      self._write('end', **value)
    served.status = status
    served.request = None
    self.stats.pending -= 1

  def fail(self, served: Served, status: str, why: str) -> None:
    """Ends a call that has no sample ('aborted' or 'error')."""
    if not served.pending:
      return
    served.error = why
    self._end(served, status)
    if status == 'aborted':
      self.stats.aborted += 1
    else:
      self.stats.failed += 1

  def calls(self) -> tuple[types.Call, ...]:
    """Finished calls in order of arrival."""
    return tuple(s.call(self.id) for s in self.served if not s.pending)


def _cut(sample: types.Sample, n: int) -> types.Sample:
  """The first `n` tokens of a sample."""

  def head(values: np.ndarray | None) -> np.ndarray | None:
    return None if values is None else values[:n]

  return dataclasses.replace(
    sample,
    token_ids=sample.token_ids[:n],
    logprobs=sample.logprobs[:n],
    raw_logprobs=head(sample.raw_logprobs),
    token_versions=head(sample.token_versions),
    routes=head(sample.routes),
  )


def _shortest(n: int, holds) -> int:
  """Smallest length for which a monotone property holds."""
  low, high = 0, n
  while low < high:
    middle = (low + high) // 2
    if holds(middle):
      high = middle
    else:
      low = middle + 1
  return low


def _followed(
  sampling: types.SamplingParams, wishes: Mapping[str, Any]
) -> types.SamplingParams:
  """Sampling with the client's own numbers, where they make sense."""
  bounds = {'temperature': 2.0, 'top_p': 1.0, 'min_p': 1.0, 'top_k': 1e6}
  chosen: dict[str, Any] = {}
  for name, bound in bounds.items():
    value = wishes.get(name)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and 0 <= value <= bound:
      chosen[name] = int(value) if name == 'top_k' else float(value)
  return dataclasses.replace(sampling, **chosen)
