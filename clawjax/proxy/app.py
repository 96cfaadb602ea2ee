"""The proxy: its sessions, and one app that serves them (`face.py`).

  proxy = Proxy(client, tokenizer, config=ProxyConfig(), record_dir=path)
  session = proxy.open('train/3/synth-17/pi/5', run_seed=1)
  async with serve.serve(proxy.app, uds=path): ...   # harness: session.path
  await proxy.settle(session.id); calls = proxy.calls(session.id)

One process serves many sessions; each has its key, its record and its calls.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import pathlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.chat import render, tokenizers
from clawjax.proxy import admin, capture, face, resume
from clawjax.proxy import session as sessions

log = logging.getLogger(__name__)


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
    stream_sampled: send text as it is sampled, see `proxy.live`; else a
      stream is made from the whole answer.
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
  stream_sampled: bool = False
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
    tokenizer: of the model.
    by_key: open sessions by the key in their URL.
    tasks: session id -> generations that are going on.
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
    if config.stream_sampled and not _tells_tokens(client):
      raise errors.ConfigError(
        'stream_sampled: wanted a client whose sample() takes on_tokens, got '
        f'{type(client).__name__}; leave stream_sampled off with it'
      )
    self.client = client
    self.tokenizer = tokenizer
    self.config = config
    self.base_url = base_url
    self.renderer = render.Renderer(
      tokenizer, thinking=config.thinking, family=config.family
    )
    self._record_dir = pathlib.Path(record_dir) if record_dir else None
    self._by_id: dict[str, sessions.Session] = {}
    self.by_key: dict[str, sessions.Session] = {}
    self.tasks: dict[str, set[asyncio.Task]] = {}
    self.app = admin.mount(self, face.Face(self).serve, token=admin_token)

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
    gate: Callable[[int], Awaitable[None]] | None = None,
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
        conversation from others, and `openings` are the first messages of
        further sessions of the main agent.
      gate: awaited with the number of each call before it is sampled.

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
    session.gate = gate
    if self._record_dir:
      path = self._record_dir / capture.file_name(rollout_id)
      session.record(capture.Recorder(path, fsync=self.config.fsync))
    self._by_id[rollout_id] = session
    self.by_key[session.key] = session
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
      self.by_key[session.key] = session
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
    self.by_key.pop(session.key, None)
    for task in self.tasks.pop(rollout_id, ()):
      task.cancel()
    self._alarm(rollout_id, session.stats)
    session.close()


def _tells_tokens(client: types.SamplingClient) -> bool:
  """Whether a client can tell ids while it samples."""
  return 'on_tokens' in inspect.signature(client.sample).parameters
