"""What an agent must not reach of the run around it, tried from inside.

Real bubblewrap sandboxes, the real proxy on its socket. The agent is a few
lines of Python in a sandbox as a rollout makes it; sandboxes alone are tried in
`tests/sandbox/test_escape.py`.
"""

import asyncio
import dataclasses
import json

import pytest

from clawjax import harness, sandbox
from clawjax.chat import tokenizers
from clawjax.proxy import scripted, serve
from clawjax.proxy.app import Proxy
from clawjax.rollout import run
from clawjax.sandbox import base

# Asks for each (path, headers) and prints the status codes.
ASK = """
import json, sys, urllib.error, urllib.request
def status(path, headers):
  request = urllib.request.Request(f'http://127.0.0.1:8899{path}',
                                   headers=headers)
  try:
    return urllib.request.urlopen(request, timeout=20).status
  except urllib.error.HTTPError as e:
    return e.code
print(json.dumps([status(*a) for a in json.loads(sys.argv[1])]))
"""


@pytest.fixture
async def bwrap():
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(probe.text)
  yield backend
  await backend.close()


@pytest.fixture
async def proxy(socket_dir, tmp_path):
  tokenizer = tokenizers.load('tiny')
  made = Proxy(
    scripted.ScriptedClient(['Done.'], tokenizer),
    tokenizer,
    record_dir=tmp_path / 'proxy',
    admin_token='the-admins',
  )
  async with serve.serve(made.app, uds=socket_dir / base.SOCKET_NAME):
    yield made


async def test_another_sessions_url(bwrap, proxy, socket_dir):
  """Its own key opens its own session and nothing else does anything."""
  mine, other = proxy.open('train/0/t/pi/0'), proxy.open('train/0/t/pi/1')
  box = await bwrap.create(base.SandboxSpec(socket_dir=socket_dir))

  async def ask(*wanted):
    result = await box.exec(
      ['python3', '-I', '-c', ASK, json.dumps(wanted)], relay_port=8899
    )
    assert result.returncode == 0, result
    return json.loads(result.stdout)

  own = f'{mine.path}/v1/models'
  assert await ask([own, {}], ['/v1/models', {'x-api-key': mine.key}]) == [
    200,
    200,
  ]
  tries = [
    [f'/r/{other.id}/v1/models', {}],
    [f'/r/{other.id.replace("/", "%2F")}/v1/models', {}],
    [f'/r/{other.key[:-1]}/v1/models', {}],  # all but the last character
    ['/r//v1/models', {}],
    ['/v1/models', {}],
    ['/v1/models', {'authorization': f'Bearer {other.id}'}],
    [f'{mine.path}/../{other.id}/v1/models', {}],
    ['/admin/sessions', {}],
    [f'/admin/sessions/{other.id}', {'authorization': f'Bearer {mine.key}'}],
    [f'{mine.path}/admin/sessions', {}],
  ]
  got = await ask(*tries)
  for (path, _), status in zip(tries, got, strict=True):
    assert status in (401, 403, 404, 405), (path, status)
  assert proxy.stats(other.id).served == 0
  # A key that has ended opens nothing, not even for its owner.
  proxy.close(mine.id)
  assert await ask([own, {}]) == [401]
  await box.destroy()


async def test_keys_are_not_lying_about(bwrap, proxy, socket_dir):
  """Neither in files, nor in what other sandboxes run."""
  other = proxy.open('r/1')
  theirs = await bwrap.create(base.SandboxSpec(socket_dir=socket_dir))
  await theirs.write(f'{base.HOME}/config', other.key.encode())

  job = asyncio.ensure_future(
    theirs.exec(['sh', '-c', f'sleep 1; : {other.key}'])
  )
  box = await bwrap.create(base.SandboxSpec(socket_dir=socket_dir))
  result = await box.exec(
    ['sh', '-c', 'cat /proc/*/cmdline /proc/*/environ; ls -R /run /tmp /home;'
     'find / -xdev -type f -size -4k -newer /etc/hosts 2>/dev/null'
     ' | head -n 500 | xargs cat 2>/dev/null']
  )  # fmt: skip
  assert other.key.encode() not in result.stdout
  await job
  await box.destroy()
  await theirs.destroy()


async def test_the_agent_sees_nothing_of_its_grader(
  task, bwrap, proxy, socket_dir
):
  """Hidden files come into being after the agent has ended, elsewhere."""
  marked = dataclasses.replace(
    task.verifier,
    files={**task.verifier.files, 'answers.txt': b'MARKED-ANSWER'},
  )
  spy = harness.load(
    'template',
    name='spy',
    dialect='chat',
    fixed_version='1',
    # Looks for hidden files, then asks the model once as a harness must.
    argv=('python3', '-c', SPY, '{base_url}'),
  )
  rollout = await run.run_rollout(
    dataclasses.replace(task, verifier=marked),
    harness=spy,
    backend=bwrap,
    proxy=proxy,
    socket_dir=socket_dir,
    rollout_id='r/2',
    out_dir=(out := socket_dir / 'out'),
  )
  printed = (out / rollout.telemetry).read_text()
  assert rollout.outcome == 'ok', rollout.reason
  assert rollout.reward == 1.0  # the grader did run, with its files
  assert 'looked' in printed
  assert 'MARKED-ANSWER' not in printed and 'check.py' not in printed


SPY = """
import os, subprocess, sys, urllib.request, json
for folder in ('/verifier', '/logs', '/tests', '/workspace', '/tmp', '/run',
               '/home', '/opt', '/var'):
  for at, folders, names in os.walk(folder):
    for name in names:
      print(at, name)
      try:
        print(open(os.path.join(at, name), 'rb').read(4000))
      except OSError:
        pass
print('looked')
open('out.txt', 'w').write('hi')
body = {'model': 'm', 'messages': [{'role': 'user', 'content': 'x'}]}
request = urllib.request.Request(
  sys.argv[1] + '/v1/chat/completions', json.dumps(body).encode(),
  {'content-type': 'application/json'})
urllib.request.urlopen(request, timeout=30).read()
"""
