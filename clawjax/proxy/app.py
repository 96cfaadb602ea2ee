"""The proxy: sessions, and the HTTP face that harnesses talk to.

  proxy = Proxy(client, tokenizer, config=ProxyConfig(), record_dir=path)
  session = proxy.open('train/3/synth-17/pi/5', run_seed=1)
  async with serve.serve(proxy.app, uds=path): ...   # harness: session.path
  await proxy.settle(session.id); calls = proxy.calls(session.id)

One request: read the body, parse it (dialect), match and render (session),
sample (engine), keep and record, answer (dialect). The window is checked
before any header is sent; a stream gets its headers and a first event at once
and a comment or ping every few seconds; a client that hangs up cancels its
generation and no other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import logging
import pathlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.chat import render, tokenizers
from clawjax.proxy import (
  admin,
  anthropic,
  canonical,
  capture,
  http,
  openai_chat,
  openai_responses,
  resume,
)
from clawjax.proxy import session as sessions

log = logging.getLogger(__name__)

# Endpoint (without /v1) -> dialect module.
DIALECTS: dict[str, Any] = {
  'messages': anthropic,
  'messages/count_tokens': anthropic,
  'chat/completions': openai_chat,
  'responses': openai_responses,
}


@dataclasses.dataclass(frozen=True)
class ProxyConfig:
  """How the proxy behaves.

  Attributes:
    thinking: see `chat.render`.
    family: template family.
    sampling: how to sample unless a session says otherwise; what a client
      asks for (temperature, ...) is not followed, so that the trainer knows
      the distribution. `max_tokens` here caps each answer.
    follow_client: use the client's temperature, top_p and top_k instead.
    keep_alive_s: seconds between signs of life on a stream.
    grace_s: seconds to wait for the answer before headers are sent, so that
      a quick failure still gets its HTTP status.
    body_bytes: largest request body.
    body_s: seconds a client may take to send its body.
    fsync: force each record line to the disk.
    model: name shown by /v1/models.
  """

  thinking: render.Thinking = 'auto'
  family: str = 'qwen3'
  sampling: types.SamplingParams = types.SamplingParams()
  follow_client: bool = False
  keep_alive_s: float = 10.0
  grace_s: float = 0.05
  body_bytes: int = 32 * 1024 * 1024
  body_s: float = 120.0
  fsync: bool = False
  model: str = 'policy'


@dataclasses.dataclass(frozen=True)
class SessionHandle:
  """What a rollout needs to know of its session.

  Attributes:
    id: the rollout's id.
    key: secret part of the URL; also valid as API key.
    path: '/r/<key>', to be put behind the server's address.
  """

  id: str
  key: str

  @property
  def path(self) -> str:
    return f'/r/{self.key}'


class Proxy:
  """All sessions, their engine and their HTTP app.

  Attributes:
    app: the ASGI app.
    client: the way to the model.
    config: see `ProxyConfig`.
  """

  def __init__(
    self,
    client: types.SamplingClient,
    tokenizer: tokenizers.Tokenizer,
    *,
    config: ProxyConfig = ProxyConfig(),
    record_dir: pathlib.Path | str | None = None,
    admin_token: str = '',
    base_url: str = '',
  ):
    self.client = client
    self.tokenizer = tokenizer
    self.config = config
    self.base_url = base_url
    self.renderer = render.Renderer(
      tokenizer, thinking=config.thinking, family=config.family
    )
    self._record_dir = pathlib.Path(record_dir) if record_dir else None
    self._by_id: dict[str, sessions.Session] = {}
    self._by_key: dict[str, sessions.Session] = {}
    self._tasks: dict[str, set[asyncio.Task]] = {}
    self.app = admin.mount(self, self.serve, token=admin_token)

  # ---- sessions ------------------------------------------------------------

  def open(
    self,
    rollout_id: str = '',
    *,
    run_seed: int = 0,
    sampling: types.SamplingParams | Mapping[str, Any] | None = None,
    rules: Sequence[str] = (),
    token_budget: int | None = None,
    metadata: Mapping[str, Any] | None = None,
  ) -> SessionHandle:
    """Opens a session.

    Args:
      rollout_id: its id; '' makes one.
      run_seed: part of each call's sampling seed.
      sampling: replaces the config's, or (a mapping) some of its fields.
      rules: names of normalisation rules, see `proxy.rules`.
      token_budget: sampled tokens after which the harness is told that its
        window is full.
      metadata: kept with the session; `instruction` helps to tell the main
        conversation from others.

    Raises:
      ConfigError: the id is taken, or an argument does not fit.
    """
    rollout_id = rollout_id or 's-' + secrets.token_hex(8)
    if rollout_id in self._by_id:
      raise errors.ConfigError(f'session {rollout_id!r} is already open')
    if not isinstance(sampling, types.SamplingParams):
      try:
        sampling = dataclasses.replace(self.config.sampling, **(sampling or {}))
      except TypeError as e:
        raise errors.ConfigError(f'sampling: {e}') from e
    session = sessions.Session(
      rollout_id,
      secrets.token_urlsafe(24),
      self.renderer,
      window=self.client.window,
      options=sessions.Options(
        run_seed=run_seed,
        sampling=sampling,
        rules=tuple(rules),
        token_budget=token_budget,
        metadata=dict(metadata or {}),
        follow_client=self.config.follow_client,
      ),
    )
    if self._record_dir:
      path = self._record_dir / capture.file_name(rollout_id)
      session.record(capture.Recorder(path, fsync=self.config.fsync))
    self._by_id[rollout_id] = session
    self._by_key[session.key] = session
    return SessionHandle(session.id, session.key)

  def resume(self) -> dict[str, list[str]]:
    """Takes up the sessions that `record_dir` says were open.

    Returns:
      Session id -> ids of the calls that were in flight.
    """
    found: dict[str, list[str]] = {}
    if self._record_dir is None:
      return found
    for path in sorted(self._record_dir.glob('*.jsonl')):
      session = resume.resume(path, self.renderer, window=self.client.window)
      if session is None or session.id in self._by_id:
        continue
      lost = [s for s in session.served if s.error == resume.IN_FLIGHT]
      session.record(
        capture.Recorder(path, fsync=self.config.fsync, repair=True), new=False
      )
      for served in lost:
        session.record_end(served)
      self._by_id[session.id] = session
      self._by_key[session.key] = session
      found[session.id] = [s.call_id for s in lost]
    return found

  def session(self, rollout_id: str) -> sessions.Session:
    """A session by id.

    Raises:
      KeyError: there is none.
    """
    return self._by_id[rollout_id]

  def ids(self) -> list[str]:
    """Ids of open sessions."""
    return list(self._by_id)

  def calls(self, rollout_id: str) -> tuple[types.Call, ...]:
    """Finished calls of a session in order of arrival."""
    return self._by_id[rollout_id].calls()

  def stats(self, rollout_id: str) -> sessions.Stats:
    """Counts of a session."""
    return self._by_id[rollout_id].stats

  async def settle(
    self,
    rollout_id: str,
    *,
    interval_s: float = 0.2,
    checks: int = 3,
    timeout_s: float = 30.0,
  ) -> bool:
    """Waits until a session is quiet.

    Args:
      rollout_id: the session.
      interval_s: seconds between two looks.
      checks: looks in a row that must find nothing pending and the number of
        calls unchanged.
      timeout_s: seconds after which to give up.

    Returns:
      Whether it became quiet in time.
    """
    stats = self.stats(rollout_id)
    deadline = time.monotonic() + timeout_s
    still, last = 0, -1
    while True:
      if stats.pending == 0 and stats.served == last:
        still += 1
      else:
        still = 0
      last = stats.served
      if still >= checks:
        self._alarm(rollout_id, stats)
        return True
      if time.monotonic() >= deadline:
        return False
      await asyncio.sleep(interval_s)

  def _alarm(self, rollout_id: str, stats: sessions.Stats) -> None:
    if stats.served and not stats.captured:
      log.error(
        'session %s: %d calls served but none captured (%d aborted, %d failed)',
        rollout_id,
        stats.served,
        stats.aborted,
        stats.failed,
      )

  def close(self, rollout_id: str) -> None:
    """Ends a session: its key opens nothing any more, calls in flight are
    cancelled, its record is complete."""
    session = self._by_id.pop(rollout_id)
    self._by_key.pop(session.key, None)
    for task in self._tasks.pop(rollout_id, ()):
      task.cancel()
    self._alarm(rollout_id, session.stats)
    session.close()

  # ---- HTTP ----------------------------------------------------------------

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
      request = http.parse(dialect, body, exchange.headers, session.memory)
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

  def _session_of(
    self, key: str, headers: Mapping[str, str]
  ) -> sessions.Session:
    if not key:
      key = headers.get('x-api-key', '')
      if not key:
        key = headers.get('authorization', '').removeprefix('Bearer ').strip()
    session = self._by_key.get(key)
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
    task = asyncio.create_task(self._sample(session, served))
    tasks = self._tasks.setdefault(session.id, set())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    try:
      if request.stream:
        await self._stream(exchange, dialect, request, served, task)
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
      # Our own task was cancelled (shutdown, close).
      if not task.done():
        task.cancel()
        session.fail(served, 'aborted', 'the session was closed')

  async def _sample(
    self, session: sessions.Session, served: sessions.Served
  ) -> canonical.Answer:
    """Samples, keeps and records one answer."""
    begun = time.perf_counter()
    try:
      sample = await self.client.sample(
        served.prompt_ids,
        served.params,
        session_id=session.id,
        call_index=served.index,
      )
      back, back_cpu = time.perf_counter(), time.thread_time()
      session.stats.engine_s += back - begun
      answer = session.finish(served, sample)
      served.own_s += time.thread_time() - back_cpu
      session.stats.own_s += served.own_s
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
  ) -> None:
    stream = dialect.Stream(request, served.answer_id, int(served.start))
    opening = stream.opening(len(served.prompt_ids))
    if await exchange.wait(task, self.config.grace_s):
      answer = _result(task)
      await exchange.start_stream()
      await exchange.send(opening + stream.closing(answer), last=True)
      return
    await exchange.start_stream()
    await exchange.send(opening)
    while not await exchange.wait(task, self.config.keep_alive_s):
      await exchange.send(dialect.KEEP_ALIVE)
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
    body = canonical.dumps(dialect.whole(_result(task), request))
    if exchange.started:
      await exchange.send(body, last=True)
    else:
      await exchange.raw(200, body, {'content-type': 'application/json'})


def _result(task: asyncio.Task) -> canonical.Answer:
  """The task's answer; its own cancellation is the client's going."""
  if task.cancelled():
    raise http.Gone
  return task.result()
