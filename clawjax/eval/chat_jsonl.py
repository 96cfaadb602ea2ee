"""Transcripts as chat JSONL, one conversation a line, for supervised training.

The shape is that of Hugging Face chat data sets: `messages` with `role`,
`content`, `reasoning_content`, `tool_calls` and `tool_call_id`, and `tools`
beside it. `metadata` says where the line came from and what it scored, so that
a cold start can filter by reward.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from clawjax import types
from clawjax.chat import template
from clawjax.rollout import conversation


def lines(
  rollout: types.Rollout,
  tokenizer: conversation.Tokenizer,
  *,
  roles: tuple[str, ...] = ('main',),
  arguments: Literal['object', 'text'] = 'object',
) -> list[dict[str, Any]]:
  """One dict per retained conversation of a rollout.

  Args:
    rollout: with its calls.
    tokenizer: that the calls were made with.
    roles: whose conversations to write.
    arguments: of tool calls: a JSON object (what chat templates take) or its
      text (what the OpenAI API takes).
  """
  trie = conversation.retained(rollout)
  return [
    line(
      rollout,
      [t.message for t in talk.turns],
      talk.tools,
      role=trie.calls[talk.leaf].role,
      arguments=arguments,
    )
    for talk in conversation.conversations(trie, tokenizer, roles=roles)
  ]


def line(
  rollout: types.Rollout,
  messages: Iterable[types.Message],
  tools: Iterable[Mapping[str, Any]],
  *,
  role: str = 'main',
  arguments: Literal['object', 'text'] = 'object',
) -> dict[str, Any]:
  """One conversation of a rollout, from its messages."""
  return {
    'messages': [_message(m, arguments) for m in messages],
    'tools': [dict(t) for t in tools],
    'metadata': {
      'rollout_id': rollout.rollout_id,
      'task_id': rollout.task_id,
      'harness': rollout.harness,
      'harness_version': rollout.harness_version,
      'role': role,
      'reward': rollout.reward,
      'outcome': rollout.outcome,
    },
  }


def good_enough(rollout: types.Rollout, least_reward: float | None) -> bool:
  """Whether a rollout scored at least so much; None: any will do."""
  if least_reward is None:
    return True
  return rollout.valid and float(rollout.reward or 0.0) >= least_reward


def write(
  path: str | os.PathLike[str],
  rollouts: Iterable[types.Rollout],
  tokenizer: conversation.Tokenizer,
  *,
  least_reward: float | None = None,
  **options: Any,
) -> int:
  """Writes a file; returns the number of lines.

  Args:
    path: the file; replaced when whole.
    rollouts: to write.
    tokenizer: that the calls were made with.
    least_reward: leave out rollouts that scored less or were not scored;
      None: write all.
    **options: see `lines`.
  """
  return write_lines(
    path,
    (
      line
      for rollout in rollouts
      if good_enough(rollout, least_reward)
      for line in lines(rollout, tokenizer, **options)
    ),
  )


def write_lines(
  path: str | os.PathLike[str], found: Iterable[Mapping[str, Any]]
) -> int:
  """Writes ready lines; returns how many."""
  target = pathlib.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  temporary = target.with_name(target.name + '.tmp')
  count = 0
  with temporary.open('w', encoding='utf-8') as file:
    for entry in found:
      file.write(json.dumps(entry, ensure_ascii=False) + '\n')
      count += 1
  temporary.replace(target)
  return count


def _message(message: types.Message, arguments: str) -> dict[str, Any]:
  out: dict[str, Any] = {'role': message.role, 'content': message.content}
  if message.reasoning:
    out['reasoning_content'] = message.reasoning
  if message.calls:
    out['tool_calls'] = [
      {
        'id': c.id,
        'type': 'function',
        'function': {
          'name': c.name,
          'arguments': c.arguments
          if arguments == 'text'
          else template.arguments_object(c.arguments) or {},
        },
      }
      for c in message.calls
    ]
  if message.role == 'tool':
    out['tool_call_id'] = message.call_id
    if message.name:
      out['name'] = message.name
  return out
