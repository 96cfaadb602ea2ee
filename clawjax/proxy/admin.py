"""The admin API: open, read and end sessions; its own token guards it.

POST   /admin/sessions      -> {"session", "key", "base_url"}
GET    /admin/sessions      -> {"sessions": [...]}
GET    /admin/sessions/{s}  -> calls and counts
DELETE /admin/sessions/{s}  ends it
"""

from __future__ import annotations

import dataclasses
import hmac
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clawjax import errors, types
from clawjax.proxy import canonical

_OPEN_KEYS = frozenset(
  {'run_seed', 'sampling', 'rules', 'token_budget', 'metadata'}
)


def mount(proxy: Any, serve: Any, *, token: str) -> Any:
  """The proxy's app; without a token there is no admin API in it.

  The model endpoints bypass the router: they are the hot path.
  """
  api = _Api(proxy, token)
  routes = [
    Route('/admin/sessions', api.sessions, methods=['GET', 'POST']),
    Route('/admin/sessions/{id:path}', api.session, methods=['GET', 'DELETE']),
  ]
  admin = Starlette(routes=routes)

  async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope['type'] != 'http':
      raise RuntimeError(f'wanted an HTTP request, got {scope["type"]}')
    if token and scope['path'].startswith('/admin/'):
      await admin(scope, receive, send)
    else:
      await serve(scope, receive, send)

  return app


def call_json(call: types.Call, served: Any = None) -> dict[str, Any]:
  """A call as the admin API shows it."""
  value = types.to_json(call)
  sample = value.pop('sample') or {}
  value['output_ids'] = sample.get('token_ids', [])
  value['logprobs'] = sample.get('logprobs', [])
  value['finish'] = sample.get('finish', '')
  value['policy_version'] = sample.get('policy_version')
  if served is not None:
    value['flags'] = list(served.flags)
  return value


class _Api:
  def __init__(self, proxy: Any, token: str):
    self._proxy = proxy
    self._token = token

  def _allowed(self, request: Request) -> bool:
    given = request.headers.get('authorization', '')
    wanted = f'Bearer {self._token}'
    return hmac.compare_digest(given.encode(), wanted.encode())

  async def sessions(self, request: Request) -> Response:
    """Opens a session, or lists them."""
    if not self._allowed(request):
      return _error(401, 'wanted the admin token')
    if request.method == 'GET':
      return JSONResponse({'sessions': self._proxy.ids()})
    try:
      body = canonical.loads(await request.body() or b'{}')
      if not isinstance(body, dict):
        raise errors.ConfigError('wanted a JSON object')
      rollout_id = body.pop('rollout_id', body.pop('session', ''))
      unknown = sorted(body.keys() - _OPEN_KEYS)
      if unknown:
        raise errors.ConfigError(
          f'wanted keys of rollout_id, {", ".join(sorted(_OPEN_KEYS))}, '
          f'got {", ".join(unknown)}'
        )
      handle = self._proxy.open(str(rollout_id), **body)
    except (ValueError, TypeError, errors.ConfigError) as e:
      return _error(400, str(e))
    base = self._proxy.base_url or str(request.base_url).rstrip('/')
    return JSONResponse(
      {
        'session': handle.id,
        'key': handle.key,
        'base_url': base + handle.path,
      },
      201,
    )

  async def session(self, request: Request) -> Response:
    """Shows a session, or ends it."""
    if not self._allowed(request):
      return _error(401, 'wanted the admin token')
    rollout_id = request.path_params['id']
    try:
      session = self._proxy.session(rollout_id)
    except KeyError:
      return _error(404, f'no open session {rollout_id!r}')
    if request.method == 'DELETE':
      self._proxy.close(rollout_id)
      return JSONResponse({'session': rollout_id, 'closed': True})
    return JSONResponse(
      {
        'session': rollout_id,
        'calls': [
          call_json(c, session.by_call[c.call_id]) for c in session.calls()
        ],
        'pending': [s.call_id for s in session.served if s.pending],
        'stats': dataclasses.asdict(session.stats),
      }
    )


def _error(status: int, message: str) -> Response:
  return JSONResponse({'error': {'message': message}}, status)
