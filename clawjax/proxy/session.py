"""One rollout's session: requests in, calls out, in exact token ids.

  begin(request)  match -> render what is new -> prompt ids (a `Served`)
  finish(served, sample)  cut, parse, keep the sampled turn, make the `Answer`
  fail(served, status, why)  a call without a sample

Everything between two awaits is synchronous, so concurrent requests of one
session never see half a turn. The record on disk (`capture.py`) is written
here: a call is on disk before its answer can be sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clawjax import types
from clawjax.chat import render
from clawjax.proxy import (
  answers,
  canonical,
  capture,
  growing,
  prompting,
  roles,
  tree,
  wishes,
)
from clawjax.proxy.served import Overflow, Served, Stats

_USER_TEXT = 20_000  # Characters kept of what a harness said.


@dataclasses.dataclass(frozen=True)
class Options:
  """What a session is opened with.

  Attributes:
    run_seed: part of each call's sampling seed.
    sampling: how to sample; `max_tokens` caps each answer.
    rules: names of normalisation rules.
    token_budget: sampled tokens after which the window counts as full.
    metadata: kept with the session.
    follow_client: use the client's temperature, top_p, top_k and min_p.
  """

  run_seed: int = 0
  sampling: types.SamplingParams = types.SamplingParams()
  rules: tuple[str, ...] = ()
  token_budget: int | None = None
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  follow_client: bool = False


class Session:
  """The state of one rollout at the proxy.

  Attributes:
    id: the rollout's id.
    key: random, part of the URL.
    options: what it was opened with.
    stats: counts.
    served: all requests so far, in order of arrival.
    prompter: finds and renders their prompts; it holds `rules`, `tree` and
      `heads`.
    memory: what a dialect wants to find again (stored responses).
    reader: of its requests' bodies.
    ignored: names of what was not understood in them, see `Request.ignored`.
    gate: awaited with a call's number before it is sampled, or None.
  """

  def __init__(
    self,
    rollout_id: str,
    key: str,
    renderer: render.Renderer,
    *,
    window: int,
    options: Options = Options(),
  ):
    self.id = rollout_id
    self.key = key
    self.renderer = renderer
    self.window = window
    self.options = options
    self.prompter = prompting.Prompter(renderer, options.rules)
    self.rules, self.tree = self.prompter.rules, self.prompter.tree
    self.stats = Stats()
    self.served: list[Served] = []
    self.by_call: dict[str, Served] = {}
    self.memory: dict[str, Any] = {}
    self.reader = growing.Reader()
    self.ignored: set[str] = set()
    self.heads = self.prompter.heads
    self.closed = False
    self.gate: Callable[[int], Awaitable[None]] | None = None
    self._recorder: capture.Recorder | None = None

  # ---- the record ----------------------------------------------------------

  def record(self, recorder: capture.Recorder, *, new: bool = True) -> None:
    """Writes all that happens from now on; `new`: with an opening line."""
    self._recorder = recorder
    if new:
      self._write(
        'open',
        session=self.id,
        key=self.key,
        t=time.time(),
        options={
          **dataclasses.asdict(self.options),
          'sampling': types.to_json(self.options.sampling),
        },
        window=self.window,
        tokenizer=self.renderer.tokenizer.name,
        thinking=self.renderer.thinking,
        family=self.renderer.family,
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
      labels = {
        c.call_id: [c.role, c.role_reason, c.retry_of] for c in self.calls()
      }
      self._write(
        'close',
        t=time.time(),
        stats=dataclasses.asdict(self.stats),
        labels=labels,
      )
      self._recorder.close()
      self._recorder = None

  # ---- a request comes in --------------------------------------------------

  def count(self, request: canonical.Request) -> int:
    """Prompt length of a request; nothing is kept or recorded."""
    return self.prompter.count(request)

  def begin(self, request: canonical.Request) -> Served:
    """Matches and renders a request; counts it as served.

    Raises:
      Overflow: the prompt does not fit, or the session has spent its tokens.
    """
    placed = self.prompter.place(request, self.by_call)
    try:
      self._check_room(placed.at[1])
    except Overflow:
      self.stats.refused += 1
      # What was rendered stays known, so the record needs it as well.
      self._write('turns', new=placed.made, pinned=placed.pinned)
      raise
    return self._serve(request, placed)

  def _serve(
    self, request: canonical.Request, placed: prompting.Placed
  ) -> Served:
    leaf, at = placed.leaf, placed.at
    index = len(self.served)
    prompt_ids = at[0].view(at[1])
    parent = next((n.call_id for n in leaf.path() if n.call_id), '')
    if request.prefill is not None:
      own = self.prompter.own_answer(leaf, request.prefill)
      parent = own.call_id if own else parent
    rival, again = self._rival(leaf, at[1], request.retried)
    served = Served(
      call_id=f'c{index}',
      index=index,
      dialect=request.dialect,
      prompt_ids=prompt_ids,
      leaf=leaf,
      opening=placed.opening,
      at=at,
      params=self._params(request, len(prompt_ids), index),
      start=time.time(),
      answer_id=self._answer_id(index),
      request=request,
      parent=parent,
      rival=rival,
      has_tools=bool(request.tools),
      user_text=self._user_text(request, placed.match, parent),
      normalised=placed.applied,
      break_cause=again or placed.broken,
    )
    self.add(served)
    if self._recorder is not None:
      self._recorder.write('start', capture.start_line(served, placed))
    return served

  def add(self, served: Served) -> None:
    """Counts a request as served."""
    self.stats.served += 1
    self.stats.pending += 1
    self.served.append(served)
    self.by_call[served.call_id] = served

  def _answer_id(self, index: int) -> str:
    text = f'{self.id}/{self.key}/{index}'.encode()
    return hashlib.blake2b(text, digest_size=12).hexdigest()

  def _rival(
    self, leaf: tree.Node, length: int, retried: bool
  ) -> tuple[str, str]:
    """A call with the same prompt that this one is a retry of.

    It has ended, or the client says that it has given it up; else this is a
    sample beside it, and no retry.
    """
    for other in reversed(self.served):
      if other.leaf is leaf and len(other.prompt_ids) == length:
        if other.pending and not retried:
          return '', 'parallel'
        return other.call_id, 'retry'
    return '', ''

  def _user_text(
    self, request: canonical.Request, match: tree.Match, parent: str
  ) -> str:
    turns = match.new
    if not parent and match.points:
      turns = request.turns(request.start)  # A conversation's opening, whole.
    texts = [
      m.content
      for t in turns
      for m in t.messages
      if m.role in ('user', 'system')
    ]
    return '\n'.join(texts)[:_USER_TEXT]

  def _check_room(self, prompt_tokens: int) -> None:
    if prompt_tokens >= self.window:
      raise Overflow(prompt_tokens, self.window)
    budget = self.options.token_budget
    if budget is not None and self.stats.sampled_tokens >= budget:
      # Said like a full window: what clients stop or compact on.
      raise Overflow(prompt_tokens, min(prompt_tokens, self.window) - 1)

  def _params(
    self, request: canonical.Request, prompt_tokens: int, index: int
  ) -> types.SamplingParams:
    budget = self.options.token_budget
    left = None if budget is None else budget - self.stats.sampled_tokens
    # In thinking a stop string does not count, so the engine may only look
    # for it where no thinking can come.
    plain = self.renderer.thinking == 'off' or self.renderer.shows_empty_think(
      request.thinking
    )
    return wishes.params(
      self.options.sampling,
      request.sampling,
      follow=self.options.follow_client,
      limits=(self.window - prompt_tokens, request.max_tokens, left),
      stop=request.stop if plain else (),
      stop_ids=tuple(self.renderer.tokenizer.eos_ids),
      seed=types.sampling_seed(self.options.run_seed, self.id, index),
    )

  # ---- an answer is there --------------------------------------------------

  def finish(self, served: Served, sample: types.Sample) -> canonical.Answer:
    """Keeps a sampled turn, records it, and makes the answer.

    Raises:
      CaptureError: the sample lacks a finite log-prob for each token.
    """
    request = served.request
    assert request is not None
    tokenizer = self.renderer.tokenizer
    read = answers.read(
      sample,
      request,
      tokenizer,
      prompt_tail=tokenizer.decode(served.opening),
      room=self.window - len(served.prompt_ids),
    )
    answer = answers.answer(
      read,
      request,
      tokenizer,
      answer_id=served.answer_id,
      prompt_tokens=len(served.prompt_ids),
      created=served.start,
    )
    served.sample = read.sample
    served.malformed = read.parsed.malformed
    served.flags = read.parsed.flags
    served.text = read.text
    served.calls, served.content = read.parsed.calls, read.parsed.content
    served.node = self._kept_node(served, request, answer)
    self.captured(served)
    return answer

  def captured(self, served: Served) -> None:
    """Ends a call whose sampled turn is in the tree."""
    assert served.sample is not None
    self.stats.captured += 1
    self.stats.sampled_tokens += len(served.sample.token_ids)
    self.stats.malformed += served.malformed
    self._end(served, 'ok')

  def _kept_node(
    self,
    served: Served,
    request: canonical.Request,
    answer: canonical.Answer,
  ) -> tree.Node:
    """The sampled turn as a node of the tree.

    It is recognised by what the client was given; when calls were held back,
    by the whole, so that the shortened history is seen as a branch.
    """
    parsed = answer.parsed
    whole = len(answer.calls) == len(parsed.calls)
    message = types.Message(
      role='assistant',
      content=(request.prefill or '')
      + (answer.text if whole else parsed.content),
      calls=answer.calls if whole else parsed.calls,
    )
    assert served.sample is not None
    ids = served.sample.token_ids
    closing = self.renderer.closing(int(ids[-1]) if len(ids) else None)
    return self.keep(
      served,
      self.tree.new_number(),
      canonical.turn_key([message]),
      closing,
      frozenset(canonical.id_key(c.id) for c in answer.calls),
      tree.reasoning_key(parsed.reasoning),
    )

  def keep(
    self,
    served: Served,
    number: int,
    key: bytes,
    closing: Sequence[int],
    call_ids: frozenset[str],
    reasoning: bytes,
  ) -> tree.Node:
    """Puts a sampled turn into the tree; see `tree.Node`."""
    assert served.sample is not None
    ids = served.sample.token_ids
    node = tree.Node(
      number,
      served.leaf,
      key,
      'assistant',
      np.concatenate([ids, np.asarray(closing, np.int32)]),
      at=served.at,
    )
    node.call_id = served.call_id
    node.open_length = node.length - len(closing)
    node.ids = call_ids
    node.reasoning = reasoning
    served.leaf.attach(node)
    self.tree.sampled.setdefault(key, []).append(node)
    return node

  def _end(self, served: Served, status: str) -> None:
    served.end = time.time()
    served.status = status
    self.record_end(served)
    served.request = None
    self.stats.pending -= 1

  def record_end(self, served: Served) -> None:
    """Writes the outcome of a call."""
    if self._recorder is not None:
      self._recorder.write('end', capture.end_line(served))

  def fail(self, served: Served, status: str, why: str) -> None:
    """Ends a call that has no sample ('aborted' or 'error')."""
    if not served.pending:
      return
    served.error = why
    if status == 'aborted':
      self.stats.aborted += 1
    else:
      self.stats.failed += 1
    self._end(served, status)

  # ---- what came of it -----------------------------------------------------

  def calls(self) -> tuple[types.Call, ...]:
    """Finished calls in order of arrival, with roles and retries."""
    instruction = self.options.metadata.get('instruction')
    openings = self.options.metadata.get('openings') or ()
    assigned = roles.assign(
      self.served,
      instruction if isinstance(instruction, str) else '',
      openings=[o for o in openings if isinstance(o, str)],
    )
    retries = roles.retries(self.served)
    return tuple(
      s.call(self.id, *assigned[s.call_id], retries.get(s.call_id, ''))
      for s in self.served
      if not s.pending
    )
