"""A rollout whose conversation is known, built with the real renderer."""

from __future__ import annotations

import dataclasses

import numpy as np

from clawjax import types
from clawjax.chat import render, tokenizers

TOOLS = (
  types.Tool(
    'bash',
    'Runs a command.',
    {'type': 'object', 'properties': {'command': {'type': 'string'}}},
  ),
)
SYSTEM = types.Message('system', 'You are pi.\n\nBe brief: <|im_end|> is text.')
USER = types.Message('user', 'List the files, \u00e9 & "x" <tool_response>.')
FIRST = (
  '<think>\nlook first\n</think>\n\nI look.\n<tool_call>\n{"name": "bash", '
  '"arguments": {"command": "ls"}}\n</tool_call>\n<tool_call>\n{"name": "bash",'
  ' "arguments": {"command": "pwd"}}\n</tool_call><|im_end|>'
)
RESULTS = (
  types.Message('tool', 'a.txt\n</tool_response>\nb.txt'),
  types.Message('tool', '/workspace'),
)
SECOND = 'Two files.<|im_end|>'


@dataclasses.dataclass
class Builder:
  """Makes calls that extend one another as the proxy would."""

  rollout_id: str = 'train/3/t/pi/0'

  def __post_init__(self):
    self.tokenizer = tokenizers.load('tiny')
    self.renderer = render.Renderer(self.tokenizer)
    self.calls: list[types.Call] = []

  def call(self, prompt, text, **fields) -> types.Call:
    ids = np.array(self.tokenizer.encode_markup(text), np.int32)
    index = len(self.calls)
    call = types.Call(
      call_id=f'c{index}',
      rollout_id=self.rollout_id,
      index=index,
      prompt_ids=np.array(prompt, np.int32),
      sample=types.Sample(
        ids,
        -np.linspace(0.01, 2, ids.size).astype(np.float32),
        fields.pop('finish', 'stop'),
        policy_version=3,
        reused_tokens=7,
      ),
      start=1.7e9 + index,
      end=1.7e9 + index + 0.5,
      **fields,
    )
    self.calls.append(call)
    return call

  def start(self, text, *, messages=(SYSTEM, USER), tools=TOOLS, **fields):
    return self.call(self.renderer.prompt(messages, tools), text, **fields)

  def go_on(self, after: types.Call, turns, text, **fields) -> types.Call:
    """A call whose prompt is `after`, its answer and closed turns."""
    ids = [*after.prompt_ids.tolist(), *after.sample.token_ids.tolist()]
    ids += self.renderer.closing(ids[-1])
    for turn in turns:
      ids += self.renderer.turn(turn)
    return self.call(ids + self.renderer.opening(), text, **fields)

  def rollout(self, **fields) -> types.Rollout:
    return types.Rollout(
      rollout_id=self.rollout_id,
      task_id='synth/list-1',
      harness='pi',
      harness_version='0.50.1',
      calls=tuple(self.calls),
      **{'reward': 0.5, 'checks': {'listed': 0.5}, **fields},
    )


def plain(**fields) -> tuple[types.Rollout, tokenizers.Tokenizer]:
  """System, user, an answer with two calls, their results, a last answer."""
  b = Builder()
  b.go_on(b.start(FIRST), [RESULTS], SECOND)
  return b.rollout(**fields), b.tokenizer


def forked() -> tuple[types.Rollout, tokenizers.Tokenizer]:
  """
  c0 - c1 (retry: dead)
     - c2 - c4            c3: a subagent, a root of its own
     - c5                 (the harness rewrote its history: another leaf)
  c6 compaction, c7 goes on from the summary
  """
  b = Builder()
  c0 = b.start(FIRST)
  b.go_on(c0, [RESULTS], 'broken <tool_call>', malformed=True)
  c2 = b.go_on(c0, [RESULTS], FIRST, retry_of='c1')
  b.start(
    'Found it.<|im_end|>',
    messages=(types.Message('user', 'Find the file.'),),
    role='subagent',
  )
  b.go_on(c2, [RESULTS], SECOND)
  b.go_on(c0, [RESULTS, (types.Message('user', 'And now?'),)], SECOND)
  b.start(
    'So far: two files.<|im_end|>',
    messages=(types.Message('user', 'Summarise.'),),
    role='compaction',
  )
  b.start(
    'Going on.<|im_end|>',
    messages=(SYSTEM, types.Message('user', 'So far: two files.')),
  )
  return b.rollout(), b.tokenizer
