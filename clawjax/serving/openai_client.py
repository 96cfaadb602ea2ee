"""A `SamplingClient` on someone else's server: vLLM's or SGLang's.

Both take token ids and can give token ids and log-probs back, each in its own
form; a `Wire` knows one of them. What training needs and a server may not give
is checked at the start with one token (`connect`), and again on every answer:
ids that are missing, log-probs that are missing, not numbers or of another
length are errors, never filled in.

Which distribution a server's log-probs belong to is its operator's choice
(`vllm serve --logprobs-mode`). `logprobs='raw'` says: the plain softmax; then a
request with cuts or a temperature other than 1 is refused, because the number
that training needs is not on the wire. `logprobs='processed'` says: after
temperature and cuts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import httpx
import numpy as np

from clawjax.errors import EngineError
from clawjax.serving.http_client import check_sample
from clawjax.types import Finish, Sample, SamplingParams

Processed = Literal['raw', 'processed']


@dataclasses.dataclass(frozen=True)
class Answer:
  """What a server's JSON says, whoever wrote it.

  Attributes:
    token_ids: sampled ids.
    logprobs: one per id.
    finish: why it ended.
    cached: prompt tokens that came from its prefix cache.
    version: version of its weights as it names them, or None.
    prompt_ids: the prompt as the server saw it, or None when it does not say.
  """

  token_ids: list[int]
  logprobs: list[float]
  finish: Finish
  cached: int = 0
  version: str | None = None
  prompt_ids: list[int] | None = None


class Wire(Protocol):
  """One server's form."""

  path: str

  def request(
    self, prompt: list[int], params: SamplingParams, max_tokens: int
  ) -> dict[str, Any]:
    """The JSON to post."""

  def answer(self, body: Mapping[str, Any]) -> Answer:
    """Reads the JSON that came; KeyError, TypeError: something is missing."""


class Vllm:
  """vLLM's `/v1/completions` (also vllm-tpu), version 0.10.2 or later."""

  path = '/v1/completions'

  def __init__(self, model: str):
    self._model = model

  def request(
    self, prompt: list[int], params: SamplingParams, max_tokens: int
  ) -> dict[str, Any]:
    """See `Wire`."""
    return {
      'model': self._model,
      'prompt': prompt,
      'max_tokens': max_tokens,
      'temperature': params.temperature,
      'top_p': params.top_p,
      'top_k': params.top_k or -1,
      'min_p': params.min_p,
      'seed': params.seed,
      'stop': list(params.stop),
      'stop_token_ids': list(params.stop_ids),
      'logprobs': 0,
      'return_token_ids': True,
      'include_stop_str_in_output': True,
      'skip_special_tokens': False,
      'add_special_tokens': False,
      # Ids end a sample only when asked for, not by the server's own config.
      'ignore_eos': True,
    }

  def answer(self, body: Mapping[str, Any]) -> Answer:
    """See `Wire`."""
    choice = body['choices'][0]
    usage = body.get('usage') or {}
    details = usage.get('prompt_tokens_details') or {}
    return Answer(
      token_ids=list(choice['token_ids']),
      logprobs=list(choice['logprobs']['token_logprobs']),
      finish=_finish(choice['finish_reason']),
      cached=int(details.get('cached_tokens') or 0),
      prompt_ids=choice.get('prompt_token_ids'),
    )


class Sglang:
  """SGLang's own `/generate`."""

  path = '/generate'

  def request(
    self, prompt: list[int], params: SamplingParams, max_tokens: int
  ) -> dict[str, Any]:
    """See `Wire`."""
    return {
      'input_ids': prompt,
      'sampling_params': {
        'max_new_tokens': max_tokens,
        'temperature': params.temperature,
        'top_p': params.top_p,
        'top_k': params.top_k or -1,
        'min_p': params.min_p,
        'sampling_seed': params.seed,
        'stop': list(params.stop),
        'stop_token_ids': list(params.stop_ids),
        'skip_special_tokens': False,
        'no_stop_trim': True,
        'ignore_eos': True,
      },
      'return_logprob': True,
    }

  def answer(self, body: Mapping[str, Any]) -> Answer:
    """See `Wire`."""
    meta = body['meta_info']
    # Each entry: [log-prob, id, text or null].
    rows = meta['output_token_logprobs']
    ids = [row[1] for row in rows]
    if 'output_ids' in body and list(body['output_ids']) != ids:
      raise ValueError('output_ids and output_token_logprobs name other ids')
    reason = meta['finish_reason']
    version = meta.get('weight_version')
    return Answer(
      token_ids=ids,
      logprobs=[row[0] for row in rows],
      finish=_finish(reason['type']),
      cached=int(meta.get('cached_tokens') or 0),
      version=None if version is None else str(version),
    )


def _finish(reason: str) -> Finish:
  known: dict[str, Finish] = {
    'stop': 'stop',
    'length': 'length',
    'abort': 'aborted',
  }
  if reason in known:
    return known[reason]
  raise ValueError(f'unknown finish reason {reason!r}')


class ExternalClient:
  """See the top of the file; make one with `connect`."""

  def __init__(
    self,
    url: str,
    form: Wire,
    *,
    window: int,
    logprobs: Processed = 'raw',
    api_key: str | None = None,
    http: httpx.AsyncClient | None = None,
    timeout_s: float = 600.0,
  ):
    """Args:
    url: base URL of the server.
    form: `Vllm(model)` or `Sglang()`.
    window: most tokens of prompt and output together.
    logprobs: what the server's log-probs are of; see the top of the file.
    api_key: bearer token.
    http: the client to use (tests); None: one of our own.
    timeout_s: longest wait for one answer.
    """
    self._url = url.rstrip('/') + form.path
    self._form = form
    self._window = window
    self._logprobs = logprobs
    self._headers = (
      {} if api_key is None else {'authorization': f'Bearer {api_key}'}
    )
    self._http = http or httpx.AsyncClient(timeout=timeout_s)
    self.policy_version = 0

  @classmethod
  async def connect(cls, *args: Any, **options: Any) -> ExternalClient:
    """A client whose server has answered one token as training needs it.

    Raises:
      EngineError: it gives no ids or no log-probs, or does not answer.
    """
    client = cls(*args, **options)
    try:
      await client.sample(
        np.array([1, 2, 3], np.int32), SamplingParams(max_tokens=1)
      )
    except EngineError as error:
      await client.close()
      raise EngineError(
        f'{client._url} cannot serve training: {error}', kind=error.kind
      ) from error
    return client

  @property
  def window(self) -> int:
    """Most tokens of prompt and output together."""
    return self._window

  async def sample(
    self,
    prompt_ids: np.ndarray,
    params: SamplingParams,
    *,
    session_id: str = '',
    call_index: int = 0,
  ) -> Sample:
    """See `clawjax.types.SamplingClient`."""
    plain = (
      params.temperature == 1
      and params.top_p >= 1
      and params.top_k == 0
      and params.min_p == 0
    )
    if self._logprobs == 'raw' and not plain:
      raise EngineError(
        'this server gives log-probs of the plain softmax only; sample at '
        'temperature 1 without cuts, or have it give processed ones and say '
        "logprobs='processed'",
        kind='bad_request',
      )
    if params.return_routes:
      raise EngineError('this server records no routes', kind='bad_request')
    room = self._window - len(prompt_ids)
    if room < 1:
      raise EngineError(
        f'the prompt has {len(prompt_ids)} tokens and the window '
        f'{self._window}',
        kind='too_long',
      )
    wanted = params.max_tokens
    count = room if wanted is None else min(wanted, room)
    prompt = np.asarray(prompt_ids).tolist()
    version = self.policy_version
    body = await self._post(self._form.request(prompt, params, count))
    try:
      answer = self._form.answer(body)
      sample = self._sample(prompt, answer, plain, version)
    except (KeyError, IndexError, TypeError, ValueError) as error:
      raise EngineError(
        'wanted sampled token ids with a log-prob each, got '
        f'{str(body)[:200]} ({error!r})',
        kind='non_finite',
      ) from error
    if sample.finish == 'length' and (wanted is None or count < wanted):
      sample = dataclasses.replace(sample, finish='context_full')
    check_sample(sample)
    return sample

  def _sample(
    self, prompt: list[int], answer: Answer, plain: bool, version: int
  ) -> Sample:
    if answer.prompt_ids is not None and answer.prompt_ids != prompt:
      raise ValueError('the server saw another prompt than it was sent')
    if answer.version is not None and answer.version.isdecimal():
      version = int(answer.version)
    logprobs = np.asarray(answer.logprobs, np.float32)
    return Sample(
      token_ids=np.asarray(answer.token_ids, np.int32),
      logprobs=logprobs,
      raw_logprobs=logprobs if plain else None,
      finish=answer.finish,
      policy_version=version,
      reused_tokens=answer.cached,
    )

  async def _post(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
      answer = await self._http.post(
        self._url, json=data, headers=self._headers
      )
    except httpx.HTTPError as error:
      raise EngineError(f'{self._url} did not answer: {error!r}') from error
    if answer.status_code in (429, 503):
      raise EngineError(f'{self._url} is busy', kind='busy')
    if answer.status_code != 200:
      raise EngineError(
        f'{self._url} answered {answer.status_code}: {answer.text[:200]}',
        kind='bad_request' if answer.status_code < 500 else 'crashed',
      )
    try:
      return answer.json()
    except ValueError as error:
      raise EngineError(f'{self._url} sent no JSON') from error

  async def close(self) -> None:
    """Closes the connections."""
    await self._http.aclose()
