"""One request and what became of it; counts; the error of a full window."""

from __future__ import annotations

import dataclasses

import numpy as np

from clawjax import errors, types
from clawjax.proxy import canonical, chain, tree


@dataclasses.dataclass
class Served:
  """One request and what became of it; turns into a `types.Call`.

  Attributes:
    call_id, index: name and number within the session.
    dialect, prompt_ids, params, start, end, sample, normalised, break_cause,
      malformed, error, text, parent: as in `types.Call`.
    leaf: node that the prompt ends with, before its opening.
    opening: int32 ids from there to the end of the prompt.
    at: where the sampled ids go.
    request: what was asked; dropped when the call ends.
    status: '' while in flight.
    node: the kept turn, None without a sample.
    answer_id: unique part of the ids in the answer.
    rival: an earlier call with the same prompt that had ended when this one
      came, or that the client had given up: a retry, unless that one's answer
      is continued.
    has_tools: tools were offered.
    user_text: what the harness said: in a new conversation all of it, else
      what is new.
    calls, content: the parsed answer.
    flags: see `parsing.Parsed`.
    own_s: the proxy's own seconds.
  """

  call_id: str
  index: int
  dialect: str
  prompt_ids: np.ndarray
  leaf: tree.Node
  opening: np.ndarray
  at: tuple[chain.Chain, int]
  params: types.SamplingParams
  start: float
  answer_id: str
  request: canonical.Request | None = None
  parent: str = ''
  end: float = 0.0
  status: str = ''
  sample: types.Sample | None = None
  node: tree.Node | None = None
  rival: str = ''
  has_tools: bool = True
  user_text: str = ''
  malformed: bool = False
  flags: tuple[str, ...] = ()
  normalised: tuple[str, ...] = ()
  break_cause: str = ''
  error: str = ''
  text: str = ''
  calls: tuple[types.ToolCall, ...] = ()
  content: str = ''
  own_s: float = 0.0

  @property
  def pending(self) -> bool:
    """Whether the call is still in flight."""
    return not self.status

  @property
  def continued(self) -> bool:
    """Whether a later request went on from this answer."""
    return self.node is not None and bool(self.node.children)

  def call(
    self, rollout_id: str, role: types.Role, reason: str, retry_of: str
  ) -> types.Call:
    """The call as it leaves the proxy.

    Args:
      rollout_id: of the session.
      role, reason: see `roles.assign`.
      retry_of: see `roles.retries`.
    """
    cause = self.break_cause
    if not self.parent and role != 'main':
      cause = role  # A conversation of its own is no broken one.
    return types.Call(
      call_id=self.call_id,
      rollout_id=rollout_id,
      index=self.index,
      prompt_ids=self.prompt_ids,
      sample=self.sample,
      params=self.params,
      dialect=self.dialect,
      status=self.status,
      start=self.start,
      end=self.end,
      parent=self.parent,
      role=role,
      role_reason=reason,
      retry_of=retry_of,
      malformed=self.malformed,
      normalised=self.normalised,
      break_cause=cause,
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
    aborted, failed: requests that ended without a sample.
    refused: requests that did not fit; not served.
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
  refused: int = 0
  engine_s: float = 0.0
  own_s: float = 0.0
  sampled_tokens: int = 0
  malformed: int = 0
