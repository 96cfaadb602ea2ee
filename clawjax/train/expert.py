"""A teacher that is not a model: given turns, played through the proxy.

`ExpertClient` stands where an engine stands. The n-th call of a session is
answered with the n-th of the session's turns, written as the model would have
to write it (content, tool calls in tags, end of turn) and tokenised. So the
trajectories for the cold start are captured exactly as a teacher model's would
be: same harness, sandbox, proxy, same records.

Its log-probs are 0 (it was certain), and its policy version is -1, so that such
a rollout is never taken for the policy's own.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clawjax import errors, types

EXPERT_VERSION = -1


# Harness -> its tool that runs a shell command, and that tool's argument.
SHELLS = {
  'pi': ('bash', 'command'),
  'agent_loop': ('bash', 'command'),
  'claude_code': ('Bash', 'command'),
  'codex': ('exec_command', 'cmd'),
  'openclaw': ('exec', 'command'),
  'mini_swe': ('bash', 'command'),
}


def spoken(turns: Sequence[types.Message], harness: str) -> list[types.Message]:
  """Turns that call `bash`, in the words of a harness's own shell tool.

  Args:
    turns: each call is of `bash` with the one argument `command`.
    harness: its name; a variant ('codex_trimmed') speaks as its harness does.

  Raises:
    HarnessError: its shell tool is not known here.
  """
  known = [name for name in SHELLS if harness.startswith(name)]
  if not known:
    raise errors.HarnessError(
      f'the scripted expert does not know the shell tool of {harness}; it'
      f' knows those of {", ".join(SHELLS)}'
    )
  tool, argument = SHELLS[max(known, key=len)]
  return [
    dataclasses.replace(
      turn,
      calls=tuple(
        types.ToolCall(
          tool, json.dumps({argument: json.loads(c.arguments)['command']})
        )
        for c in turn.calls
      ),
    )
    for turn in turns
  ]


def turn_text(turn: types.Message) -> str:
  """The text of an assistant turn in the Qwen3 (Hermes) form."""
  parts = [turn.content] if turn.content else []
  for call in turn.calls:
    parts.append(
      '<tool_call>\n'
      f'{{"name": "{call.name}", "arguments": {call.arguments}}}\n'
      '</tool_call>'
    )
  return '\n'.join(parts) + '<|im_end|>'


class ExpertClient:
  """A `SamplingClient` that plays scripts.

  Args:
    tokenizer: a `chat.tokenizers` tokenizer.
    script: rollout id -> the turns to play in that session.
    window: tokens of prompt and answer together.
  """

  def __init__(
    self,
    tokenizer: Any,
    script: Callable[[str], Sequence[types.Message]],
    *,
    window: int,
  ):
    self._tokenizer = tokenizer
    self._script = script
    self._window = window

  @property
  def window(self) -> int:
    """Tokens of prompt and answer together."""
    return self._window

  @property
  def policy_version(self) -> int:
    """Always `EXPERT_VERSION`."""
    return EXPERT_VERSION

  async def sample(
    self,
    prompt_ids: np.ndarray,
    params: types.SamplingParams,
    *,
    session_id: str = '',
    call_index: int = 0,
  ) -> types.Sample:
    """The turn that is due; see `SamplingClient.sample`.

    Raises:
      EngineError: the prompt does not fit, or the script is over.
    """
    del params
    turns = self._script(session_id)
    if call_index >= len(turns):
      raise errors.EngineError(
        f'{session_id}: the script has {len(turns)} turns, call'
        f' {call_index} was asked for',
        kind='closed',
      )
    ids = self._tokenizer.encode_markup(turn_text(turns[call_index]))
    if len(prompt_ids) + len(ids) > self._window:
      raise errors.EngineError(
        f'prompt of {len(prompt_ids)} tokens leaves no room for'
        f' {len(ids)} in a window of {self._window}',
        kind='too_long',
      )
    return types.Sample(
      token_ids=np.asarray(ids, np.int32),
      logprobs=np.zeros(len(ids), np.float32),
      finish='stop',
      policy_version=EXPERT_VERSION,
    )

  async def close(self) -> None:
    """Nothing to release."""
