"""The proxy alone, over TCP or a unix socket.

  python -m clawjax.proxy --backend scripted:FILE --tokenizer tiny --port 8000
    --record-dir DIR --admin-token TOKEN

Prints one JSON line {"url": ..., "admin": ...} when it is ready, then serves
until it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import errno
import gc
import json
import logging
import os
import pathlib
import secrets
import signal
import sys

from clawjax import errors, types
from clawjax.chat import tokenizers
from clawjax.proxy import app, scripted, serve

log = logging.getLogger('clawjax.proxy')


def _client(
  backend: str, tokenizer: tokenizers.Tokenizer, window: int
) -> types.SamplingClient:
  kind, _, rest = backend.partition(':')
  if kind == 'scripted' and rest:
    return scripted.ScriptedClient(rest, tokenizer, window=window)
  raise errors.ConfigError(f'--backend: wanted scripted:FILE, got {backend!r}')


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m clawjax.proxy',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--backend', required=True, help='scripted:FILE')
  parser.add_argument(
    '--tokenizer', default='tiny', help='tiny, qwen3, hf:PATH'
  )
  parser.add_argument('--host', default='127.0.0.1')
  parser.add_argument('--port', type=int, default=0, help='0: a free one')
  parser.add_argument('--uds', default='', help='unix socket instead of a port')
  parser.add_argument('--record-dir', default='', help='where records go')
  parser.add_argument('--admin-token', default='', help="'': a random one")
  parser.add_argument('--window', type=int, default=65536, help='tokens')
  parser.add_argument(
    '--thinking', default='auto', choices=('auto', 'on', 'off', 'empty')
  )
  parser.add_argument(
    '--family', default='qwen3', choices=('qwen3', 'qwen3_coder')
  )
  parser.add_argument('--keep-alive', type=float, default=10.0, help='seconds')
  parser.add_argument(
    '--stream-sampled', action='store_true', help='send text as it is sampled'
  )
  return parser


def _record_dir(name: str) -> pathlib.Path | None:
  """The folder of records, made and tried now and not at the first call."""
  if not name:
    return None
  path = pathlib.Path(name)
  try:
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
      raise PermissionError(errno.EACCES, 'it may not be written')
  except OSError as e:
    raise errors.ConfigError(
      f'--record-dir: wanted a folder at {path}, got: {e.strerror}'
    ) from e
  return path


async def _run(args: argparse.Namespace) -> None:
  tokenizer = tokenizers.load(args.tokenizer)
  token = args.admin_token or secrets.token_urlsafe(24)
  config = dataclasses.replace(
    app.ProxyConfig(),
    thinking=args.thinking,
    family=args.family,
    keep_alive_s=args.keep_alive,
    stream_sampled=args.stream_sampled,
  )
  proxy = app.Proxy(
    _client(args.backend, tokenizer, args.window),
    tokenizer,
    config=config,
    record_dir=_record_dir(args.record_dir),
    admin_token=token,
  )
  for name, lost in proxy.resume().items():
    log.info('session %s goes on; in flight and lost: %s', name, lost or 'none')
  # What is here now stays: full collections need not look at it again.
  gc.collect()
  gc.freeze()
  stop = asyncio.Event()
  loop = asyncio.get_running_loop()
  for number in (signal.SIGINT, signal.SIGTERM):
    loop.add_signal_handler(number, stop.set)
  async with serve.serve(
    proxy.app, uds=args.uds or None, host=args.host, port=args.port
  ) as url:
    ready = {'url': url, 'admin': f'{url}/admin'}
    if not args.admin_token:
      ready['admin_token'] = token
    if args.uds:
      ready = {**ready, 'url': f'unix:{url}', 'admin': f'unix:{url}'}
    else:
      proxy.base_url = url
    print(json.dumps(ready), flush=True)
    await stop.wait()


def main() -> int:
  """Command line: see the top of the file."""
  args = _parser().parse_args()
  logging.basicConfig(
    level=logging.INFO, format='%(levelname)s %(name)s: %(message)s'
  )
  try:
    asyncio.run(_run(args))
  except errors.ClawjaxError as e:
    print(f'clawjax.proxy: {e}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
