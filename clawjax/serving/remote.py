"""Servers elsewhere, from a program that is not asyncio: checked, and told to load."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures

import httpx

from clawjax.errors import ConfigError, EngineError
from clawjax.serving import wire
from clawjax.serving.http_client import HttpClient


class Servers:
  """Several `python -m clawjax.serving`, all with the same model.

  Args:
    urls: base URLs.
    admin_token: what each was started with (`--admin-token`).
    timeout_s: longest wait for a server to take new weights.

  Raises:
    ConfigError: one does not answer, or they differ in vocabulary.
  """

  def __init__(
    self, urls: Sequence[str], *, admin_token: str, timeout_s: float = 1800.0
  ):
    self.urls = [url.rstrip('/') for url in urls]
    self._token = admin_token
    self._timeout_s = timeout_s
    found = {}
    for url in self.urls:
      try:
        answer = httpx.get(url + '/health', timeout=10.0)
        answer.raise_for_status()
        found[url] = answer.json()
        self.window = min(
          found[url]['window'], getattr(self, 'window', found[url]['window'])
        )
      except (httpx.HTTPError, KeyError, ValueError) as error:
        raise ConfigError(
          f'engine.urls: {url} does not answer as a clawjax server ({error!r});'
          ' start one with python -m clawjax.serving --model PATH'
        ) from error
    vocabularies = {url: body.get('vocab') for url, body in found.items()}
    if len(set(vocabularies.values())) > 1:
      raise ConfigError(
        f'engine.urls: wanted servers of one model, got vocabularies'
        f' {vocabularies}'
      )
    self.vocab = next(iter(vocabularies.values()))

  def client(self) -> HttpClient:
    """A client for coroutines; sessions stay with their server."""
    return HttpClient(self.urls, window=self.window)

  def load(self, where: str, version: int) -> None:
    """Has every server read the weights at `where`, side by side.

    Raises:
      EngineError: one refused or did not answer; it serves its old weights on.
    """

    def one(url: str) -> None:
      try:
        answer = httpx.post(
          url + '/admin/load',
          content=wire.dump({'path': where, 'version': version}, wire.JSON),
          headers={'authorization': f'Bearer {self._token}'},
          timeout=self._timeout_s,
        )
      except httpx.HTTPError as error:
        raise EngineError(
          f'{url} did not take policy version {version}: {error!r}'
        ) from error
      if answer.status_code == 403:
        raise EngineError(
          f'{url} refused the admin token (engine.admin_token_env)',
          kind='bad_request',
        )
      if answer.status_code != 200:
        raise EngineError(
          f'{url} did not take policy version {version}: {answer.text[:300]}'
        )

    with futures.ThreadPoolExecutor(len(self.urls)) as pool:
      list(pool.map(one, self.urls))
