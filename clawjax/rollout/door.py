"""The engine's door for workers on other machines.

Any `SamplingClient` behind the protocol of `serving.server`, on a TCP port, for
those who know the token: a worker's proxy asks here for samples. A worker that
goes away takes its requests with it.
"""

from __future__ import annotations

import contextlib
import hmac
import types as python_types
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from clawjax import types
from clawjax.proxy import serve


class _Client:
  """A `SamplingClient` without tokens on the way."""

  def __init__(self, client: types.SamplingClient):
    self._client = client

  def __getattr__(self, name: str) -> Any:
    return getattr(self._client, name)

  async def sample(
    self, prompt_ids, params, *, session_id, call_index, on_tokens=None
  ):
    """See `types.SamplingClient`."""
    del on_tokens
    return await self._client.sample(
      prompt_ids, params, session_id=session_id, call_index=call_index
    )


class _Scheduler:
  """What `serving.server` asks of a scheduler."""

  crash = None
  engine = python_types.SimpleNamespace(
    config=python_types.SimpleNamespace(vocab=None)
  )

  def __init__(self, client: types.SamplingClient):
    self._client = _Client(client)

  def client(self) -> _Client:
    return self._client

  def stats(self) -> dict[str, float]:
    return {}


@contextlib.asynccontextmanager
async def serve_client(
  client: types.SamplingClient, *, host: str, port: int = 0, token: str
) -> AsyncIterator[str]:
  """Serves `client` until the block ends.

  Args:
    client: the way to the model.
    host, port: where to listen; port 0 picks a free one.
    token: what requests must carry as a bearer token.

  Yields:
    The URL.
  """
  from clawjax.serving import server

  made: Any = _Scheduler(client)
  app = _guarded(server.Server(made).app, token)
  async with serve.serve(app, host=host, port=port) as url:
    yield url


def _guarded(app: Any, token: str) -> Callable[..., Awaitable[None]]:
  """ASGI: lets nobody in without the token."""
  wanted = f'Bearer {token}'.encode()

  async def guard(scope, receive, send) -> None:
    given = dict(scope.get('headers') or ()).get(b'authorization', b'')
    if scope['type'] == 'http' and not hmac.compare_digest(given, wanted):
      await send({'type': 'http.response.start', 'status': 403, 'headers': []})
      await send({'type': 'http.response.body', 'body': b''})
      return
    await app(scope, receive, send)

  return guard
