"""Captured trajectories to train on: a run folder, a data set, or chat lines.

  load(path, ...)  ->  a sequence of rollouts

  folder of a run or an evaluation (or one below it)   as they were recorded
  ArrayRecord data set, folder or URL                  read item by item
  FILE.jsonl                                           conversations of a teacher

A hosted teacher gives no token ids (`eval.passthrough`): its conversations are
rendered here as the proxy would have done, every assistant turn being sampled.
Trajectories that carry ids are refused when they were made with another
tokenizer.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from clawjax import errors, types
from clawjax.chat import render, template
from clawjax.tasks import dataset
from clawjax.train.expert import EXPERT_VERSION


def load(
  path: str, tokenizer: Any, *, min_reward: float, thinking: render.Thinking
) -> Sequence[types.Rollout]:
  """Valid trajectories that scored at least `min_reward`.

  Args:
    path: see the top of the file.
    tokenizer: that the model is trained with.
    min_reward: chat lines without a reward pass only when it is 0.
    thinking: of the renderer, for chat lines.

  Raises:
    TaskError: nothing is there, or it does not fit the tokenizer.
  """
  if '://' in path or dataset.is_set(path):
    source = dataset.open(path)
    if source.kind != 'rollouts':
      raise errors.TaskError(f'{path}: wanted rollouts, got {source.kind}')
    _check(path, str(source.facts.get('tokenizer') or ''), tokenizer)
    least = np.float32(min_reward)  # as the field is kept
    kept: Sequence[types.Rollout] = source.where(
      lambda fields: (
        fields['outcome'].decode() in types.SCORED_OUTCOMES
        and fields['reward'] >= least  # NaN, the unknown, is not
      )
    )
  elif path.endswith('.jsonl'):
    kept = list(
      teacher(
        pathlib.Path(path), tokenizer, min_reward=min_reward, thinking=thinking
      )
    )
  else:
    if not pathlib.Path(path).expanduser().is_dir():
      raise errors.TaskError(
        f'{path}: wanted the folder of a run, a data set, or a .jsonl file'
      )
    _check(path, dataset.tokenizer_of(path), tokenizer)
    kept = list(dataset.rollouts_below(path, least_reward=min_reward))
  if not len(kept):
    raise errors.TaskError(
      f'{path}: no trajectory there scored {min_reward:g} or more'
    )
  _check_ids(path, kept[0], tokenizer)
  return kept


def _check(path: str, name: str, tokenizer: Any) -> None:
  if name and name != tokenizer.name:
    raise errors.TaskError(
      f'{path}: captured with the tokenizer {name!r}, the model is trained '
      f'with {tokenizer.name!r}; their ids do not mean the same'
    )


def _check_ids(path: str, rollout: types.Rollout, tokenizer: Any) -> None:
  top = max(
    (int(np.max(c.prompt_ids, initial=0)) for c in rollout.calls), default=0
  )
  if top >= tokenizer.vocab_size:
    raise errors.TaskError(
      f'{path}: {rollout.rollout_id} has the token id {top}, the tokenizer '
      f'{tokenizer.name!r} has {tokenizer.vocab_size}'
    )


# ---- chat lines ------------------------------------------------------------


def teacher(
  path: pathlib.Path,
  tokenizer: Any,
  *,
  min_reward: float = 0.0,
  thinking: render.Thinking = 'auto',
) -> Iterator[types.Rollout]:
  """Rollouts of the conversations in a file, as `eval.chat_jsonl` writes it.

  Raises:
    TaskError: a line is no conversation.
  """
  renderer = render.Renderer(tokenizer, thinking=thinking)
  try:
    lines = path.expanduser().read_text('utf-8').splitlines()
  except (OSError, UnicodeError) as error:
    raise errors.TaskError(f'{path}: {error}') from error
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    try:
      entry = json.loads(line)
      reward = (entry.get('metadata') or {}).get('reward')
      if reward is None and min_reward > 0:
        continue
      if reward is not None and reward < min_reward:
        continue
      yield _rollout(entry, reward, renderer, f'{path.name}/{number}')
    except (ValueError, KeyError, TypeError, AttributeError) as error:
      raise errors.TaskError(
        f'{path}:{number}: wanted a conversation {{"messages": [...]}}: '
        f'{type(error).__name__}: {error}'
      ) from error


def _rollout(
  entry: Mapping[str, Any],
  reward: float | None,
  renderer: render.Renderer,
  rollout_id: str,
) -> types.Rollout:
  """One conversation, a call for each assistant turn."""
  system, rest = template.split_system([_message(m) for m in entry['messages']])
  ids = list(
    renderer.head(system, [_tool(t) for t in entry.get('tools') or ()])
  )
  calls: list[types.Call] = []
  for turn in template.turns(rest):
    if turn[0].role != 'assistant':
      ids += renderer.turn(turn)
      continue
    ids += renderer.opening()
    text = template.assistant(
      turn[0], family=renderer.family, thinking=renderer.thinking != 'off'
    )
    if renderer.shows_empty_think(None):  # the opening has it already
      text = text.removeprefix('<think>\n\n</think>\n\n')
    said = [*renderer.tokenizer.encode(text), renderer.tokenizer.im_end]
    calls.append(
      types.Call(
        call_id=f'c{len(calls)}',
        rollout_id=rollout_id,
        index=len(calls),
        prompt_ids=np.asarray(ids, np.int32),
        sample=types.Sample(
          np.asarray(said, np.int32),
          np.zeros(len(said), np.float32),
          'stop',
          policy_version=EXPERT_VERSION,
        ),
        parent=calls[-1].call_id if calls else '',
      )
    )
    ids += [*said, *renderer.closing(said[-1])]
  if not calls:
    raise ValueError('no assistant turn in it')
  known = entry.get('metadata') or {}
  return types.Rollout(
    rollout_id=rollout_id,
    task_id=str(known.get('task_id', '')),
    harness=str(known.get('harness', '')),
    calls=tuple(calls),
    # A line without a score was chosen by whoever wrote the file.
    reward=1.0 if reward is None else float(reward),
  )


def _message(data: Mapping[str, Any]) -> types.Message:
  content = data.get('content') or ''
  if isinstance(content, list):
    content = ''.join(str(part.get('text', '')) for part in content)
  calls = []
  for call in data.get('tool_calls') or ():
    function = call['function']
    arguments = function.get('arguments') or '{}'
    if not isinstance(arguments, str):
      arguments = json.dumps(arguments, ensure_ascii=False)
    calls.append(
      types.ToolCall(function['name'], arguments, call.get('id') or '')
    )
  if data['role'] not in ('system', 'user', 'assistant', 'tool'):
    raise ValueError(f'no role {data["role"]!r}')
  return types.Message(
    data['role'],
    content=content,
    reasoning=data.get('reasoning_content') or '',
    calls=tuple(calls),
    call_id=data.get('tool_call_id') or '',
    name=data.get('name') or '',
  )


def _tool(data: Mapping[str, Any]) -> types.Tool:
  function = data.get('function', data)
  return types.Tool(
    function['name'],
    function.get('description') or '',
    function.get('parameters') or {},
  )


# ---- feeding ---------------------------------------------------------------


class Feed:
  """Deals trajectories out to steps, each epoch in another seeded order.

  A data set goes through `grain`, whose place is part of the checkpoints; a
  list needs none, for the order follows from the step.

  Args:
    rollouts: what `load` gave, or a list.
    batch: trajectories of a step.
    seed: of the order.
  """

  def __init__(
    self, rollouts: Sequence[types.Rollout], *, batch: int, seed: int
  ):
    self._rollouts, self._batch, self._seed = rollouts, batch, seed
    self._loader: Any = None
    if isinstance(rollouts, dataset.Source):
      self._loader = dataset.loader(rollouts, seed=seed, batch=batch)

  def draw(self, step: int) -> list[types.Rollout]:
    """The trajectories of step `step`, counted from 1.

    A data set gives the next ones, whatever the number.
    """
    if self._loader is not None:
      return list(next(self._loader))
    total, first = len(self._rollouts), (step - 1) * self._batch
    chosen = []
    for place in range(first, first + self._batch):
      epoch, index = divmod(place, total)
      order = np.random.default_rng([self._seed, epoch]).permutation(total)
      chosen.append(self._rollouts[order[index]])
    return chosen

  def state(self) -> dict[str, Any]:
    """What a checkpoint must keep, JSON-ready."""
    return {} if self._loader is None else {'feed': self._loader.get_state()}

  def restore(self, facts: Mapping[str, Any]) -> None:
    """Goes back to where `state` was taken."""
    if self._loader is not None and 'feed' in facts:
      self._loader.set_state(facts['feed'])
