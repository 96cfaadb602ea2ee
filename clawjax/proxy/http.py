"""One HTTP exchange over bare ASGI: body in, answer out, hang-ups noticed.

Bare ASGI because a stream must notice at once that its client has gone, and
must be able to break off without an end when it cannot finish truthfully.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any

from clawjax import errors
from clawjax.proxy import canonical, growing

_TRIES = 'x-stainless-retry-count'
_STREAM_HEADERS = {
  'content-type': 'text/event-stream; charset=utf-8',
  'cache-control': 'no-cache',
  'x-accel-buffering': 'no',
}


class Gone(Exception):
  """The client has hung up."""


def split_path(path: str) -> tuple[str, str]:
  """('KEY', 'chat/completions') of '/r/KEY/v1/chat/completions'.

  The key is '' when the path carries none; '/v1' may be missing.
  """
  parts = [p for p in path.split('/') if p]
  key = ''
  if len(parts) >= 2 and parts[0] in ('r', 's'):
    key, parts = parts[1], parts[2:]
  while parts and parts[0] == 'v1':
    parts = parts[1:]
  return key, '/'.join(parts)


def dialect_of(
  path: str, dialects: Mapping[str, Any], headers: Mapping[str, str]
) -> Any:
  """The dialect in which a request to `path` is answered."""
  if path in dialects:
    return dialects[path]
  anthropic = 'anthropic-version' in headers or path.startswith('messages')
  return dialects['messages' if anthropic else 'chat/completions']


def parse(
  dialect: Any,
  body: bytes,
  headers: Mapping[str, str],
  memory: Any,
  *,
  reader: growing.Reader,
) -> canonical.Request:
  """Body bytes to a canonical request.

  Args:
    dialect: module of the endpoint.
    body: as it came.
    headers: lower-case names.
    memory: of the session, see `Session.memory`.
    reader: of the session's bodies.

  Raises:
    RequestError: the body is not a JSON object that the dialect can read.
  """
  try:
    value, marked = reader.read(body)
  except ValueError as e:
    raise errors.RequestError(f'the body is not valid JSON: {e}') from e
  if not isinstance(value, dict):
    raise errors.RequestError(
      f'wanted a JSON object, got {type(value).__name__}'
    )
  request = dialect.parse(value, headers, memory)
  # Both official SDKs count their tries.
  request.retried = headers.get(_TRIES, '0').strip() not in ('', '0')
  if marked:
    request.notes.append('cache_control')
  unknown = sorted(value.keys() - dialect.FIELDS)
  request.ignored += [f'field {name}' for name in unknown]
  return request


class Exchange:
  """One request and its response.

  Attributes:
    headers: the request's, lower-case names.
    started: the response's headers have gone.
  """

  def __init__(self, scope: Any, receive: Any, send: Any):
    self.scope = scope
    self.headers = {
      k.decode('latin-1').lower(): v.decode('latin-1')
      for k, v in scope['headers']
    }
    self.started = False
    self._receive = receive
    self._send = send
    self._watch: asyncio.Task | None = None

  async def body(self, *, limit: int, timeout_s: float) -> bytes:
    """The whole body, decompressed.

    Raises:
      RequestError: it is too large, too slow, or wrongly compressed.
      Gone: the client hung up while sending.
    """
    length = self.headers.get('content-length', '')
    if length.isdecimal() and int(length) > limit:
      raise _too_large(limit)
    try:
      async with asyncio.timeout(timeout_s):
        chunks, size = [], 0
        while True:
          message = await self._receive()
          if message['type'] == 'http.disconnect':
            raise Gone
          chunk = message.get('body', b'')
          size += len(chunk)
          if size > limit:
            raise _too_large(limit)
          chunks.append(chunk)
          if not message.get('more_body'):
            break
    except TimeoutError as e:
      raise errors.RequestError(
        f'the body did not arrive within {timeout_s:g} s', status=408
      ) from e
    encoding = self.headers.get('content-encoding', '').strip().lower()
    return _decompress(b''.join(chunks), encoding, limit)

  async def wait(
    self,
    task: asyncio.Task,
    timeout_s: float,
    *,
    news: asyncio.Event | None = None,
  ) -> bool:
    """Waits for a task, or for news before it; True when the task is done.

    Raises:
      Gone: the client hung up first.
    """
    if self._watch is None:
      self._watch = asyncio.create_task(self._disconnected())
    waits = {task, self._watch}
    told = asyncio.create_task(news.wait()) if news else None
    if told:
      waits.add(told)
    done, _ = await asyncio.wait(
      waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
    )
    if told:
      told.cancel()
    if task in done:
      self._watch.cancel()
      return True
    if self._watch in done:
      raise Gone
    return False

  async def _disconnected(self) -> None:
    while (await self._receive())['type'] != 'http.disconnect':
      pass

  async def start(self, status: int, headers: Mapping[str, str]) -> None:
    """Sends the response's head."""
    self.started = True
    await self._send(
      {
        'type': 'http.response.start',
        'status': status,
        'headers': [(k.encode(), v.encode()) for k, v in headers.items()],
      }
    )

  async def start_stream(self) -> None:
    """Sends the head of an event stream."""
    await self.start(200, _STREAM_HEADERS)

  async def send(self, data: bytes, *, last: bool = False) -> None:
    """Sends a part of the body."""
    await self._send(
      {'type': 'http.response.body', 'body': data, 'more_body': not last}
    )

  async def raw(
    self, status: int, body: bytes, headers: Mapping[str, str]
  ) -> None:
    """Sends a whole response."""
    await self.start(status, {**headers, 'content-length': str(len(body))})
    await self.send(body, last=True)

  async def json(
    self, status: int, value: Any, headers: Mapping[str, str] | None = None
  ) -> None:
    """Sends a whole JSON response; no body to HEAD."""
    body = canonical.dumps(value)
    await self.raw(
      status, body, {'content-type': 'application/json', **(headers or {})}
    )

  def abort(self) -> None:
    """Breaks off a response that has begun; the connection is cut."""
    raise ConnectionAbortedError('broken off: the answer cannot be finished')


def _too_large(limit: int) -> errors.RequestError:
  return errors.RequestError(
    f'the body is over the limit of {limit} bytes',
    status=413,
    kind='too_large',
  )


def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
  if encoding in ('', 'identity'):
    return body
  try:
    if encoding in ('gzip', 'deflate'):
      unpack = zlib.decompressobj(wbits=47)  # Finds either header itself.
      plain = unpack.decompress(body, limit + 1)
    elif encoding == 'zstd':
      import zstandard

      reader = zstandard.ZstdDecompressor().stream_reader(body)
      plain = reader.read(limit + 1)
    else:
      raise errors.RequestError(
        f'wanted gzip, deflate or zstd, got content-encoding {encoding!r}',
        status=415,
      )
  except (zlib.error, ImportError, OSError, ValueError) as e:
    raise errors.RequestError(f'the body cannot be unpacked: {e}') from e
  except Exception as e:
    if isinstance(e, errors.RequestError):
      raise
    raise errors.RequestError(f'the body cannot be unpacked: {e}') from e
  if len(plain) > limit:
    raise _too_large(limit)
  return plain
