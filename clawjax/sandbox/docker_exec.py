"""One command in a container, over the daemon's hijacked connection.

Blocking: the sandbox gives each a thread. The SDK's own readers go below TLS to
the encrypted bytes, so the frames are read here.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from clawjax.errors import SandboxError


class Exec:
  """One exec over the daemon's hijacked connection; blocking."""

  def __init__(self, sandbox, argv, env, cwd, stdin, output_bytes, log_path):
    self.sandbox, self.argv, self.env = sandbox, list(argv), env
    self.cwd, self.stdin = cwd, stdin
    # A TLS connection cannot be closed one way: the end of stdin is counted.
    self.counted = bool(stdin) and sandbox.host.secure
    if self.counted:
      count = 'n=$1; shift; head -c "$n" | "$@"'
      self.argv = ['sh', '-c', count, 'sh', str(len(stdin)), *self.argv]
    self.output_bytes, self.log_path = output_bytes, log_path
    self.kept = {1: bytearray(), 2: bytearray()}
    self.truncated = False

  def go(self) -> int:
    """Runs it to its end; the exit code."""
    from docker.errors import APIError, NotFound

    api = self.sandbox.host.client.api
    try:
      made = api.exec_create(
        self.sandbox.container.id,
        self.argv,
        stdin=bool(self.stdin),
        environment=dict(self.env),
        workdir=self.cwd,
        user='1000:1000',
      )
      stream = api.exec_start(made['Id'], socket=True)
      raw = getattr(stream, '_sock', stream)
      raw.settimeout(None)
      feeder = None
      if self.stdin:
        feeder = threading.Thread(target=self._feed, args=(raw,), daemon=True)
        feeder.start()
      try:
        with contextlib.ExitStack() as stack:
          log = None
          if self.log_path is not None:
            log = stack.enter_context(open(self.log_path, 'ab'))
          for kind, data in frames(raw):
            self._keep(kind, data, log)
      finally:
        if feeder is not None:
          feeder.join(5)
        close(stream)
      facts = api.exec_inspect(made['Id'])
    except (APIError, NotFound, OSError) as e:
      raise SandboxError(f'running {self.argv[0]}: {e}') from e
    code = facts.get('ExitCode')
    if code is None:
      raise SandboxError(f'running {self.argv[0]}: the container is gone')
    if code in (126, 127) and self.kept[1].startswith(b'OCI runtime'):
      # The runtime reports a missing program on stdout.
      self.kept[2][:0], self.kept[1][:] = bytes(self.kept[1]), b''
    return code

  def _feed(self, raw) -> None:
    with contextlib.suppress(OSError):
      raw.sendall(self.stdin)
      if not self.counted:
        raw.shutdown(socket.SHUT_WR)

  def _keep(self, kind: int, data: bytes, log) -> None:
    room = self.output_bytes - len(self.kept[kind])
    if len(data) > room:
      self.truncated = True
      data = data[:room]
    if data:
      self.kept[kind] += data
      if log is not None:
        log.write(data)
        log.flush()


def close(stream: Any) -> None:
  """Closes a hijacked connection."""
  raw = getattr(stream, '_sock', stream)
  # The response first: it would flush into a closed socket later.
  if response := getattr(stream, '_response', None):
    response.close()
  stream.close()
  raw.close()


def frames(raw: Any) -> Iterator[tuple[int, bytes]]:
  """(1 for stdout or 2 for stderr, bytes) until the other side closes.

  A frame is a kind, three zeros, the length in four bytes, then the content.
  """
  while head := _exactly(raw, 8):
    left = int.from_bytes(head[4:], 'big')
    while left:
      data = raw.recv(min(left, 1 << 16))
      if not data:
        return
      left -= len(data)
      yield head[0], data


def _exactly(raw: Any, count: int) -> bytes:
  """So many bytes, or none when the stream ends before."""
  data = b''
  while len(data) < count:
    part = raw.recv(count - len(data))
    if not part:
      return b''
    data += part
  return data
