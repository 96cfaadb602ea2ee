"""Runs the proxy's app on a unix socket or a port, inside the current loop.

async with serve(proxy.app, uds=path): ...

An address that cannot be had (taken, forbidden, no such host) is a
`ConfigError` before anything is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import socket
from collections.abc import AsyncIterator
from typing import Any

from clawjax import errors


@contextlib.asynccontextmanager
async def serve(
  app: Any,
  *,
  uds: str | os.PathLike[str] | None = None,
  host: str = '127.0.0.1',
  port: int = 0,
) -> AsyncIterator[str]:
  """Serves an ASGI app until the block ends; open requests are cut then.

  Args:
    app: the app.
    uds: path of a unix socket; removed first if it is there.
    host, port: address, when there is no `uds`; port 0 picks a free one.

  Yields:
    The base URL (`http://host:port`), or the socket's path.

  Raises:
    ConfigError: the address cannot be had.
  """
  import uvicorn

  if uds is not None:
    listener = _unix_listener(pathlib.Path(uds))
    address = str(uds)
  else:
    listener = _tcp_listener(host, port)
    shown = f'[{host}]' if ':' in host else host
    address = f'http://{shown}:{listener.getsockname()[1]}'
  config = uvicorn.Config(
    app,
    log_level='warning',
    access_log=False,
    lifespan='off',
    backlog=2048,
    timeout_keep_alive=75,
    timeout_graceful_shutdown=1,
    server_header=False,
    ws='none',
  )
  server = _Server(config)
  task = asyncio.create_task(server.serve(sockets=[listener]))
  try:
    while not server.started:
      if task.done():
        await task  # Raises what stopped it.
        raise RuntimeError('the server stopped before it had started')
      await asyncio.sleep(0.005)
    yield address
  finally:
    # asyncio forgets a connection that is accepted but has no transport yet
    # when its server closes: its client would wait for ever. So accept no
    # more, and let those come that have been.
    if listener.fileno() >= 0:
      asyncio.get_running_loop().remove_reader(listener)
    for _ in range(3):
      await asyncio.sleep(0)
    server.should_exit = True
    await task
    listener.close()
    if uds is not None:
      pathlib.Path(uds).unlink(missing_ok=True)


def _unix_listener(path: pathlib.Path) -> socket.socket:
  listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():  # Left by a proxy that was killed.
      path.unlink()
    listener.bind(str(path))
    # A sandbox's unprivileged user connects to it.
    path.chmod(0o666)
    listener.listen(2048)
  except OSError as e:
    listener.close()
    raise errors.ConfigError(
      f'wanted a unix socket at {path}, got: {e.strerror or e}; name a short '
      'path in a folder that this user may write'
    ) from e
  return listener


def _tcp_listener(host: str, port: int) -> socket.socket:
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  listener = socket.socket(family, socket.SOCK_STREAM)
  try:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(2048)
  except (OSError, OverflowError, UnicodeError) as e:
    listener.close()
    raise errors.ConfigError(
      f'wanted to listen on {host} port {port}, got: '
      f'{getattr(e, "strerror", None) or e}; choose an address of this machine '
      'and a port that is free, or port 0 for any'
    ) from e
  return listener


def _Server(config: Any) -> Any:
  """A server that leaves the signals to the program it runs in."""
  import uvicorn

  class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
      yield

  return Server(config)
