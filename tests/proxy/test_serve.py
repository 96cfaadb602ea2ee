"""Addresses that cannot be had are one line; nobody waits for who has gone."""

import asyncio
import pathlib
import socket
import subprocess
import sys

import pytest

from clawjax import errors
from clawjax.proxy import serve

ROOT = pathlib.Path(__file__).resolve().parents[2]


async def _nothing(scope, receive, send):
  raise AssertionError('nothing is asked')


@pytest.fixture
def taken():
  """A port that somebody listens on."""
  with socket.socket() as other:
    other.bind(('127.0.0.1', 0))
    other.listen()
    yield other.getsockname()[1]


async def _refused(**address):
  with pytest.raises(errors.ConfigError) as e:
    async with serve.serve(_nothing, **address):
      pass
  assert '\n' not in str(e.value)
  return str(e.value)


async def test_a_taken_port(taken):
  text = await _refused(port=taken)
  assert f'port {taken}' in text and 'in use' in text and 'port 0' in text


@pytest.mark.parametrize(
  'address',
  [
    {'host': '203.0.113.7'},  # Documentation's, never ours.
    {'host': 'no.such.host.invalid'},
    {'host': 'a' * 70 + '.b'},  # A label may have 63 letters.
    {'port': 70_000},
  ],
)
async def test_an_address_that_is_none(address):
  text = await _refused(**address)
  assert str(next(iter(address.values()))) in text


async def test_a_unix_socket_that_cannot_be(tmp_path):
  long = tmp_path / ('x' * 120)
  assert str(long) in await _refused(uds=long)
  kept = tmp_path / 'kept'
  kept.write_text('mine')
  assert 'in use' in await _refused(uds=kept)
  assert kept.read_text() == 'mine'


async def test_who_comes_as_it_ends_is_cut_off(tmp_path, monkeypatch):
  """Seen: a harness waited to its time limit for a proxy that had gone."""
  import uvicorn

  path, end = tmp_path / 's', uvicorn.Server.shutdown
  with socket.socket(socket.AF_UNIX) as client:

    async def shutdown(self, sockets=None):
      client.connect(str(path))
      client.sendall(b'GET / HTTP/1.1\r\nHost: x\r\n\r\n')
      for _ in range(2):  # the loop looks, and accepts in its next round
        await asyncio.sleep(0)
      await end(self, sockets)

    monkeypatch.setattr(uvicorn.Server, 'shutdown', shutdown)
    async with serve.serve(_nothing, uds=path):
      pass
    client.settimeout(5)
    try:
      assert await asyncio.to_thread(client.recv, 1) == b''
    except ConnectionResetError:
      pass


@pytest.mark.parametrize('what', ['port', 'record'])
def test_the_program_says_it_in_one_line(taken, tmp_path, what):
  script = tmp_path / 'script.jsonl'
  script.write_text('{"text": "hi"}')
  options = {
    'port': ['--port', str(taken)],
    'record': ['--record-dir', str(script)],
  }[what]
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'clawjax.proxy', '--tokenizer', 'tiny'),
      *('--backend', f'scripted:{script}', '--admin-token', 'T', *options),
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2 and done.stdout == ''
  (line,) = done.stderr.splitlines()
  assert line.startswith('clawjax.proxy: ')
