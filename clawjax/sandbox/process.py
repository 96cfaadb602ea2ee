"""Runs one host process and keeps a bounded part of what it prints.

The caller gives a `kill` function, because ending a sandbox is more than a
signal to one process. Whatever happens (time up, cancelled, an exception), the
process has been killed and waited for when `run` is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import threading
import time
from collections.abc import (
  Awaitable,
  Callable,
  Coroutine,
  Mapping,
  Sequence,
)
from typing import Any, TypeVar

T = TypeVar('T')
_CHUNK = 1 << 16


@dataclasses.dataclass
class Outcome:
  """How the process ended; `returncode` is negative for a signal."""

  returncode: int = -1
  stdout: bytes = b''
  stderr: bytes = b''
  timed_out: bool = False
  truncated: bool = False
  seconds: float = 0.0


class _Kept:
  """The first `limit` bytes of a stream, and a log of it."""

  def __init__(self, limit: int, log):
    self.limit, self.log = limit, log
    self.data = bytearray()
    self.truncated = False

  def add(self, chunk: bytes) -> None:
    room = self.limit - len(self.data)
    if len(chunk) > room:
      self.truncated = True
      chunk = chunk[:room]
    if chunk:
      self.data += chunk
      if self.log is not None:
        self.log.write(chunk)
        self.log.flush()


async def _drain(stream: asyncio.StreamReader, kept: _Kept) -> None:
  while chunk := await stream.read(_CHUNK):
    kept.add(chunk)


async def _feed(stream: asyncio.StreamWriter, data: bytes) -> None:
  with contextlib.suppress(ConnectionError):
    stream.write(data)
    await stream.drain()
  stream.close()
  with contextlib.suppress(ConnectionError):
    await stream.wait_closed()


async def run(
  argv: Sequence[str],
  *,
  env: Mapping[str, str],
  stdin: bytes,
  timeout_s: float,
  output_bytes: int,
  pass_fds: Sequence[int],
  started: Callable[[int], None],
  kill: Callable[[], None],
  log_path: pathlib.Path | None = None,
) -> Outcome:
  """Runs `argv` to its end or to `timeout_s`.

  Args:
    argv: the command.
    env: its whole environment.
    stdin: what it reads; empty means /dev/null.
    timeout_s: wall clock.
    output_bytes: kept of stdout and of stderr, each.
    pass_fds: descriptors that it inherits.
    started: called with its pid.
    kill: ends everything it started; may be called more than once.
    log_path: file that stdout and stderr are appended to.
  """
  log = open(log_path, 'ab') if log_path is not None else None  # noqa: SIM115
  kept = [_Kept(output_bytes, log) for _ in range(2)]
  start = time.monotonic()
  outcome = Outcome()
  process = None
  jobs: list[asyncio.Task] = []
  try:
    process = await asyncio.create_subprocess_exec(
      *argv,
      env=dict(env),
      stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
      stdout=asyncio.subprocess.PIPE,
      stderr=asyncio.subprocess.PIPE,
      pass_fds=tuple(pass_fds),
      start_new_session=True,
      cwd='/',
    )
    started(process.pid)
    jobs = [
      asyncio.ensure_future(_drain(process.stdout, kept[0])),
      asyncio.ensure_future(_drain(process.stderr, kept[1])),
    ]
    if stdin:
      jobs.append(asyncio.ensure_future(_feed(process.stdin, stdin)))
    try:
      await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
      outcome.timed_out = True
      kill()
      await _reap(process, kill)
    # The pipes end with the last process that holds them.
    await asyncio.wait(jobs, timeout=5.0)
  finally:
    if process is not None and process.returncode is None:
      kill()
      await asyncio.shield(_reap(process, kill))
    for job in jobs:
      job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    if process is not None:
      process._transport.close()
    if log is not None:
      log.close()
  outcome.returncode = process.returncode
  outcome.stdout, outcome.stderr = (bytes(k.data) for k in kept)
  outcome.truncated = any(k.truncated for k in kept)
  outcome.seconds = time.monotonic() - start
  return outcome


async def apart(work: Callable[..., T], *args: Any) -> T:
  """Runs blocking `work` in a thread of its own.

  The shared pool has few threads: one that hangs there takes a place from all
  others, this one only its own. The thread is not waited for at exit.
  """
  loop = asyncio.get_running_loop()
  future: asyncio.Future[T] = loop.create_future()

  def settle(result: T | None, error: BaseException | None) -> None:
    if not future.done():
      if error is None:
        future.set_result(result)
      else:
        future.set_exception(error)

  def run() -> None:
    result, error = None, None
    try:
      result = work(*args)
    except BaseException as e:
      error = e
    with contextlib.suppress(RuntimeError):  # the loop has been closed
      loop.call_soon_threadsafe(settle, result, error)

  threading.Thread(target=run, name=work.__name__, daemon=True).start()
  return await future


def alone(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
  """A task that goes on whoever stops waiting for it (`asyncio.shield`)."""
  job = asyncio.ensure_future(work)
  # Seen: there may be nobody left whom a fault could be told.
  job.add_done_callback(lambda job: job.cancelled() or job.exception())
  return job


async def whole(work: Awaitable[T]) -> T:
  """Awaits `work`, to its end even when cancelled; then it is cancelled.

  A thread that makes something cannot be stopped, and what it has not made yet
  cannot be undone.
  """
  job = asyncio.ensure_future(work)
  try:
    return await asyncio.shield(job)
  except asyncio.CancelledError:
    while not job.done():
      with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait([job])
    if not job.cancelled():
      job.exception()  # seen, as above
    raise


async def _reap(process, kill: Callable[[], None]) -> None:
  """Waits for a killed process, asking again while it lives."""
  while True:
    try:
      await asyncio.wait_for(process.wait(), 1.0)
      return
    except TimeoutError:
      kill()
