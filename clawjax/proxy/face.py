"""The HTTP face of all sessions: what a harness takes for its model's API.

One request: read the body, parse it (dialect), match and render (session),
sample (engine), keep and record, answer (dialect). The window is checked
before any header is sent; a stream gets its headers and a first event at once
and a comment or ping every few seconds; a client that hangs up cancels its
generation and no other.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from clawjax import errors
from clawjax.proxy import (
  anthropic,
  canonical,
  http,
  live,
  openai_chat,
  openai_responses,
  responses_compact,
)
from clawjax.proxy import session as sessions

if TYPE_CHECKING:
  from clawjax.proxy.app import Proxy

log = logging.getLogger(__name__)

# Endpoint (without /v1) -> dialect module.
DIALECTS: dict[str, Any] = {
  'messages': anthropic,
  'messages/count_tokens': anthropic,
  'chat/completions': openai_chat,
  'responses': openai_responses,
  'responses/compact': responses_compact,
}


class Face:
  """Serves the model endpoints of a proxy's sessions."""

  def __init__(self, proxy: Proxy):
    self._proxy = proxy
    self.config = proxy.config
    self.tokenizer = proxy.tokenizer

  async def serve(self, scope: Any, receive: Any, send: Any) -> None:
    """Serves the model endpoints of all sessions (ASGI)."""
    exchange = http.Exchange(scope, receive, send)
    key, path = http.split_path(scope['path'])
    dialect = http.dialect_of(path, DIALECTS, exchange.headers)
    try:
      if scope['method'] in ('HEAD', 'OPTIONS') or path in ('', 'health'):
        await exchange.json(200, {'status': 'ok'}, {'allow': '*'})
        return
      session = self._session_of(key, exchange.headers)
      if path == 'models' or path.startswith('models/'):
        await exchange.json(200, self._models(path))
        return
      if path not in DIALECTS:
        raise errors.RequestError(
          f'no endpoint {scope["path"]}', status=404, kind='not_found'
        )
      if scope['method'] != 'POST':
        raise errors.RequestError(
          f'wanted POST, got {scope["method"]}', status=405
        )
      body = await exchange.body(
        limit=self.config.body_bytes, timeout_s=self.config.body_s
      )
      begun = time.thread_time()
      request = http.parse(
        dialect,
        body,
        exchange.headers,
        session.memory,
        reader=session.reader,
      )
      self._tell_ignored(session, request)
      if path.endswith('count_tokens'):
        count = session.count(request)
        await exchange.json(200, {'input_tokens': count})
        return
      await self._answer(exchange, dialect, session, request, begun)
    except http.Gone:
      return
    except errors.RequestError as e:
      await self._refuse(exchange, dialect, e)
    except Exception:
      log.exception('a request to %s failed', path)
      await self._refuse(
        exchange,
        dialect,
        errors.RequestError('internal error', status=500, kind='engine'),
      )

  @staticmethod
  def _tell_ignored(
    session: sessions.Session, request: canonical.Request
  ) -> None:
    """Logs what is ignored, once in a session."""
    for name in request.ignored:
      if name not in session.ignored:
        session.ignored.add(name)
        log.info('session %s: ignored: %s', session.id, name)

  def _session_of(
    self, key: str, headers: Mapping[str, str]
  ) -> sessions.Session:
    if not key:
      key = headers.get('x-api-key', '')
      if not key:
        key = headers.get('authorization', '').removeprefix('Bearer ').strip()
    session = self._proxy.by_key.get(key)
    if session is None or not hmac.compare_digest(session.key, key):
      raise errors.RequestError(
        'wanted the key of an open session in the path (/r/KEY) or as API '
        'key, got none that is known',
        status=401,
        kind='authentication',
      )
    return session

  def _models(self, path: str) -> dict[str, Any]:
    name = path.partition('/')[2] or self.config.model
    model = {
      'id': name,
      'object': 'model',
      'type': 'model',
      'display_name': name,
      'created': 0,
      'created_at': '1970-01-01T00:00:00Z',
      'owned_by': 'clawjax',
    }
    if path != 'models':
      return model
    return {
      'object': 'list',
      'data': [model],
      'has_more': False,
      'first_id': name,
      'last_id': name,
    }

  async def _refuse(
    self, exchange: http.Exchange, dialect: Any, error: errors.RequestError
  ) -> None:
    if exchange.started:
      exchange.abort()
      return
    status, body, headers = dialect.error(error)
    await exchange.json(status, body, headers)

  async def _answer(
    self,
    exchange: http.Exchange,
    dialect: Any,
    session: sessions.Session,
    request: canonical.Request,
    begun: float,
  ) -> None:
    try:
      served = session.begin(request)
    except sessions.Overflow as e:
      if request.stream and hasattr(dialect, 'stream_overflow'):
        await exchange.start_stream()
        await exchange.send(dialect.stream_overflow(request), last=True)
        return
      raise dialect.overflow(e.prompt_tokens, e.window) from e
    served.own_s = time.thread_time() - begun
    feed = None
    if request.stream and self.config.stream_sampled:
      tail = self.tokenizer.decode(served.opening)
      feed = live.Feed(live.Live(self.tokenizer, request, tail))
    task = asyncio.create_task(self._sample(session, served, feed))
    tasks = self._proxy.tasks.setdefault(session.id, set())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    try:
      if request.stream:
        await self._stream(exchange, dialect, request, served, task, feed)
      else:
        await self._whole(exchange, dialect, request, served, task)
    except http.Gone:
      task.cancel()
      session.fail(served, 'aborted', 'the client hung up')
    except errors.RequestError as e:
      if not exchange.started:
        raise
      log.warning('session %s: %s', session.id, e)
      exchange.abort()
    finally:
      session.stats.own_s += served.own_s
      # Our own task was cancelled (shutdown, close).
      if not task.done():
        task.cancel()
        session.fail(served, 'aborted', 'the session was closed')

  async def _sample(
    self,
    session: sessions.Session,
    served: sessions.Served,
    feed: live.Feed | None = None,
  ) -> canonical.Answer:
    """Samples, keeps and records one answer; `feed` hears ids at once."""
    begun = time.perf_counter()
    options = {'on_tokens': feed.put} if feed else {}
    try:
      if session.gate is not None:
        await session.gate(served.index)
        begun = time.perf_counter()
      sample = await self._proxy.client.sample(
        served.prompt_ids,
        served.params,
        session_id=session.id,
        call_index=served.index,
        **options,
      )
      back, back_cpu = time.perf_counter(), time.thread_time()
      session.stats.engine_s += back - begun
      answer = session.finish(served, sample)
      served.own_s += time.thread_time() - back_cpu
      return answer
    except errors.EngineError as e:
      session.fail(served, 'error', f'engine: {e}')
      if e.kind == 'too_long':
        raise errors.RequestError(str(e), kind='context_overflow') from e
      busy = e.kind == 'busy'
      raise errors.RequestError(
        f'engine: {e}',
        status=503 if busy else 500,
        kind='overloaded' if busy else 'engine',
      ) from e
    except errors.CaptureError as e:
      session.fail(served, 'error', f'capture: {e}')
      raise errors.RequestError(
        f'capture: {e}', status=500, kind='engine'
      ) from e
    except asyncio.CancelledError:
      session.fail(served, 'aborted', 'cancelled')
      raise
    except Exception as e:
      session.fail(served, 'error', f'{type(e).__name__}: {e}')
      log.exception('session %s: a call failed', session.id)
      raise errors.RequestError(
        'internal error', status=500, kind='engine'
      ) from e

  async def _stream(
    self,
    exchange: http.Exchange,
    dialect: Any,
    request: canonical.Request,
    served: sessions.Served,
    task: asyncio.Task,
    feed: live.Feed | None,
  ) -> None:
    begun = time.thread_time()
    stream = dialect.Stream(request, served.answer_id, int(served.start))
    opening = stream.opening(len(served.prompt_ids))
    served.own_s += time.thread_time() - begun
    if await exchange.wait(task, self.config.grace_s):
      answer = _result(task)
      begun = time.thread_time()
      data = opening + stream.closing(answer)
      served.own_s += time.thread_time() - begun
      await exchange.start_stream()
      await exchange.send(data, last=True)
      return
    await exchange.start_stream()
    await exchange.send(opening)
    news, due = (feed.news if feed else None), 0.0
    while True:
      now = time.monotonic()
      due = due or now + self.config.keep_alive_s
      if await exchange.wait(task, max(0.0, due - now), news=news):
        break
      data = b''
      if feed and feed.news.is_set():
        begun = time.thread_time()
        part = feed.take()
        data = stream.live(*part) if any(part) else b''
        served.own_s += time.thread_time() - begun
      if not data and time.monotonic() >= due:
        data = stream.keep_alive()
      if data:
        await exchange.send(data)
        due = 0.0
    try:
      answer = _result(task)
    except errors.RequestError as e:
      await exchange.send(stream.failure(e), last=True)
      return
    await exchange.send(stream.closing(answer), last=True)

  async def _whole(
    self,
    exchange: http.Exchange,
    dialect: Any,
    request: canonical.Request,
    served: sessions.Served,
    task: asyncio.Task,
  ) -> None:
    # White space before JSON is no content: it keeps a patient client's
    # socket alive. Not before a client could have wanted an error status.
    patience = 3 * self.config.keep_alive_s
    while not await exchange.wait(task, patience):
      patience = self.config.keep_alive_s
      if not exchange.started:
        await exchange.start(200, {'content-type': 'application/json'})
      await exchange.send(b' ')
    answer = _result(task)
    begun = time.thread_time()
    body = canonical.dumps(dialect.whole(answer, request))
    served.own_s += time.thread_time() - begun
    if exchange.started:
      await exchange.send(body, last=True)
    else:
      await exchange.raw(200, body, {'content-type': 'application/json'})


def _result(task: asyncio.Task) -> canonical.Answer:
  """The task's answer; its own cancellation is the client's going."""
  if task.cancelled():
    raise http.Gone
  return task.result()
