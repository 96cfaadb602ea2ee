"""Transcripts in ATIF, the Agent Trajectory Interchange Format (v1.8).

One document per retained path of a rollout. A path that shares its beginning
with an earlier document repeats those steps with `is_copied_context: true`,
which readers leave out of training: the same once-only rule as in the loss.
Sub-agents are embedded in the first document; where the harness compacted its
context, a document names the one that goes on (`continued_trajectory_ref`).

Token ids and log-probs are written exactly as captured. A prompt that extends
the step before it is not repeated: `metrics.extra.inserted_token_ids` holds
what the harness put between (`prompt_ids='full'` repeats it all the same), and
`tokens` gives every prompt back.

The format is restated from the public specification; keys that are ours go
into `extra`, as it demands.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from clawjax import trie as trie_lib
from clawjax import types
from clawjax.chat import template
from clawjax.rollout import conversation

VERSION = 'ATIF-v1.8'


class Tokens(NamedTuple):
  """Exact tokens of one call.

  Attributes:
    prompt_ids: int32 [N].
    token_ids: int32 [T].
    logprobs: float32 [T].
  """

  prompt_ids: np.ndarray
  token_ids: np.ndarray
  logprobs: np.ndarray


def documents(
  rollout: types.Rollout,
  tokenizer: conversation.Tokenizer,
  *,
  model_name: str = '',
  advantage: float | None = None,
  prompt_ids: Literal['inserted', 'full'] = 'inserted',
) -> list[dict[str, Any]]:
  """ATIF documents of a rollout, JSON-ready; none when nothing was retained.

  Args:
    rollout: with its calls.
    tokenizer: that the calls were made with.
    model_name: recorded as the agent's model when given.
    advantage: recorded when given.
    prompt_ids: how prompts are written, see the top of the file.
  """
  trie = conversation.retained(rollout)
  make = _Writer(rollout, trie, model_name, prompt_ids == 'full')
  talks = conversation.conversations(trie, tokenizer)
  found = [make.document(t) for t in talks]
  for document in found:
    document['extra'] = _root_extra(rollout, advantage)
  if not found:
    return []
  others = conversation.conversations(trie, tokenizer, roles=('subagent',))
  if others:
    found[0]['subagent_trajectories'] = [make.document(t) for t in others]
  for at, then in _continuations(trie, talks):
    found[at]['continued_trajectory_ref'] = _file_name(found[then])
  return found


def write(
  folder: str | os.PathLike[str],
  rollout: types.Rollout,
  tokenizer: conversation.Tokenizer,
  **options: Any,
) -> list[pathlib.Path]:
  """Writes a rollout's documents below `folder`; see `documents`."""
  place = pathlib.Path(folder)
  place.mkdir(parents=True, exist_ok=True)
  paths = []
  for document in documents(rollout, tokenizer, **options):
    path = place / _file_name(document)
    temporary = path.with_suffix('.tmp')
    temporary.write_text(json.dumps(document, ensure_ascii=False) + '\n')
    temporary.replace(path)
    paths.append(path)
  return paths


def tokens(document: Mapping[str, Any]) -> dict[str, Tokens]:
  """Call id -> exact tokens, from a document that we wrote.

  Raises:
    ValueError: a step's prompt cannot be put together.
  """
  found: dict[str, Tokens] = {}
  last: Tokens | None = None
  for step in document['steps']:
    metrics = step.get('metrics')
    if not metrics or 'completion_token_ids' not in metrics:
      continue
    if 'prompt_token_ids' in metrics:
      prompt = np.asarray(metrics['prompt_token_ids'], np.int32)
    elif last is not None:
      prompt = np.concatenate(
        [
          last.prompt_ids,
          last.token_ids,
          np.asarray(metrics['extra']['inserted_token_ids'], np.int32),
        ]
      )
    else:
      raise ValueError(
        f'step {step["step_id"]}: wanted prompt_token_ids in the first step '
        'of a model, got none'
      )
    last = Tokens(
      prompt,
      np.asarray(metrics['completion_token_ids'], np.int32),
      np.asarray(metrics['logprobs'], np.float32),
    )
    found[step['extra']['call_id']] = last
  return found


# ---- writing ---------------------------------------------------------------


class _Writer:
  """Makes the documents of one rollout; knows which calls were written."""

  def __init__(
    self,
    rollout: types.Rollout,
    trie: trie_lib.Trie,
    model_name: str,
    full: bool,
  ):
    self._rollout = rollout
    self._trie = trie
    self._model_name = model_name
    self._full = full
    self._written: set[int] = set()

  def document(self, talk: conversation.Conversation) -> dict[str, Any]:
    """One document; marks its calls as written."""
    steps: list[dict[str, Any]] = []
    for turn in talk.turns:
      if turn.message.role == 'tool' and self._observe(steps, turn.message):
        continue
      step = self._step(turn, first=turn.owner == talk.path[0])
      if turn.owner in self._written:
        step['is_copied_context'] = True
      steps.append({'step_id': len(steps) + 1, **step})
    agent: dict[str, Any] = {
      'name': self._rollout.harness or 'unknown',
      'version': self._rollout.harness_version or 'unknown',
    }
    if self._model_name:
      agent['model_name'] = self._model_name
    if talk.tools:
      agent['tool_definitions'] = list(talk.tools)
    new = [i for i in talk.path if i not in self._written]
    self._written.update(talk.path)
    calls = [self._trie.calls[i] for i in new]
    return {
      'schema_version': VERSION,
      'session_id': self._rollout.rollout_id,
      'trajectory_id': (
        f'{self._rollout.rollout_id}:{self._trie.calls[talk.leaf].index}'
      ),
      'agent': agent,
      'steps': steps,
      'final_metrics': {
        'total_prompt_tokens': sum(len(c.prompt_ids) for c in calls),
        'total_completion_tokens': sum(
          len(c.sample.token_ids) for c in calls if c.sample
        ),
        'total_cached_tokens': sum(
          c.sample.reused_tokens for c in calls if c.sample
        ),
        'total_steps': len(steps),
      },
    }

  @staticmethod
  def _observe(steps: list[dict[str, Any]], result: types.Message) -> bool:
    """Puts a tool result into the step that asked for it, if there is one."""
    if not steps or steps[-1]['source'] != 'agent':
      return False
    step = steps[-1]
    entry: dict[str, Any] = {'content': result.content}
    asked = {c['tool_call_id'] for c in step.get('tool_calls', ())}
    if result.call_id in asked:
      entry['source_call_id'] = result.call_id
    step.setdefault('observation', {'results': []})['results'].append(entry)
    return True

  def _step(self, turn: conversation.Turn, *, first: bool) -> dict[str, Any]:
    message = turn.message
    if message.role != 'assistant':
      source = 'system' if message.role == 'system' else 'user'
      return {'source': source, 'message': message.content}
    step: dict[str, Any] = {'source': 'agent', 'message': message.content}
    if message.calls:
      step['tool_calls'] = [_tool_call(c) for c in message.calls]
    if not turn.sampled:  # put there by the harness: no model was asked
      step['llm_call_count'] = 0
      if message.reasoning:
        step['extra'] = {'reasoning': message.reasoning}
      return step
    if message.reasoning:
      step['reasoning_content'] = message.reasoning
    call = self._trie.calls[turn.owner]
    sample = call.sample
    assert sample is not None
    if call.end > 0:
      when = datetime.datetime.fromtimestamp(call.end, datetime.UTC)
      step['timestamp'] = when.isoformat()
    metrics: dict[str, Any] = {
      'prompt_tokens': len(call.prompt_ids),
      'completion_tokens': len(sample.token_ids),
      'cached_tokens': int(sample.reused_tokens),
      'completion_token_ids': sample.token_ids.tolist(),
      'logprobs': sample.logprobs.tolist(),
    }
    if first or self._full:
      metrics['prompt_token_ids'] = np.asarray(call.prompt_ids).tolist()
    else:
      inserted = trie_lib.inserted(self._trie, turn.owner)
      metrics['extra'] = {'inserted_token_ids': inserted.tolist()}
    step['metrics'] = metrics
    step['llm_call_count'] = 1
    step['extra'] = {
      'call_id': call.call_id,
      'call_index': call.index,
      'finish': sample.finish,
      'policy_version': int(sample.policy_version),
      'temperature': call.params.temperature,
    }
    reason = self._trie.reasons[turn.owner]
    if reason:
      step['extra']['not_trained'] = reason
    rises = (self._rollout.extra.get('process') or {}).get('rewards') or {}
    if call.call_id in rises:
      step['extra']['reward'] = rises[call.call_id]
    return step


def _tool_call(call: types.ToolCall) -> dict[str, Any]:
  arguments = template.arguments_object(call.arguments)
  out: dict[str, Any] = {
    'tool_call_id': call.id,
    'function_name': call.name,
    'arguments': dict(arguments or {}),
  }
  if arguments is None:
    out['extra'] = {'arguments_text': call.arguments}
  return out


def _root_extra(
  rollout: types.Rollout, advantage: float | None
) -> dict[str, Any]:
  extra: dict[str, Any] = {
    'task_id': rollout.task_id,
    'group': list(rollout.group),
    'outcome': rollout.outcome,
    'checks': dict(rollout.checks),
  }
  if rollout.reward is not None:  # unknown is not zero
    extra['reward'] = rollout.reward
  if rollout.reason:
    extra['reason'] = rollout.reason
  if advantage is not None:
    extra['advantage'] = advantage
  return extra


def _continuations(
  trie: trie_lib.Trie, talks: Sequence[conversation.Conversation]
) -> list[tuple[int, int]]:
  """(document, the document that goes on after a compaction)."""
  found = []
  for number, call in enumerate(trie.calls):
    if call.role != 'compaction':
      continue
    before = [i for i, t in enumerate(talks) if t.leaf < number]
    after = [i for i, t in enumerate(talks) if t.path[0] > number]
    if before and after:
      found.append(
        (
          max(before, key=lambda i: talks[i].leaf),
          min(after, key=lambda i: talks[i].path[0]),
        )
      )
  return found


def _file_name(document: Mapping[str, Any]) -> str:
  safe = ''.join(
    c if c.isalnum() or c in '._-' else '_' for c in document['trajectory_id']
  )
  return f'{safe}.json'
