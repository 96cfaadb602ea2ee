"""A proxy that passes requests on to a hosted model, for evaluation.

It has the shape of `clawjax.proxy.Proxy` (open, calls, settle, close, app), so
rollouts do not know the difference: a harness talks to its session's URL, and
its requests go on to an OpenAI- or Anthropic-compatible API as they are, with
the model's name and the API key put in. The key never enters a sandbox.

A hosted API gives no token ids, so nothing here can be trained on as it is: a
`Call` has no sample. What was said is recorded in full, one line per call, and
becomes chat JSONL (`lines`): a teacher's trajectories for a cold start.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import time
from collections.abc import (
  AsyncIterator,
  Awaitable,
  Callable,
  Mapping,
  Sequence,
)
from typing import Any

import numpy as np

from clawjax import errors, types
from clawjax.eval import answers
from clawjax.proxy import capture, http

_KEYS = {'openai': 'OPENAI_API_KEY', 'anthropic': 'ANTHROPIC_API_KEY'}
_PATHS = {
  'openai': {'chat/completions': 'chat', 'responses': 'responses'},
  'anthropic': {'messages': 'messages', 'messages/count_tokens': 'messages'},
}
# Of the harness's headers, those that the API should see.
_PASSED = ('anthropic-version', 'anthropic-beta', 'openai-beta', 'accept')
_BODY_BYTES = 64 * 2**20
_EMPTY = np.zeros(0, np.int32)


@dataclasses.dataclass
class _Session:
  """What is known of one rollout."""

  id: str
  key: str
  sampling: Mapping[str, Any]
  record: pathlib.Path | None
  gate: Callable[[int], Awaitable[None]] | None = None
  talks: list[list[types.Message]] = dataclasses.field(default_factory=list)
  calls: list[types.Call] = dataclasses.field(default_factory=list)
  served: int = 0
  pending: int = 0
  closed: bool = False

  @property
  def path(self) -> str:
    return f'/r/{self.key}'


class Passthrough:
  """See the top of the file; made by `connect`.

  Attributes:
    app: the ASGI app.
    tokenizer: None, for there are no ids; see `messages`.
  """

  tokenizer = None

  def __init__(
    self,
    client: Any,
    *,
    url: str,
    kind: str,
    model: str,
    api_key: str,
    record_dir: pathlib.Path | None = None,
  ):
    self._client, self._kind, self._model = client, kind, model
    self._url = url.rstrip('/')
    if kind == 'anthropic' and not self._url.endswith('/v1'):
      self._url += '/v1'
    self._api_key = api_key
    self._record_dir = record_dir
    self._by_id: dict[str, _Session] = {}
    self._by_key: dict[str, _Session] = {}

    async def serve(scope: Any, receive: Any, send: Any) -> None:
      await self._serve(scope, receive, send)

    self.app = serve  # a function: servers look at its signature

  @classmethod
  @contextlib.asynccontextmanager
  async def connect(
    cls,
    url: str,
    *,
    kind: str,
    model: str,
    api_key_env: str = '',
    record_dir: pathlib.Path | None = None,
    timeout_s: float = 600.0,
  ) -> AsyncIterator[Passthrough]:
    """Opens the way to an API.

    Args:
      url: its base, e.g. 'https://api.openai.com/v1'.
      kind: 'openai' or 'anthropic'.
      model: name to ask for; '' leaves the harness's.
      api_key_env: variable that holds the key; '': the usual one.
      record_dir: where calls are recorded, or None.
      timeout_s: seconds without a byte after which a request has failed.

    Raises:
      ConfigError: the URL is none, or there is no key.
    """
    import httpx

    if not url.startswith(('http://', 'https://')):
      raise errors.ConfigError(
        f'--model {kind}:URL: wanted http://... or https://..., got {url!r}'
      )
    name = api_key_env or _KEYS[kind]
    key = os.environ.get(name, '')
    if not key:
      raise errors.ConfigError(
        f'{kind}:{url}: wanted the API key in ${name}, got nothing; '
        'set it, or name another variable with --api-key-env'
      )
    async with httpx.AsyncClient(timeout=timeout_s) as client:
      yield cls(
        client,
        url=url,
        kind=kind,
        model=model,
        api_key=key,
        record_dir=record_dir,
      )

  # ---- sessions ------------------------------------------------------------

  def open(
    self,
    rollout_id: str,
    *,
    sampling: Mapping[str, Any] | None = None,
    gate: Callable[[int], Awaitable[None]] | None = None,
    **options: Any,
  ) -> _Session:
    """Opens a session; options that need our own engine are not for here.

    Args:
      rollout_id: its id.
      sampling: overrides what the harness asks for.
      gate: awaited with the number of each call before it is passed on.
      **options: ignored.
    """
    del options
    record = None
    if self._record_dir is not None:
      record = self._record_dir / capture.file_name(rollout_id)
      record.parent.mkdir(parents=True, exist_ok=True)
      record.write_text('')
    session = _Session(
      rollout_id, secrets.token_urlsafe(24), dict(sampling or {}), record, gate
    )
    self._by_id[session.id] = self._by_key[session.key] = session
    return session

  def calls(self, rollout_id: str) -> tuple[types.Call, ...]:
    """Finished calls in order of arrival."""
    calls = self._by_id[rollout_id].calls
    return tuple(sorted(calls, key=lambda c: c.index))

  def messages(self, rollout_id: str) -> list[types.Message]:
    """What was said in the conversations that had tools, one by one."""
    talks = self._by_id[rollout_id].talks
    return [message for talk in talks for message in talk]

  def stats(self, rollout_id: str) -> dict[str, int]:
    """Counts of a session."""
    session = self._by_id[rollout_id]
    return {
      'served': session.served,
      'captured': len(session.calls),
      'pending': session.pending,
    }

  async def settle(
    self,
    rollout_id: str,
    *,
    interval_s: float = 0.2,
    checks: int = 3,
    timeout_s: float = 30.0,
  ) -> bool:
    """Waits until nothing was pending at `checks` looks in a row."""
    session = self._by_id[rollout_id]
    deadline = time.monotonic() + timeout_s
    quiet, last = 0, -1
    while quiet < checks:
      same = session.pending == 0 and session.served == last
      quiet, last = (quiet + 1 if same else 0), session.served
      if time.monotonic() >= deadline:
        return False
      await asyncio.sleep(interval_s)
    return True

  def close(self, rollout_id: str) -> None:
    """Ends a session; its key opens nothing any more."""
    session = self._by_id.pop(rollout_id)
    self._by_key.pop(session.key, None)
    session.closed = True

  # ---- HTTP ----------------------------------------------------------------

  async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
    if scope['type'] != 'http':
      return
    exchange = http.Exchange(scope, receive, send)
    key, path = http.split_path(scope['path'])
    try:
      if scope['method'] in ('HEAD', 'OPTIONS') or path in ('', 'health'):
        await exchange.json(200, {'status': 'ok'})
        return
      session = self._by_key.get(key)
      if session is None:
        await self._refuse(exchange, 401, 'wanted the path of an open session')
      elif path == 'models':
        model = {'id': self._model or 'policy', 'object': 'model'}
        await exchange.json(200, {'object': 'list', 'data': [model]})
      elif path not in _PATHS[self._kind]:
        await self._refuse(exchange, 404, f'no endpoint {path} here')
      else:
        body = await exchange.body(limit=_BODY_BYTES, timeout_s=120.0)
        await self._pass_on(exchange, session, path, body)
    except http.Gone:
      return
    except errors.RequestError as e:
      await self._refuse(exchange, e.status, str(e))

  async def _refuse(self, exchange, status: int, text: str) -> None:
    if exchange.started:
      exchange.abort()
    error = {'type': 'invalid_request_error', 'message': text}
    await exchange.json(status, {'type': 'error', 'error': error})

  async def _pass_on(self, exchange, session, path: str, raw: bytes) -> None:
    dialect = _PATHS[self._kind][path]
    try:
      body = json.loads(raw)
      assert isinstance(body, dict)
    except (ValueError, AssertionError) as e:
      raise errors.RequestError('the body is not a JSON object') from e
    if self._model:
      body['model'] = self._model
    counted = path.endswith('count_tokens')
    if not counted:
      _override(body, dialect, session.sampling)
    index = session.served
    session.served += not counted
    session.pending += 1
    seen = _Seen(index, dialect, body, time.time())
    try:
      if session.gate is not None and not counted:
        await session.gate(index)
      await self._stream(exchange, path, body, seen)
    except http.Gone:
      seen.status, seen.error = 'aborted', 'the client hung up'
    except Exception as e:
      seen.status = 'error'
      seen.error = seen.error or f'{type(e).__name__}: {e}'
      if not exchange.started:
        await self._refuse(exchange, 502, f'upstream: {seen.error}')
      else:
        exchange.abort()
    finally:
      session.pending -= 1
      if not counted and not session.closed:
        self._keep(session, seen)

  async def _stream(self, exchange, path, body, seen: _Seen) -> None:
    """Sends the request on and the answer back, unless the client goes."""
    relay = asyncio.create_task(self._relay(exchange, path, body, seen))
    try:
      while not await exchange.wait(relay, 60.0):
        pass
      await relay
    except http.Gone:
      relay.cancel()
      await asyncio.gather(relay, return_exceptions=True)
      raise

  async def _relay(self, exchange, path, body, seen: _Seen) -> None:
    """The exchange with the API; keeps what came."""
    headers = {k: v for k, v in exchange.headers.items() if k in _PASSED}
    headers['content-type'] = 'application/json'
    if self._kind == 'anthropic':
      headers['x-api-key'] = self._api_key
      headers.setdefault('anthropic-version', '2023-06-01')
    else:
      headers['authorization'] = f'Bearer {self._api_key}'
    async with self._client.stream(
      'POST',
      f'{self._url}/{path}',
      content=json.dumps(body).encode(),
      headers=headers,
    ) as response:
      kind = response.headers.get('content-type', 'application/json')
      kept = {'content-type': kind}
      if 'retry-after' in response.headers:
        kept['retry-after'] = response.headers['retry-after']
      if response.status_code >= 400:
        data = await response.aread()
        seen.status = 'error'
        seen.error = (
          f'{response.status_code}: {data[:500].decode("utf-8", "replace")}'
        )
        await exchange.raw(response.status_code, data, kept)
        return
      parts = []
      await exchange.start(response.status_code, kept)
      async for chunk in response.aiter_bytes():
        parts.append(chunk)
        await exchange.send(chunk)
      await exchange.send(b'', last=True)
      seen.answer = answers.read(
        b''.join(parts), seen.dialect, events='event-stream' in kind
      )

  def _keep(self, session: _Session, seen: _Seen) -> None:
    end = time.time()
    if seen.status == 'ok' and seen.answer is not None:
      found, tools = messages(dataclasses.asdict(seen))
      if tools:
        join(session.talks, found)
    if seen.status == 'ok' and seen.answer is None:
      seen.status, seen.error = 'error', 'the answer could not be read'
    session.calls.append(
      types.Call(
        call_id=f'{session.id}#{seen.index}',
        rollout_id=session.id,
        index=seen.index,
        prompt_ids=_EMPTY,
        sample=None,
        dialect=seen.dialect,
        status=seen.status,  # type: ignore[arg-type]
        start=seen.start,
        end=end,
        error=seen.error,
        text=answers.text(seen.answer, seen.dialect) if seen.answer else '',
      )
    )
    if session.record is not None:
      line = dataclasses.asdict(seen) | {'end': end}
      with session.record.open('a', encoding='utf-8') as file:
        file.write(json.dumps(line, ensure_ascii=False) + '\n')


@dataclasses.dataclass
class _Seen:
  """One call as it is recorded."""

  index: int
  dialect: str
  request: dict[str, Any]
  start: float
  answer: dict[str, Any] | None = None
  status: str = 'ok'
  error: str = ''


_LIMIT = {'responses': 'max_output_tokens', 'messages': 'max_tokens'}


def _override(
  body: dict[str, Any], dialect: str, sampling: Mapping[str, Any]
) -> None:
  """Puts the evaluation's sampling into a request."""
  for name in ('temperature', 'top_p'):
    if name in sampling:
      body[name] = sampling[name]
  most = sampling.get('max_tokens')
  if most is not None:
    name = _LIMIT.get(dialect) or (
      'max_tokens' if 'max_tokens' in body else 'max_completion_tokens'
    )
    body[name] = min(most, body.get(name) or most)


# ---- what was recorded -----------------------------------------------------


def read(record_dir: pathlib.Path, rollout_id: str) -> list[dict[str, Any]]:
  """Recorded calls of a rollout, by arrival; none when not recorded."""
  path = record_dir / capture.file_name(rollout_id)
  if not path.exists():
    return []
  lines = [json.loads(line) for line in path.read_text().splitlines() if line]
  return sorted(lines, key=lambda line: line['index'])


def messages(line: Mapping[str, Any]) -> tuple[list[types.Message], list]:
  """The conversation of a recorded call, its answer last, and the tools."""
  return answers.conversation(line['request'], line['answer'], line['dialect'])


def join(talks: list[list[types.Message]], found: list[types.Message]) -> None:
  """Puts a conversation in place of the one it goes on with, else behind all.

  It goes on with one that opens the same way and is no longer: harnesses send
  the whole history each time.
  """

  def opening(talk: Sequence[types.Message]) -> Sequence[tuple[str, str]]:
    users = [(m.role, m.content) for m in talk if m.role == 'user']
    return users[:1]

  for number, talk in enumerate(talks):
    if opening(talk) == opening(found):
      if len(found) >= len(talk):
        talks[number] = found
      return
  talks.append(found)


def longest(
  lines: Sequence[Mapping[str, Any]],
) -> tuple[list[types.Message], list]:
  """The longest conversation of a rollout; the later of equal ones."""
  best: tuple[list[types.Message], list] = ([], [])
  for line in lines:
    if line['status'] == 'ok' and line['answer']:
      found = messages(line)
      if len(found[0]) >= len(best[0]):
        best = found
  return best
