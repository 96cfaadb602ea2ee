"""A scheduler behind HTTP: token ids in, samples out.

Routes: `POST /v1/sample` (see `wire.py`), `GET /health`, `GET /metrics`
(Prometheus text) and, with the admin token, `POST /admin/load` with
`{"path", "version", "mode"}`, which reads weights from a path that the server
can see (a Hugging Face folder, or what `weights.publish` wrote).

A client that hangs up cancels its generation. A request may carry a
`request_id`; the same id again, while it runs or for a while after, gets the
same sample and draws nothing new, so a retry never samples twice.
"""

from __future__ import annotations

import asyncio
import collections
import hmac
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from clawjax.errors import ClawjaxError, EngineError
from clawjax.serving import wire
from clawjax.serving.scheduler import Scheduler
from clawjax.types import Sample

REMEMBERED = 1024
MAX_BODY = 64 * 2**20


class Server:
  """The ASGI app of one scheduler.

  Attributes:
    app: the Starlette application.
  """

  def __init__(
    self,
    scheduler: Scheduler,
    *,
    admin_token: str | None = None,
    read_params: Callable[[str], Any] | None = None,
  ):
    """Args:
    scheduler: running.
    admin_token: bearer token of `/admin`; None: there is no admin API.
    read_params: path -> parameters, for `/admin/load`.
    """
    self._scheduler = scheduler
    self._client = scheduler.client()
    self._token = admin_token
    self._read_params = read_params
    self._work: dict[str, asyncio.Task[Sample]] = {}
    self._watchers: collections.Counter[str] = collections.Counter()
    self._done: collections.OrderedDict[str, asyncio.Task[Sample]] = (
      collections.OrderedDict()
    )
    self._next = 0
    self.app = Starlette(
      routes=[
        Route('/health', self._health),
        Route('/metrics', self._metrics),
        Route('/v1/sample', self._sample, methods=['POST']),
        Route('/admin/load', self._load, methods=['POST']),
      ],
      exception_handlers={
        EngineError: self._refuse,
        ClawjaxError: self._refuse,
      },
    )

  # ---- plain routes --------------------------------------------------------

  async def _health(self, request: Request) -> Response:
    crash = self._scheduler.crash
    body = {
      'status': 'ok' if crash is None else 'crashed',
      'policy_version': self._client.policy_version,
      'window': self._client.window,
      'vocab': self._scheduler.engine.config.vocab,
    }
    return Response(
      wire.dump(body, wire.JSON),
      media_type=wire.JSON,
      status_code=200 if crash is None else 500,
    )

  async def _metrics(self, request: Request) -> Response:
    lines = []
    for name, value in self._scheduler.stats().items():
      kind = 'gauge' if name in _GAUGES else 'counter'
      lines.append(f'# TYPE clawjax_engine_{name} {kind}')
      lines.append(f'clawjax_engine_{name} {value}')
    return PlainTextResponse(
      '\n'.join(lines) + '\n', media_type='text/plain; version=0.0.4'
    )

  async def _refuse(self, request: Request, error: Exception) -> Response:
    kind = getattr(error, 'kind', 'bad_params')
    body = {'error': {'kind': kind, 'message': str(error)}}
    return Response(
      wire.dump(body, wire.JSON),
      status_code=wire.STATUS.get(kind, 500),
      media_type=wire.JSON,
    )

  async def _load(self, request: Request) -> Response:
    given = request.headers.get('authorization', '')
    if self._token is None or not hmac.compare_digest(
      given.encode(), f'Bearer {self._token}'.encode()
    ):
      return Response(status_code=403)
    data = wire.load(await request.body(), wire.JSON)
    path, version = data.get('path'), data.get('version')
    mode = data.get('mode')
    if not isinstance(path, str) or not isinstance(version, int):
      raise EngineError(
        'wanted {"path": text, "version": integer}', kind='bad_request'
      )
    if mode not in (None, 'recompute', 'continue', 'drain'):
      raise EngineError(f'unknown mode {mode!r}', kind='bad_request')
    if self._read_params is None:
      raise EngineError('this server reads no weights', kind='bad_request')

    def work() -> None:
      params = self._read_params(path)
      self._scheduler.load_params(params, version, mode=mode)

    try:
      await asyncio.to_thread(work)
    except ClawjaxError:
      raise
    except Exception as error:  # the old weights serve on
      raise EngineError(
        f'cannot load {path}: {error!r}', kind='bad_params'
      ) from error
    return Response(
      wire.dump({'policy_version': version}, wire.JSON), media_type=wire.JSON
    )

  # ---- sampling ------------------------------------------------------------

  async def _sample(self, request: Request) -> Response:
    if int(request.headers.get('content-length') or 0) > MAX_BODY:
      raise EngineError(f'more than {MAX_BODY} bytes', kind='bad_request')
    data = wire.load(
      await request.body(), request.headers.get('content-type', wire.JSON)
    )
    accept = request.headers.get('accept', '')
    kind = wire.MSGPACK if wire.MSGPACK in accept else wire.JSON
    parts: asyncio.Queue[dict[str, Any]] | None = None
    if data.get('stream'):
      parts = asyncio.Queue()
    request_id = str(data.get('request_id') or '')
    if not request_id:
      self._next += 1
      request_id = f'\0{self._next}'
    task = self._task(request_id, data, parts)
    if parts is None:
      sample = await self._watch(request_id, task, request)
      return Response(self._answer(sample, kind), media_type=kind)
    return StreamingResponse(
      self._stream(request_id, task, parts),
      media_type='application/x-ndjson',
    )

  def _answer(self, sample: Sample, kind: str) -> bytes:
    return wire.dump(
      {
        'sample': wire.sample_message(sample, kind),
        'policy_version': self._client.policy_version,
      },
      kind,
    )

  def _task(
    self,
    request_id: str,
    data: dict[str, Any],
    parts: asyncio.Queue[dict[str, Any]] | None,
  ) -> asyncio.Task[Sample]:
    """The one task behind a request id, new or known."""
    known = self._work.get(request_id) or self._done.get(request_id)
    if known is not None:
      return known
    loop = asyncio.get_running_loop()

    def on_tokens(ids: list[int], logprobs: list[float], version: int) -> None:
      part = {
        'token_ids': ids,
        'logprobs': logprobs,
        'policy_version': version,
      }
      loop.call_soon_threadsafe(parts.put_nowait, part)

    task = asyncio.ensure_future(
      self._client.sample(
        wire.ids_from_message(data.get('prompt_ids')),
        wire.params_from_message(data.get('params', {})),
        session_id=str(data.get('session_id', '')),
        call_index=int(data.get('call_index', 0)),
        on_tokens=None if parts is None else on_tokens,
      )
    )
    self._work[request_id] = task

    def settle(task: asyncio.Task[Sample]) -> None:
      self._work.pop(request_id, None)
      if task.cancelled() or task.exception() is not None:
        return
      self._done[request_id] = task
      while len(self._done) > REMEMBERED:
        self._done.popitem(last=False)

    task.add_done_callback(settle)
    return task

  async def _watch(
    self, request_id: str, task: asyncio.Task[Sample], request: Request
  ) -> Sample:
    """Waits for a task; the last client to hang up cancels it."""

    async def hang_up() -> None:
      while (await request.receive())['type'] != 'http.disconnect':
        pass

    gone = asyncio.ensure_future(hang_up())
    self._watchers[request_id] += 1
    try:
      await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
      gone.cancel()
      self._leave(request_id, task)
    if not task.done():
      raise EngineError('the client has gone', kind='closed')
    return await task

  async def _stream(
    self,
    request_id: str,
    task: asyncio.Task[Sample],
    parts: asyncio.Queue[dict[str, Any]],
  ):
    self._watchers[request_id] += 1
    try:
      while not (task.done() and parts.empty()):
        wait = asyncio.ensure_future(parts.get())
        await asyncio.wait({task, wait}, return_when=asyncio.FIRST_COMPLETED)
        if wait.done():
          yield wire.dump(wait.result(), wire.JSON) + b'\n'
        else:
          wait.cancel()
      if task.exception() is not None:
        error = task.exception()
        kind = getattr(error, 'kind', 'crashed')
        body = {'error': {'kind': kind, 'message': str(error)}}
        yield wire.dump(body, wire.JSON) + b'\n'
      else:
        yield self._answer(task.result(), wire.JSON) + b'\n'
    finally:
      self._leave(request_id, task)

  def _leave(self, request_id: str, task: asyncio.Task[Sample]) -> None:
    self._watchers[request_id] -= 1
    if self._watchers[request_id] <= 0:
      del self._watchers[request_id]
      if not task.done():
        task.cancel()


_GAUGES = {
  'policy_version',
  'waiting',
  'prefilling',
  'decoding',
  'pages',
  'pages_free',
  'pages_cached',
  'reused_share',
  'rows_per_step',
}
