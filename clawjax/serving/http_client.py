"""A `SamplingClient` on one or several of our servers.

A session stays with one server (rendezvous hashing over the healthy ones), so
its prefix cache is hit; when a server goes, only its own sessions move. Every
call carries a fresh request id. A call whose connection broke is sent again
with the same id: a server that had sampled already answers the same sample, so
no record ever holds two. `busy` is waited out, longer each time; every other
refusal is raised as the server named it.

A caller that wants ids as they are drawn (`on_tokens`) is told of them from the
first connection that brings any. What a repeated call brings must begin with
them, or it is a failure: what was told cannot be taken back.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np

from clawjax.errors import EngineError
from clawjax.serving import wire
from clawjax.serving.request import OnTokens
from clawjax.types import Sample, SamplingParams


@dataclasses.dataclass
class _Server:
  url: str
  down_until: float = 0.0
  policy_version: int = 0
  window: int = 0


class HttpClient:
  """See the top of the file; make one with `connect`."""

  def __init__(
    self,
    urls: Sequence[str],
    *,
    http: httpx.AsyncClient | None = None,
    kind: str = wire.MSGPACK,
    retries: int = 4,
    pause_s: float = 0.5,
    down_s: float = 5.0,
    timeout_s: float = 600.0,
    window: int = 0,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Args:
    urls: base URLs of the servers.
    http: the client to use (tests); None: one of our own.
    kind: `wire.MSGPACK` or `wire.JSON`.
    retries: most times that a call is sent again.
    pause_s: first pause before that; doubles each time.
    down_s: how long a server that did not answer is left alone.
    timeout_s: longest wait for one answer.
    window: of the smallest server, where it is known already.
    clock: seconds.
    """
    if not urls:
      raise EngineError('wanted at least one server', kind='bad_request')
    self._servers = [_Server(url.rstrip('/'), window=window) for url in urls]
    self._http = http or httpx.AsyncClient(
      timeout=httpx.Timeout(timeout_s, connect=10.0),
      limits=httpx.Limits(max_connections=None),
    )
    self._kind = kind
    self._retries = retries
    self._pause_s = pause_s
    self._down_s = down_s
    self._clock = clock

  @classmethod
  async def connect(cls, urls: Sequence[str], **options: Any) -> HttpClient:
    """A client whose servers have all been asked for their window.

    Raises:
      EngineError: none of them is healthy.
    """
    client = cls(urls, **options)
    if not await client.check():
      await client.close()
      raise EngineError(f'no healthy server among {list(urls)}', kind='closed')
    return client

  async def check(self) -> int:
    """Asks every server for its health; returns how many are well."""
    return sum(await asyncio.gather(*map(self._ask, self._servers)))

  async def _ask(self, server: _Server) -> bool:
    try:
      answer = await self._http.get(server.url + '/health', timeout=10.0)
      answer.raise_for_status()
      body = answer.json()
      server.window = int(body['window'])
      server.policy_version = int(body['policy_version'])
      server.down_until = 0.0
    except (httpx.HTTPError, KeyError, ValueError):
      server.down_until = self._clock() + self._down_s
      return False
    return True

  @property
  def window(self) -> int:
    """Most tokens of prompt and output together, on the smallest server."""
    return min((s.window for s in self._servers if s.window), default=0)

  @property
  def policy_version(self) -> int:
    """The oldest version that a server answered with last."""
    known = [s.policy_version for s in self._servers if s.window]
    return min(known, default=0)

  def _choose(self, session_id: str) -> _Server:
    now = self._clock()
    well = [s for s in self._servers if s.down_until <= now]
    return max(
      well or self._servers,
      key=lambda s: hashlib.blake2b(f'{session_id}\0{s.url}'.encode()).digest(),
    )

  async def sample(
    self,
    prompt_ids: np.ndarray,
    params: SamplingParams,
    *,
    session_id: str = '',
    call_index: int = 0,
    on_tokens: OnTokens | None = None,
  ) -> Sample:
    """See `clawjax.types.SamplingClient`.

    Args:
      prompt_ids, params, session_id, call_index: see there.
      on_tokens: called on the event loop with new ids, their log-probs and
        the policy version, as they come.
    """
    prompt = np.asarray(prompt_ids, np.int32)
    body = wire.dump(
      {
        'prompt_ids': prompt if self._kind == wire.MSGPACK else prompt.tolist(),
        'params': dataclasses.asdict(params),
        'session_id': session_id,
        'call_index': call_index,
        'request_id': uuid.uuid4().hex,
        'stream': on_tokens is not None,
      },
      self._kind,
    )
    told: list[int] = []
    pause, last = self._pause_s, None
    for attempt in range(self._retries + 1):
      if attempt:
        await asyncio.sleep(pause)
        pause *= 2
      server = self._choose(session_id)
      try:
        if on_tokens is None:
          return await self._send(server, body)
        return await self._stream(server, body, on_tokens, told)
      except httpx.TransportError as error:
        # The same server once more (it may have sampled), then another one.
        last = EngineError(f'{server.url} did not answer: {error!r}')
        if attempt:
          server.down_until = self._clock() + self._down_s
      except EngineError as error:
        if error.kind not in ('busy', 'closed'):
          raise
        if error.kind == 'closed':
          server.down_until = self._clock() + self._down_s
        last = error
    raise last

  async def _send(self, server: _Server, body: bytes) -> Sample:
    answer = await self._http.post(
      server.url + '/v1/sample',
      content=body,
      headers={'content-type': self._kind, 'accept': self._kind},
    )
    if answer.status_code != 200:
      raise _refusal(server, answer)
    kind = answer.headers.get('content-type', wire.JSON)
    return _sample(server, wire.load(answer.content, kind))

  async def _stream(
    self,
    server: _Server,
    body: bytes,
    on_tokens: OnTokens,
    told: list[int],
  ) -> Sample:
    """Sends a call and hears its ids as they are drawn.

    Args:
      server, body: as in `_send`.
      on_tokens: hears them.
      told: ids that it has heard; grows, unless it held some at the start:
        then it is an earlier connection's, and nothing more is told.
    """
    fresh = not told
    async with self._http.stream(
      'POST',
      server.url + '/v1/sample',
      content=body,
      headers={'content-type': self._kind},
    ) as answer:
      if answer.status_code != 200:
        await answer.aread()
        raise _refusal(server, answer)
      async for line in answer.aiter_lines():
        data = wire.load(line.encode(), wire.JSON)
        if 'error' in data:
          raise _error(data)
        if 'sample' in data:
          sample = _sample(server, data)
          if sample.token_ids[: len(told)].tolist() != told:
            raise EngineError(
              f'{server.url}: the answer that had begun is lost', kind='crashed'
            )
          return sample
        if fresh:
          told += data['token_ids']
          on_tokens(data['token_ids'], data['logprobs'], data['policy_version'])
    raise httpx.RemoteProtocolError('the stream ended before its answer')

  async def close(self) -> None:
    """Closes the connections."""
    await self._http.aclose()


def _error(data: dict[str, Any]) -> EngineError:
  error = data['error']
  return EngineError(str(error['message']), kind=str(error['kind']))


def _refusal(server: _Server, answer: httpx.Response) -> EngineError:
  try:
    return _error(answer.json())
  except (ValueError, KeyError, TypeError):
    return EngineError(
      f'{server.url} answered {answer.status_code}: {answer.text[:200]}'
    )


def _sample(server: _Server, data: dict[str, Any]) -> Sample:
  """The sample of an answer; its server's version is noted."""
  server.policy_version = int(data['policy_version'])
  sample = wire.sample_from_message(data['sample'])
  check_sample(sample)
  return sample


def check_sample(sample: Sample) -> None:
  """Refuses a sample whose log-probs are missing or not numbers.

  Raises:
    EngineError: 'non_finite'.
  """
  if len(sample.logprobs) != len(sample.token_ids):
    raise EngineError(
      f'{len(sample.token_ids)} tokens came with {len(sample.logprobs)} '
      'log-probs',
      kind='non_finite',
    )
  if not np.isfinite(sample.logprobs).all():
    raise EngineError('a log-prob is not a number', kind='non_finite')
