"""A stub proxy: sessions and a scripted chat endpoint on a Unix socket.

It knows just enough of the chat dialect for a harness to run, and keeps calls
as the real proxy does, so the rollout's own rules can be tested alone.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import types as python_types

import numpy as np
import pytest

from clawjax import types
from tests.rollout import hi


class StubProxy:
  """`answers`: per call of a session a text, or {'name', 'arguments'}."""

  def __init__(self, answers):
    self.answers = answers
    self.sessions = {}
    self.bodies = []
    self.closed = []

  def open(self, rollout_id, **options):
    self.sessions[rollout_id] = []
    return python_types.SimpleNamespace(
      id=rollout_id, key='k', path=f'/r/{rollout_id.replace("/", "-")}'
    )

  def calls(self, id):
    return tuple(self.sessions[id])

  def stats(self, id):
    n = len(self.sessions[id])
    return {'served': n, 'captured': n, 'pending': 0}

  async def settle(self, id, **options):
    return True

  def close(self, id):
    self.closed.append(id)

  def add(self, id, status='ok', error=''):
    index = len(self.sessions[id])
    sample = types.Sample(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'stop'
    )
    self.sessions[id].append(
      types.Call(
        f'{id}#{index}',
        id,
        index,
        np.zeros(1, np.int32),
        sample if status == 'ok' else None,
        status=status,
        error=error,
      )
    )
    return index

  def _reply(self, path, body):
    key = path.split('/')[2]
    id = next(i for i in self.sessions if i.replace('/', '-') == key)
    self.bodies.append(json.loads(body))
    answer = self.answers[min(self.add(id), len(self.answers) - 1)]

    def event(delta, finish=None):
      choice = {'index': 0, 'delta': delta, 'finish_reason': finish}
      data = {'id': 'c', 'object': 'chat.completion.chunk', 'created': 1}
      data |= {'model': 'm', 'choices': [choice]}
      return f'data: {json.dumps(data)}\n\n'

    text = event({'role': 'assistant', 'content': ''})
    if isinstance(answer, str):
      text += event({'content': answer}) + event({}, 'stop')
    else:
      call = {'index': 0, 'id': f'call_{len(self.bodies)}', 'type': 'function'}
      call['function'] = {
        'name': answer['name'],
        'arguments': json.dumps(answer['arguments']),
      }
      text += event({'tool_calls': [call]}) + event({}, 'tool_calls')
    return (text + 'data: [DONE]\n\n').encode()

  async def handle(self, reader, writer):
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
      head = (await reader.readuntil(b'\r\n\r\n')).decode()
      length = 0
      for line in head.split('\r\n'):
        if line.lower().startswith('content-length:'):
          length = int(line.split(':')[1])
      body = self._reply(head.split()[1], await reader.readexactly(length))
      writer.write(
        b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n'
        b'Connection: close\r\nContent-Length: %d\r\n\r\n' % len(body) + body
      )
      await writer.drain()
    writer.close()


@pytest.fixture(scope='session')
def talk():
  """The module that builds rollouts with known conversations."""
  path = pathlib.Path(__file__).parents[1] / 'eval' / 'talk.py'
  spec = importlib.util.spec_from_file_location('rollout_talk', path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module  # dataclasses look their module up
  spec.loader.exec_module(module)
  return module


@pytest.fixture
def socket_dir():
  """A short path that any uid can pass through."""
  with tempfile.TemporaryDirectory(prefix='cj') as folder:
    os.chmod(folder, 0o711)
    yield pathlib.Path(folder)


@pytest.fixture
async def stub(socket_dir):
  """Makes a serving StubProxy from its answers."""
  servers = []

  async def make(answers):
    proxy = StubProxy(answers)
    path = socket_dir / 'proxy.sock'
    servers.append(await asyncio.start_unix_server(proxy.handle, path))
    os.chmod(path, 0o666)
    return proxy

  yield make
  for server in servers:
    server.close()
    await server.wait_closed()


BASH = {'name': 'bash', 'arguments': {'command': 'printf hi > out.txt'}}


@pytest.fixture
def task():
  """Write 'hi' into out.txt."""
  return hi.make_task()
