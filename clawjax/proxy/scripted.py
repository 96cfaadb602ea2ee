"""A `SamplingClient` that answers from a script, for tests and dry runs.

Each line of a JSONL file answers one engine call, in order of arrival over all
sessions; the last line answers all that come after it:

  {"text": "...", "finish": "stop"|"length", "logprob": -0.5, "delay_s": 0}

`text` is tokenised as markup; with finish 'stop' the turn's end token is added
unless the text already holds one. `error` (an `EngineError` kind) makes the
call fail instead; `token_ids` with `logprobs` say both outright.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clawjax import errors, types
from clawjax.chat import tokenizers

_BURST = 3  # Ids told at a time.
_KEYS = frozenset(
  {'text', 'finish', 'logprob', 'delay_s', 'error', 'token_ids', 'logprobs'}
)


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """The lines of a script.

  Raises:
    ConfigError: the file is missing, or a line is not as above.
  """
  try:
    text = pathlib.Path(path).read_text(encoding='utf-8')
  except OSError as e:
    raise errors.ConfigError(f'wanted a script at {path}, got: {e}') from e
  lines = []
  for number, line in enumerate(text.splitlines(), 1):
    if not line.strip():
      continue
    try:
      entry = json.loads(line)
    except ValueError as e:
      raise errors.ConfigError(f'{path}:{number}: not JSON: {e}') from e
    lines.append(_checked(entry, f'{path}:{number}'))
  if not lines:
    raise errors.ConfigError(f'wanted at least one line in {path}, got none')
  return lines


def _checked(entry: Any, where: str) -> dict[str, Any]:
  if not isinstance(entry, dict) or not entry.keys() <= _KEYS:
    raise errors.ConfigError(
      f'{where}: wanted an object with keys of {sorted(_KEYS)}, got {entry!r}'
    )
  return entry


class ScriptedClient:
  """Answers the n-th call with the n-th entry.

  Attributes:
    prompts: prompts in order of arrival, as they came (for tests).
    cancelled: calls that were cancelled.
  """

  def __init__(
    self,
    script: str | os.PathLike[str] | Sequence[Mapping[str, Any] | str],
    tokenizer: tokenizers.Tokenizer,
    *,
    window: int = 65536,
    policy_version: int = 0,
  ):
    if isinstance(script, (str, os.PathLike)):
      self._script = read(script)
    else:
      entries = [{'text': e} if isinstance(e, str) else dict(e) for e in script]
      self._script = [_checked(e, 'script') for e in entries]
    self._tokenizer = tokenizer
    self._window = window
    self._version = policy_version
    self.prompts: list[np.ndarray] = []
    self.params: list[types.SamplingParams] = []
    self.cancelled = 0

  @property
  def window(self) -> int:
    """See `SamplingClient`."""
    return self._window

  @property
  def policy_version(self) -> int:
    """See `SamplingClient`."""
    return self._version

  async def sample(
    self,
    prompt_ids: np.ndarray,
    params: types.SamplingParams,
    *,
    session_id: str = '',
    call_index: int = 0,
    on_tokens: Callable[[list[int], list[float], int], None] | None = None,
  ) -> types.Sample:
    """See `SamplingClient`.

    With `on_tokens` the ids are also told as they "come": three at a time,
    over the entry's `delay_s`.
    """
    del session_id, call_index
    entry = self._script[min(len(self.prompts), len(self._script) - 1)]
    self.prompts.append(np.array(prompt_ids))
    self.params.append(params)
    failing = entry.get('error')
    sample = None if failing else self._sample(entry, params)
    bursts: list[slice] = []
    if on_tokens and sample is not None:
      count = len(sample.token_ids)
      bursts = [slice(i, i + _BURST) for i in range(0, count, _BURST)]
    pause = float(entry.get('delay_s', 0)) / max(1, len(bursts))
    try:
      for burst in bursts or [None]:
        await asyncio.sleep(pause)
        if burst and on_tokens and sample is not None:
          ids, logprobs = sample.token_ids[burst], sample.logprobs[burst]
          on_tokens(ids.tolist(), logprobs.tolist(), self._version)
    except asyncio.CancelledError:
      self.cancelled += 1
      raise
    if sample is None:
      raise errors.EngineError('scripted failure', kind=failing)
    return sample

  def _sample(
    self, entry: Mapping[str, Any], params: types.SamplingParams
  ) -> types.Sample:
    eos = self._tokenizer.eos_ids
    finish = entry.get('finish', 'stop')
    ids = entry.get('token_ids')
    if ids is None:
      ids = self._tokenizer.encode_markup(entry.get('text', ''))
      if finish == 'stop' and not any(i in eos for i in ids):
        ids.append(self._tokenizer.im_end)
    end = next((i for i, token in enumerate(ids) if token in eos), None)
    if end is not None:
      ids, finish = ids[: end + 1], 'stop'
    if params.max_tokens is not None and len(ids) > params.max_tokens:
      ids, finish = ids[: params.max_tokens], 'length'
    logprobs = entry.get('logprobs')
    if logprobs is None:
      logprobs = np.full(len(ids), entry.get('logprob', -0.5), np.float32)
    return types.Sample(
      token_ids=np.asarray(ids, np.int32),
      logprobs=np.asarray(logprobs, np.float32),
      finish=finish,
      policy_version=self._version,
    )

  async def close(self) -> None:
    """See `SamplingClient`."""
