"""A Docker daemon behind ssh: its socket, brought here by the ssh program.

`ssh://[USER@]HOST[:PORT][/PATH/OF/DOCKER.SOCK]`. One ssh process a host forwards
a Unix socket of this machine to that of the daemon, so that the user's own
configuration, keys and known hosts count, any number of connections share it
(sessions of one ssh connection are ten at most), and each can be closed one way,
as stdin wants it. It runs `cat` over there and ends with our end of its input:
however we die, the forwards close, and with them the containers.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Sequence

from clawjax.errors import SandboxError
from clawjax.sandbox import leases

DAEMON = '/var/run/docker.sock'


class Tunnel:
  """The forwarded socket of one host.

  Args:
    url: see the top of the file.
    options: arguments of `ssh`, such as ('-i', KEY).
    timeout_s: for the connection to come about.

  Attributes:
    url: of the daemon, on this machine.
    daemon: path of its socket over there.

  Raises:
    SandboxError: there is no such host, or it does not let us in.
  """

  def __init__(
    self, url: str, *, options: Sequence[str] = (), timeout_s: float = 60.0
  ):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != 'ssh' or not parts.hostname:
      raise SandboxError(f'wanted ssh://[USER@]HOST[:PORT][/SOCKET]: {url!r}')
    self.daemon = parts.path if parts.path not in ('', '/') else DAEMON
    self._run = leases.Run(leases.default_root())
    path = self._run.path / 's'
    self.url = f'unix://{path}'
    argv = ['ssh', '-T', '-o', 'BatchMode=yes', '-o', 'ControlPath=none']
    argv += ['-o', 'ExitOnForwardFailure=yes', '-o', 'ServerAliveInterval=15']
    argv += ['-L', f'{path}:{self.daemon}', *options]
    if parts.username:
      argv += ['-l', parts.username]
    if parts.port:
      argv += ['-p', str(parts.port)]
    argv += ['--', parts.hostname, 'exec cat >/dev/null']
    self._said = open(path.with_name('said'), 'w+')  # noqa: SIM115
    try:
      self._process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=self._said,
        start_new_session=True,
      )
    except OSError as e:
      self._tidy()
      raise SandboxError(f'{url}: no ssh program here: {e}') from e
    end = time.monotonic() + timeout_s
    while not _answers(path):
      if self.ended or time.monotonic() > end:
        said = self.said()
        self.close()
        raise SandboxError(f'{url}: {said or "no answer"}')
      time.sleep(0.05)

  @property
  def ended(self) -> bool:
    """Whether the ssh process is gone, and with it what ran through it."""
    return self._process.poll() is not None

  def said(self) -> str:
    """The last line that ssh printed."""
    self._said.seek(0)
    lines = self._said.read().strip().splitlines()
    return lines[-1] if lines else ''

  def close(self) -> None:
    """Ends the ssh process; safe to repeat."""
    assert self._process.stdin is not None
    with contextlib.suppress(OSError):
      self._process.stdin.close()
    self._process.terminate()
    self._process.wait()
    self._tidy()

  def _tidy(self) -> None:
    self._said.close()
    self._run.close()


def _answers(path: pathlib.Path) -> bool:
  with socket.socket(socket.AF_UNIX) as s:
    try:
      s.connect(str(path))
      return True
    except OSError:
      return False
