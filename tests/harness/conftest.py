"""The real proxy with a scripted model, and a rollout through it."""

import contextlib
import json
import os
import pathlib
import tempfile

import pytest

from clawjax import sandbox
from clawjax.chat import tokenizers
from clawjax.proxy import app, scripted, serve
from clawjax.rollout import run
from clawjax.sandbox import base
from tests.rollout import hi


def call(name, **arguments):
  """A tool call as the model writes it."""
  body = json.dumps({'name': name, 'arguments': arguments})
  return f'<tool_call>\n{body}\n</tool_call>'


@pytest.fixture
async def backend():
  """Bubblewrap, or a skip."""
  found = sandbox.load('bwrap')
  probe = await found.probe()
  if not probe.ok:
    pytest.skip(probe.text)
  yield found
  await found.close()


@pytest.fixture
async def roll(backend, tmp_path):
  """Runs one rollout of a harness against scripted answers."""

  async def go(harness, answers, task=None, limits=None):
    client = scripted.ScriptedClient(
      answers, tokenizers.load('tiny'), window=300_000
    )
    proxy = app.Proxy(
      client, tokenizers.load('tiny'), record_dir=tmp_path / 'record'
    )
    with tempfile.TemporaryDirectory(prefix='cj') as folder:
      os.chmod(folder, 0o711)
      socket_dir = pathlib.Path(folder)
      async with serve.serve(proxy.app, uds=socket_dir / base.SOCKET_NAME):
        rollout = await run.run_rollout(
          task or hi.make_task(),
          harness=harness,
          backend=backend,
          proxy=proxy,
          socket_dir=socket_dir,
          rollout_id='t/0',
          limits=limits
          or run.RolloutLimits(
            sandbox=base.Limits(memory_bytes=4 << 30, processes=512)
          ),
          out_dir=tmp_path,
        )
    with contextlib.suppress(OSError):
      rollout.extra['printed'] = (tmp_path / rollout.telemetry).read_text(
        errors='replace'
      )
    rollout.extra['client'] = client
    return rollout

  return go
