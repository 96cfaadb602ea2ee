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
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clawjax import types
from clawjax.chat import render
from clawjax.proxy import (
  answers,
  breaks,
  canonical,
  capture,
  chain,
  roles,
  rules,
  tree,
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
    tree: the turns they consist of.
    memory: what a dialect wants to find again (stored responses).
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
    self.rules = rules.Rules(options.rules)
    self.tree = tree.Tree()
    self.stats = Stats()
    self.served: list[Served] = []
    self.by_call: dict[str, Served] = {}
    self.memory: dict[str, Any] = {}
    self.heads: list[tuple[bytes, bytes]] = []
    self.closed = False
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

  def _head(
    self,
    request: canonical.Request,
    applied: list[str],
    made: list[dict[str, Any]] | None,
  ) -> tree.Node:
    """The root of a request; made, and listed in `made`, when it is new."""
    system = self.rules.head(request.system, applied)
    text = self.renderer.head_text(system, request.tools)
    root = self.tree.roots.get(text)
    if root is None:
      ids = self.renderer.head(system, request.tools)
      if made is None:
        return tree.Node(0, None, b'', 'head', ids)
      root = tree.Node(self.tree.new_number(), None, b'', 'head', ids)
      self.tree.roots[text] = root
      head = (
        canonical.digest([system]),
        canonical.digest([text[len(system) :]]),
      )
      made.append(
        {
          'n': root.number,
          'head': text,
          'system': head[0].hex(),
          'tools': head[1].hex(),
          'ids': ids,
        }
      )
    return root

  def _match(
    self, root: tree.Node, request: canonical.Request, applied: list[str]
  ) -> tree.Match:
    return self.tree.match(
      root,
      request,
      moves=self.rules.moves,
      normalise=lambda turn: self.rules.turn(turn, applied),
    )

  def _turn_ids(
    self, turn: canonical.Turn, applied: list[str]
  ) -> Sequence[int] | np.ndarray:
    stored = self.tree.elsewhere(turn)
    if stored is not None:
      applied.append('grafted')
      return stored.segment()
    return self.renderer.turn(turn.messages)

  def _opening(
    self, leaf: tree.Node, request: canonical.Request
  ) -> Sequence[int] | np.ndarray:
    """Ids between the last closed turn and what is sampled."""
    if request.prefill is None:
      return self.renderer.opening(request.thinking)
    own = self._own_answer(leaf, request.prefill)
    if own is not None:
      return own.chain.view(own.open_length)[leaf.length :]
    return self.renderer.prefill(request.prefill)

  def _own_answer(self, leaf: tree.Node, prefill: str) -> tree.Node | None:
    """A sampled answer below `leaf` that the client wants gone on with."""
    message = types.Message('assistant', prefill)
    group = leaf.children.get(canonical.turn_key([message]), ())
    own = [n for n in group if n.call_id and not n.ids]
    return own[-1] if own else None

  def count(self, request: canonical.Request) -> int:
    """Prompt length of a request; nothing is kept or recorded."""
    applied: list[str] = []
    seen = dict(self.rules.seen)
    root = self._head(request, applied, None)
    match = self._match(root, request, applied)
    self.rules.seen = seen
    new = sum(len(self._turn_ids(t, applied)) for t in match.new)
    leaf = match.node if not match.new else root
    opening = self._opening(leaf, request)
    return match.node.length + new + len(opening)

  def begin(self, request: canonical.Request) -> Served:
    """Matches and renders a request; counts it as served.

    Raises:
      Overflow: the prompt does not fit, or the session has spent its tokens.
    """
    applied = list(request.notes)
    made: list[dict[str, Any]] = []
    pinned = len(self.rules.seen)
    root = self._head(request, applied, made)
    match = self._match(root, request, applied)
    node, points = match.node, list(match.points)
    for turn in match.new:
      node = self._render(node, turn, applied, made)
      points.append((turn.end, node))
    opening = np.asarray(self._opening(node, request), np.int32)
    at = chain.extend(node.chain, node.length, opening)
    self.tree.remember(tree.Tail(root, request.items, points))
    broken = self._break(match, made)
    try:
      self._check_room(at[1])
    except Overflow:
      self.stats.refused += 1
      # What was rendered stays known, so the record needs it as well.
      self._write('turns', new=made, pinned=self._pinned(pinned))
      raise
    return self._serve(
      request, match, node, opening, at, applied, made, broken, pinned
    )

  def _serve(
    self,
    request: canonical.Request,
    match: tree.Match,
    leaf: tree.Node,
    opening: np.ndarray,
    at: tuple[chain.Chain, int],
    applied: list[str],
    made: list[dict[str, Any]],
    broken: str,
    pinned: int,
  ) -> Served:
    index = len(self.served)
    prompt_ids = at[0].view(at[1])
    parent = next((n.call_id for n in leaf.path() if n.call_id), '')
    if request.prefill is not None:
      own = self._own_answer(leaf, request.prefill)
      parent = own.call_id if own else parent
    rival, again = self._rival(leaf, at[1])
    served = Served(
      call_id=f'c{index}',
      index=index,
      dialect=request.dialect,
      prompt_ids=prompt_ids,
      leaf=leaf,
      opening=opening,
      at=at,
      params=self._params(request, len(prompt_ids), index),
      start=time.time(),
      answer_id=self._answer_id(index),
      request=request,
      parent=parent,
      rival=rival,
      has_tools=bool(request.tools),
      user_text=self._user_text(request, match, parent),
      normalised=tuple(dict.fromkeys(applied)),
      break_cause=again or broken,
    )
    self.add(served)
    if self._recorder is not None:
      self._write_start(served, made, pinned)
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

  def _render(
    self,
    node: tree.Node,
    turn: canonical.Turn,
    applied: list[str],
    made: list[dict[str, Any]],
  ) -> tree.Node:
    ids = self._turn_ids(turn, applied)
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

  def _break(self, match: tree.Match, made: Sequence[Mapping[str, Any]]) -> str:
    """Cause of a break; notes a new head."""
    cause = breaks.cause(match, self.by_call)
    if made and 'head' in made[0]:
      head = (
        bytes.fromhex(made[0]['system']),
        bytes.fromhex(made[0]['tools']),
      )
      cause = breaks.head_cause(head, self.heads) or cause
      self.heads.append(head)
    return cause

  def _rival(self, leaf: tree.Node, length: int) -> tuple[str, str]:
    """An ended call with the same prompt, and whether this is a retry of it
    or a parallel sample."""
    for other in reversed(self.served):
      if other.leaf is leaf and len(other.prompt_ids) == length:
        return ('', 'parallel') if other.pending else (other.call_id, 'retry')
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
    sampling = self.options.sampling
    limits = [
      self.window - prompt_tokens,
      request.max_tokens,
      sampling.max_tokens,
    ]
    if self.options.token_budget is not None:
      limits.append(self.options.token_budget - self.stats.sampled_tokens)
    if self.options.follow_client:
      sampling = _followed(sampling, request.sampling)
    # In thinking a stop string does not count, so the engine may only look
    # for it where no thinking can come.
    plain = self.renderer.thinking == 'off' or self.renderer.shows_empty_think(
      request.thinking
    )
    return dataclasses.replace(
      sampling,
      max_tokens=min(x for x in limits if x is not None),
      stop=request.stop if plain else (),
      stop_ids=tuple(self.renderer.tokenizer.eos_ids),
      seed=types.sampling_seed(self.options.run_seed, self.id, index),
    )

  def _pinned(self, since: int) -> list[list[str]]:
    return [list(pair) for pair in list(self.rules.seen.items())[since:]]

  def _write_start(
    self, served: Served, made: Sequence[Mapping[str, Any]], pinned: int
  ) -> None:
    self._write(
      'start',
      call=served.call_id,
      index=served.index,
      t=served.start,
      dialect=served.dialect,
      new=made,
      leaf=served.leaf.number,
      opening=served.opening,
      params=dataclasses.asdict(served.params),
      parent=served.parent,
      rival=served.rival,
      has_tools=served.has_tools,
      user_text=served.user_text,
      normalised=served.normalised,
      break_cause=served.break_cause,
      pinned=self._pinned(pinned),
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
    if self._recorder is None:
      return
    value: dict[str, Any] = {
      'call': served.call_id,
      't': served.end,
      'status': served.status,
      'error': served.error,
    }
    node = served.node
    if node is not None and served.sample is not None:
      value |= {
        'sample': capture.sample_json(served.sample),
        'malformed': served.malformed,
        'flags': served.flags,
        'text': served.text,
        'content': served.content,
        'calls': [[c.name, c.arguments] for c in served.calls],
        'n': node.number,
        'key': node.key.hex(),
        'closing': node.chain.view(node.length)[node.open_length :],
        'ids': sorted(node.ids),
        'reasoning': node.reasoning.hex(),
      }
    self._recorder.write('end', value)

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
    assigned = roles.assign(
      self.served, instruction if isinstance(instruction, str) else ''
    )
    retries = roles.retries(self.served)
    return tuple(
      _call(s, self.id, *assigned[s.call_id], retries.get(s.call_id, ''))
      for s in self.served
      if not s.pending
    )


def _call(
  served: Served,
  rollout_id: str,
  role: types.Role,
  reason: str,
  retry_of: str,
) -> types.Call:
  cause = served.break_cause
  if not served.parent and role != 'main':
    cause = role  # A conversation of its own is no broken one.
  return types.Call(
    call_id=served.call_id,
    rollout_id=rollout_id,
    index=served.index,
    prompt_ids=served.prompt_ids,
    sample=served.sample,
    params=served.params,
    dialect=served.dialect,
    status=served.status,
    start=served.start,
    end=served.end,
    parent=served.parent,
    role=role,
    role_reason=reason,
    retry_of=retry_of,
    malformed=served.malformed,
    normalised=served.normalised,
    break_cause=cause,
    error=served.error,
    text=served.text,
  )


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
