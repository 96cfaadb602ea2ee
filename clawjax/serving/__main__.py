"""A stand-alone server: `python -m clawjax.serving --model PATH`.

Prints one line of JSON, `{"url": ..., "policy_version": 0}`, when it is ready.
`--model random:SEED` serves random weights of a tiny model, for trying things.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from clawjax.errors import ClawjaxError


def main(argv: list[str] | None = None) -> int:
  """Runs the server until it is told to stop; returns the exit status."""
  parser = argparse.ArgumentParser(
    prog='python -m clawjax.serving', description=__doc__
  )
  parser.add_argument('--model', required=True, help='folder or random:SEED')
  parser.add_argument('--tokenizer', help='for stop strings; a name or path')
  parser.add_argument('--host', default='127.0.0.1')
  parser.add_argument('--port', type=int, default=0, help='0: any free one')
  parser.add_argument('--slots', type=int, default=8)
  parser.add_argument('--window', type=int, default=4096)
  parser.add_argument('--pages', type=int, help='default: two windows a slot')
  parser.add_argument('--page-size', type=int, default=16)
  parser.add_argument(
    '--tensor', type=int, default=1, help='devices that heads are cut along'
  )
  parser.add_argument('--queue', type=int, default=1024)
  parser.add_argument(
    '--keep-versions', type=int, default=0,
    help='earlier versions whose prefixes are kept',
  )  # fmt: skip
  parser.add_argument('--version', type=int, default=0)
  parser.add_argument('--admin-token', help='without it there is no /admin')
  parser.add_argument(
    '--on-load', default='recompute', choices=['recompute', 'continue', 'drain']
  )
  args = parser.parse_args(argv)
  try:
    return asyncio.run(_serve(args))
  except ClawjaxError as error:
    print(error, file=sys.stderr)
    return 2


def _model(args: argparse.Namespace) -> tuple[Any, Any, Any]:
  """Parameters, config and, for several devices, where they live."""
  import jax

  from clawjax.models import checkpoint, qwen3
  from clawjax.models import sharding as sharding_lib

  sharding = None
  if args.tensor != 1:
    sharding = sharding_lib.tensor_parallel(args.tensor)
  if args.model.startswith('random:'):
    seed = int(args.model.removeprefix('random:'))
    config = qwen3.Config.tiny()
    return qwen3.init(config, jax.random.key(seed)), config, sharding
  config = checkpoint.read_config(args.model)
  places = None
  if sharding is not None:
    config = config.replace(scan_layers=False)
    places = sharding.of(qwen3.table(config))
  params, config = checkpoint.load_hf(
    args.model, config=config, shardings=places
  )
  return params, config, sharding


async def _serve(args: argparse.Namespace) -> int:
  import uvicorn

  from clawjax.models import qwen3
  from clawjax.serving import weights
  from clawjax.serving.engine import Engine
  from clawjax.serving.scheduler import Scheduler, SchedulerConfig
  from clawjax.serving.server import Server

  params, config, sharding = _model(args)
  decode_text = None
  if args.tokenizer:
    from clawjax.chat import tokenizers

    decode_text = tokenizers.load(args.tokenizer).decode
  engine = Engine(
    config,
    params,
    slots=args.slots,
    window=args.window,
    pages=args.pages,
    page_size=args.page_size,
    version=args.version,
    sharding=sharding,
  )
  scheduler = Scheduler(
    engine,
    SchedulerConfig(
      queue=args.queue, on_load=args.on_load, keep_versions=args.keep_versions
    ),
    decode_text=decode_text,
  ).start()
  places = sharding and sharding.of(qwen3.table(engine.config))
  app = Server(
    scheduler,
    admin_token=args.admin_token,
    read_params=lambda path: weights.read(
      path, engine.config, shardings=places
    ),
  ).app
  server = uvicorn.Server(
    uvicorn.Config(app, host=args.host, port=args.port, log_level='warning')
  )
  task = asyncio.create_task(server.serve())
  try:
    while not server.started and not task.done():
      await asyncio.sleep(0.05)
    if server.started:
      port = server.servers[0].sockets[0].getsockname()[1]
      ready = {
        'url': f'http://{args.host}:{port}',
        'policy_version': args.version,
      }
      print(json.dumps(ready), flush=True)
    await task
  finally:
    scheduler.stop()
  return 0 if server.started else 1


if __name__ == '__main__':
  sys.exit(main())
