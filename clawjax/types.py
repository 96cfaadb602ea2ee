"""The records that flow between the parts; numpy and stdlib only.

  Task -> rollout -> sandbox + harness --HTTP--> proxy --ids--> engine
  Sample  what the engine answered to one prompt: ids and their log-probs.
  Call    one request of a harness: exact prompt ids, its Sample, its status.
  Rollout all calls of one harness run in order, plus the verifier's reward.

Ids are kept, never re-made: what stands in `Call.prompt_ids` and
`Sample.token_ids` is what the engine saw and sampled. Everything here is
immutable and turns into JSON (`to_json`) and back (`from_json`) without loss.
Axis letters: T tokens of a sample, N prompt tokens, L layers, A experts used
per token.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

Role = Literal['main', 'subagent', 'compaction', 'side']
Finish = Literal['stop', 'length', 'context_full', 'aborted']
CallStatus = Literal['ok', 'aborted', 'error']
Outcome = Literal[
  'ok', 'timeout', 'harness_error', 'infra_error', 'verifier_error'
]
# Outcomes whose workspace was scored: only these enter statistics and loss.
SCORED_OUTCOMES = ('ok', 'timeout', 'harness_error')


# ---- messages --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ToolCall:
  """A tool call; `arguments` is JSON text exactly as written."""

  name: str
  arguments: str
  id: str = ''


@dataclasses.dataclass(frozen=True)
class Message:
  """A canonical chat message, whatever dialect it came from.

  Attributes:
    role: 'system', 'user', 'assistant' or 'tool'.
    content: visible text.
    reasoning: thinking text (assistant only).
    calls: tool calls (assistant only).
    call_id: id of the call that this message answers (tool only).
    name: tool name where the dialect gives it (tool only).
  """

  role: Literal['system', 'user', 'assistant', 'tool']
  content: str = ''
  reasoning: str = ''
  calls: tuple[ToolCall, ...] = ()
  call_id: str = ''
  name: str = ''


@dataclasses.dataclass(frozen=True)
class Tool:
  """A tool offered to the model; `parameters` is a JSON schema."""

  name: str
  description: str = ''
  parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# ---- sampling --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SamplingParams:
  """How to sample; the order is temperature, top_k, top_p, min_p.

  Attributes:
    temperature: 0 means greedy.
    top_p: nucleus mass; 1 keeps all.
    top_k: number of tokens kept; 0 keeps all.
    min_p: share of the largest probability below which a token is cut.
    max_tokens: most tokens to sample; None: the rest of the window.
    stop: strings that end the sample (they stay in the ids).
    stop_ids: token ids that end the sample (the id stays in the ids).
    seed: with the policy version and the token index this fixes every draw,
      whatever the batch; see `sampling_seed`.
    return_routes: record the experts used (R3).
  """

  temperature: float = 1.0
  top_p: float = 1.0
  top_k: int = 0
  min_p: float = 0.0
  max_tokens: int | None = None
  stop: tuple[str, ...] = ()
  stop_ids: tuple[int, ...] = ()
  seed: int = 0
  return_routes: bool = False


def sampling_seed(run_seed: int, rollout_id: str, call_index: int) -> int:
  """A 63-bit seed from (run seed, rollout id, call index).

  The engine folds in the policy version and the token index, so a draw depends
  on these five and on nothing else (not on the batch, the slot or the time).
  """
  text = f'{run_seed}/{rollout_id}/{call_index}'.encode()
  digest = hashlib.blake2b(text, digest_size=8).digest()
  return int.from_bytes(digest, 'little') >> 1


@dataclasses.dataclass(frozen=True)
class Sample:
  """What the engine answered to one prompt.

  Attributes:
    token_ids: int32 [T], stop id included when one was sampled.
    logprobs: float32 [T], natural log, under the distribution that each token
      was sampled from (after temperature and cuts); finite.
    finish: why it ended.
    policy_version: version of the weights at the first token.
    raw_logprobs: float32 [T] under the untouched distribution (temperature 1,
      no cuts), or None when not computed.
    token_versions: int32 [T] weights version per token, or None when all equal
      `policy_version`.
    routes: int16 [T, L, A] experts chosen at the slot that *holds* each token,
      or None. Row t is -1 where unknown (the last token is never fed back).
    prompt_routes: int16 [N, L, A] the same for the prompt, or None.
    reused_tokens: prompt tokens served from the prefix cache.
  """

  token_ids: np.ndarray
  logprobs: np.ndarray
  finish: Finish
  policy_version: int = 0
  raw_logprobs: np.ndarray | None = None
  token_versions: np.ndarray | None = None
  routes: np.ndarray | None = None
  prompt_routes: np.ndarray | None = None
  reused_tokens: int = 0


class SamplingClient(Protocol):
  """The one way to the model: token ids in, `Sample` out.

  Cancelling the awaiting task cancels the generation. Raises `EngineError`.
  """

  @property
  def window(self) -> int:
    """Most tokens of prompt and output together."""

  @property
  def policy_version(self) -> int:
    """Version of the weights that the next request will meet."""

  async def sample(
    self,
    prompt_ids: np.ndarray,
    params: SamplingParams,
    *,
    session_id: str = '',
    call_index: int = 0,
  ) -> Sample:
    """Samples a continuation of `prompt_ids` (int32 [N]).

    Args:
      prompt_ids: exact prompt.
      params: see `SamplingParams`.
      session_id: affinity and fairness key (the rollout id).
      call_index: number of this call within the session.
    """

  async def close(self) -> None:
    """Releases what the client holds."""


# ---- captured calls --------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Call:
  """One request of a harness to the model, as recorded by the proxy.

  Attributes:
    call_id: unique in the session.
    rollout_id: the rollout that the session belongs to.
    index: number of the call within the session, from 0, by arrival.
    prompt_ids: int32 [N], exactly what the engine was given.
    sample: the answer, or None when there is none (error).
    params: how it was sampled.
    dialect: 'messages', 'chat' or 'responses'.
    status: 'ok', 'aborted' (the client hung up) or 'error'.
    start, end: Unix seconds.
    parent: id of the call whose prompt + answer this prompt extends, or ''.
    role: what the call is for, with the reason in `role_reason`.
    retry_of: id of an earlier call with the same prompt whose answer was never
      continued, or ''.
    malformed: the answer held a tool call that could not be parsed.
    normalised: names of the rules applied to the request.
    break_cause: why this prompt does not extend an earlier one ('' if it does).
    error: what went wrong ('' if nothing did).
    text: decoded answer, for people only.
  """

  call_id: str
  rollout_id: str
  index: int
  prompt_ids: np.ndarray
  sample: Sample | None
  params: SamplingParams = SamplingParams()
  dialect: str = 'chat'
  status: CallStatus = 'ok'
  start: float = 0.0
  end: float = 0.0
  parent: str = ''
  role: Role = 'main'
  role_reason: str = ''
  retry_of: str = ''
  malformed: bool = False
  normalised: tuple[str, ...] = ()
  break_cause: str = ''
  error: str = ''
  text: str = ''

  @property
  def trainable(self) -> bool:
    """Whether the answer may be trained at all (before any filter)."""
    return self.status == 'ok' and self.sample is not None


# ---- tasks and rollouts ----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verifier:
  """Scores a final workspace, in a sandbox, after the agent has ended.

  Attributes:
    files: hidden files, placed at `/verifier` only then.
    command: run in the sandbox with cwd `/workspace`, e.g.
      ('python3', '/verifier/check.py', '/workspace').
    output: how the reward is read: 'json_line' (last non-empty stdout line is
      `{"reward": x, "checks": {name: value}}`; without `reward` the mean of
      the checks), 'float_line' (last line is one float) or 'harbor'
      (`/logs/verifier/reward.json`, then `reward.txt`).
    timeout_s: seconds.
  """

  files: Mapping[str, bytes]
  command: tuple[str, ...]
  output: Literal['json_line', 'float_line', 'harbor'] = 'json_line'
  timeout_s: float = 60.0


@dataclasses.dataclass(frozen=True)
class Task:
  """An instruction, a workspace and a verifier.

  Attributes:
    id: unique, `source/name`.
    turns: user messages in order; most tasks have one.
    files: initial workspace, relative path -> content.
    verifier: how the final workspace is scored; None: not scored.
    time_limit_s: seconds the harness may run.
    metadata: anything else ('domain', 'family', ...); JSON values.
  """

  id: str
  turns: tuple[str, ...]
  files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
  verifier: Verifier | None = None
  time_limit_s: float = 120.0
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def instruction(self) -> str:
    """All user messages as one text."""
    return '\n\n'.join(self.turns)


@dataclasses.dataclass(frozen=True)
class Rollout:
  """One run of one harness on one task, finished and accounted for.

  Attributes:
    rollout_id: deterministic within a run, e.g. 'train/3/synth-17/pi/5'.
    task_id, harness, harness_version: what ran.
    index: number within its group.
    calls: captured calls in order of arrival.
    reward: verifier's score, or None when unknown (never 0 for unknown).
    checks: name -> value in [0, 1], the parts of the reward.
    outcome: how it ended; see `SCORED_OUTCOMES`.
    reason: one line on the outcome ('' for 'ok').
    timings: stage -> seconds ('queue', 'create', 'harness', 'settle',
      'verify', 'destroy', 'total', 'model': inside the engine).
    telemetry: path of what the harness printed, relative to the run folder.
    extra: exit code, peak memory, served and captured call counts, ...
  """

  rollout_id: str
  task_id: str
  harness: str
  harness_version: str = ''
  index: int = 0
  calls: tuple[Call, ...] = ()
  reward: float | None = None
  checks: Mapping[str, float] = dataclasses.field(default_factory=dict)
  outcome: Outcome = 'ok'
  reason: str = ''
  timings: Mapping[str, float] = dataclasses.field(default_factory=dict)
  telemetry: str = ''
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def group(self) -> tuple[str, str]:
    """Key of the group that its advantage is computed in."""
    return (self.task_id, self.harness)

  @property
  def valid(self) -> bool:
    """Whether it may enter group statistics and the loss."""
    return self.reward is not None and self.outcome in SCORED_OUTCOMES


# ---- JSON ------------------------------------------------------------------

_DTYPES = {
  'token_ids': np.int32,
  'prompt_ids': np.int32,
  'token_versions': np.int32,
  'logprobs': np.float32,
  'raw_logprobs': np.float32,
  'routes': np.int16,
  'prompt_routes': np.int16,
}


def to_json(record: Sample | Call | Rollout | SamplingParams) -> dict[str, Any]:
  """A JSON-ready dict; floats keep all digits of float32.

  Raises:
    ValueError: a log-prob is not finite (JSON could not hold it).
  """

  def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
      return {
        f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
      }
    if isinstance(value, np.ndarray):
      if value.dtype.kind == 'f' and not np.isfinite(value).all():
        raise ValueError('wanted finite numbers, got nan or inf')
      return value.tolist()
    if isinstance(value, np.generic):
      return value.item()
    if isinstance(value, Mapping):
      return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
      return [plain(v) for v in value]
    return value

  return plain(record)


def _arrays(data: Mapping[str, Any]) -> dict[str, Any]:
  return {
    k: np.asarray(v, _DTYPES[k]) if k in _DTYPES and v is not None else v
    for k, v in data.items()
  }


def sample_from_json(data: Mapping[str, Any]) -> Sample:
  """Inverse of `to_json` for a `Sample`."""
  return Sample(**_arrays(data))


def call_from_json(data: Mapping[str, Any]) -> Call:
  """Inverse of `to_json` for a `Call`."""
  fields = _arrays(data)
  if fields.get('sample') is not None:
    fields['sample'] = sample_from_json(fields['sample'])
  params = dict(fields['params'])
  params['stop'] = tuple(params['stop'])
  params['stop_ids'] = tuple(params['stop_ids'])
  fields['params'] = SamplingParams(**params)
  fields['normalised'] = tuple(fields['normalised'])
  return Call(**fields)


def rollout_from_json(data: Mapping[str, Any]) -> Rollout:
  """Inverse of `to_json` for a `Rollout`."""
  fields = dict(data)
  fields['calls'] = tuple(call_from_json(c) for c in fields['calls'])
  return Rollout(**fields)


def dumps(records: Sequence[Any] | Any) -> str:
  """JSON text of a record or of a list of records."""
  if isinstance(records, (list, tuple)):
    return json.dumps([to_json(r) for r in records], ensure_ascii=False)
  return json.dumps(to_json(records), ensure_ascii=False)
