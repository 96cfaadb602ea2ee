"""Node's compile cache, warmed once per machine and mounted read-only.

A harness start is mostly Node reading and compiling megabytes of JavaScript.
Node can keep the compiled code (NODE_COMPILE_CACHE); its folder is keyed by
Node version, by the path of each module and by uid, so it is made inside a
sandbox, under the very paths that rollouts see, by one run of the harness
against a canned endpoint. Nothing of the harness is changed; without the cache
it runs the same, only later.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from clawjax.harness import base, install
from clawjax.sandbox import base as sandbox_base

_PORT = 8899
_VARIABLE = 'NODE_COMPILE_CACHE'


@dataclasses.dataclass(frozen=True)
class Mount:
  """What a plan adds to use the cache; empty when there is none."""

  env: Mapping[str, str]
  readonly: tuple[tuple[str, str], ...]


def _folder(name: str) -> pathlib.Path:
  package, node = install.package(name), install.node()
  return (
    install.cache_folder() / 'compiled' / f'{package.host.name}-{node.version}'
  )


def mount(name: str) -> Mount:
  """The cache of a harness, if it has been made."""
  folder = _folder(name)
  if not (folder / '.whole').exists():
    return Mount({}, ())
  return Mount({_VARIABLE: base.CACHE}, ((str(folder), base.CACHE),))


async def compile_cache(harness: Any, backend: Any) -> bool:
  """Makes the cache of a Node harness; whether it is there afterwards."""
  folder = _folder(getattr(harness, 'package', harness.name))
  if (folder / '.whole').exists():
    return True
  inside = f'{sandbox_base.WORKSPACE}/compiled'
  plan = harness.plan(('Say done.',), base_url=f'http://127.0.0.1:{_PORT}/warm')
  with tempfile.TemporaryDirectory(prefix='clawjax-warm-') as scratch:
    os.chmod(scratch, 0o711)
    async with _canned(pathlib.Path(scratch)):
      sandbox = await backend.create(
        sandbox_base.SandboxSpec(
          readonly=plan.readonly, socket_dir=pathlib.Path(scratch)
        )
      )
      try:
        for path, content in plan.files.items():
          await sandbox.write(f'{sandbox_base.HOME}/{path}', content)
        await sandbox.exec(
          plan.argv[0],
          env={**plan.env, _VARIABLE: inside},
          timeout_s=120,
          relay_port=_PORT,
        )
        made = {
          path.removeprefix('compiled/'): content
          for path, content in (await sandbox.export()).items()
          if path.startswith('compiled/')
        }
      finally:
        await sandbox.destroy()
  if not made:
    return False
  await asyncio.to_thread(_store, folder, made)
  return True


def _store(folder: pathlib.Path, made: Mapping[str, bytes]) -> None:
  with install.locked(f'compiled-{folder.name}'):
    if (folder / '.whole').exists():
      return
    with install.staged(folder) as part:
      for path, content in made.items():
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        (part / path).write_bytes(content)
      (part / '.whole').touch()


# ---- an endpoint that says one thing ---------------------------------------


def _chat() -> bytes:
  first = {'role': 'assistant', 'content': 'done'}
  chunk = {'id': 'c', 'object': 'chat.completion.chunk', 'created': 0}
  chunk['model'] = base.MODEL
  events = [
    {'choices': [{'index': 0, 'delta': first, 'finish_reason': None}]},
    {'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'stop'}]},
  ]
  text = ''.join(f'data: {json.dumps(chunk | e)}\n\n' for e in events)
  return text.encode() + b'data: [DONE]\n\n'


@contextlib.asynccontextmanager
async def _canned(folder: pathlib.Path):
  """Answers every chat request with the text 'done'."""

  async def handle(reader, writer):
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
      head = (await reader.readuntil(b'\r\n\r\n')).lower()
      for line in head.split(b'\r\n'):
        if line.startswith(b'content-length:'):
          await reader.readexactly(int(line.split(b':')[1]))
      body = _chat()
      writer.write(
        b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n'
        b'Connection: close\r\nContent-Length: %d\r\n\r\n' % len(body) + body
      )
      await writer.drain()
    writer.close()

  path = folder / sandbox_base.SOCKET_NAME
  server = await asyncio.start_unix_server(handle, path)
  os.chmod(path, 0o666)
  try:
    yield
  finally:
    server.close()
    await server.wait_closed()
