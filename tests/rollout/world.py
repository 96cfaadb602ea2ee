"""A toy harness and its fleet on fake sandboxes, for the tests beside it."""

import asyncio
import dataclasses
import io
import json
from http import client

from clawjax import sandbox
from clawjax.harness import base as harness_base
from clawjax.rollout import fleet as fleet_lib
from clawjax.sandbox import base


@dataclasses.dataclass(frozen=True)
class Toy:
  """A harness without a program; told its session's key and the task."""

  name: str = 'toy'
  version = '1'
  dialect = 'chat'
  rules = ()
  multi_turn = False

  def installed(self):
    return True

  async def prepare(self, backend):
    pass

  def plan(self, turns, *, base_url, model='policy'):
    return harness_base.Plan(
      files={}, argv=(('toy', base_url.rsplit('/', 1)[1], turns[0]),), env={}
    )


def request(task, name='a', size=4, family='f', harness='toy'):
  """A group of `size` of the task under another name."""
  task = dataclasses.replace(task, id=name, metadata={'family': family})
  return fleet_lib.GroupRequest(
    task, Toy(harness), size, f'train/0/{name}/{harness}'
  )


def make_fleet(proxy, answer, socket_dir, *, fail=lambda stage: None, **more):
  """A fake backend and a fleet on it; roomy unless told otherwise."""
  backend = sandbox.load('fake', answer=answer, fail=fail)
  more.setdefault('memory_bytes', 1 << 40)
  fleet = fleet_lib.LocalFleet(
    backend=backend, proxy=proxy, socket_dir=socket_dir, **more
  )
  return backend, fleet


def session_of(proxy, command):
  """Rollout id of the session that a command of `Toy` belongs to."""
  key = command.argv[1]
  return next(i for i in proxy.sessions if i.replace('/', '-') == key)


def verdict(command):
  """The grader: 1 when out.txt says hi."""
  good = command.files.get('/workspace/out.txt') == b'hi'
  return base.ExecResult(0, f'{{"reward": {good:d}}}'.encode())


async def collect(fleet, requests, **options):
  """All groups of a step."""
  return [g async for g in fleet.run_groups(requests, **options)]


async def ask(path, key, *said):
  """One chat call over the socket; the text, or None when it is refused twice.

  Asks again for a while when nobody listens, as harnesses do.

  Args:
    path: of the socket.
    key: of the session.
    said: the conversation so far, the user's first.
  """
  roles = ('user', 'assistant')
  messages = [
    {'role': roles[i % 2], 'content': text} for i, text in enumerate(said)
  ]
  body = json.dumps({'model': 'm', 'messages': messages}).encode()
  head = (
    f'POST /r/{key}/v1/chat/completions HTTP/1.1\r\nHost: proxy\r\n'
    'Content-Type: application/json\r\nConnection: close\r\n'
    f'Content-Length: {len(body)}\r\n\r\n'
  )
  refused = 0
  for _ in range(200):
    try:
      reader, writer = await asyncio.open_unix_connection(path)
      writer.write(head.encode() + body)
      raw = await asyncio.wait_for(reader.read(), 60)
      writer.close()
      reply = client.HTTPResponse(_Bytes(raw))
      reply.begin()
      if reply.status == 200:
        return json.loads(reply.read())['choices'][0]['message']['content']
      refused += 1
      if refused == 2:
        return None
    except (OSError, client.HTTPException):
      pass  # nobody there, or cut off in the middle
    await asyncio.sleep(0.02)
  return None


class _Bytes:
  """What `http.client` wants of a socket."""

  def __init__(self, raw):
    self.raw = raw

  def makefile(self, mode):
    return io.BytesIO(self.raw)
