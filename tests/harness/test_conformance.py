"""Twenty-one calls of each real program: every sampled token is delivered."""

import asyncio
import dataclasses
import fcntl
import json
import os
import sys

import pytest

from clawjax import harness
from clawjax.proxy import accounting
from clawjax.rollout import conformance
from tests.harness.test_real import ids, installed

FAST = [
  ('pi', {}),
  ('claude_code', {'variant': 'bare'}),
  ('codex', {'variant': 'trimmed'}),
  ('openclaw', {'variant': 'lean'}),
]
SLOW = [
  ('pi', {'dialect': 'messages'}),
  ('pi', {'dialect': 'responses'}),
  ('claude_code', {}),
  ('codex', {}),
  ('openclaw', {}),
  ('openclaw', {'dialect': 'messages'}),
  ('openclaw', {'dialect': 'responses'}),
  ('qwen_code', {}),
  ('opencode', {}),
  ('opencode', {'dialect': 'messages'}),
  ('opencode', {'dialect': 'responses'}),
  ('mini_swe', {}),
]


async def check(name, options):
  found = installed(name, options)
  report = await conformance.run(name, options, timeout_s=900)
  account = report.account
  assert report.version == found.version and report.returncode == 0
  assert account.calls == 21 and account.roles == {'main': 21}
  assert account.delivered == account.sampled > 0, account.missing
  assert (account.breaks, account.inexact) == ({}, 0)


@pytest.mark.parametrize('case', FAST, ids=ids)
async def test_fast(case):
  await check(*case)


@pytest.mark.slow
@pytest.mark.parametrize('case', SLOW, ids=ids)
async def test_slow(case):
  await check(*case)


@pytest.mark.slow
@pytest.mark.parametrize('case', FAST + SLOW, ids=ids)
async def test_a_spent_budget_ends_the_program(case):
  """It calls tools for ever; told that its window is full, it stops."""
  name, options = case
  made = installed(name, options)
  driven = await conformance.drive(
    made, conformance.script(name)[:1], timeout_s=900, token_budget=150
  )
  assert driven.returncode != 124
  sampled = [len(c.sample.token_ids) for c in driven.calls if c.sample]
  assert sum(sampled) == 150
  assert driven.refused < 20  # Claude Code asks eleven times.


@pytest.mark.slow
@pytest.mark.parametrize(
  'case',
  [('claude_code', {}, 'stdio'), ('codex', {'variant': 'trimmed'}, 'http')],
  ids=lambda case: f'{case[0]}-{case[2]}',
)
async def test_with_an_mcp_server(case):
  name, options, transport = case
  installed(name, options)
  report = await conformance.run(name, options, timeout_s=900, mcp=transport)
  assert report.ok and report.mcp == conformance.MCP_CALLS
  assert report.account.delivered == report.account.sampled > 0


# What client timers count is not bytes: see the dialects' `keep_alive`.
TIMERS = [c for c in FAST + SLOW if c[0] in ('codex', 'qwen_code', 'opencode')]


@pytest.mark.slow
@pytest.mark.skipif(
  os.environ.get('RUN_TEN_MINUTES') != '1', reason='RUN_TEN_MINUTES=1 runs it'
)
async def test_nobody_gives_up_on_a_ten_minute_answer():
  async def one(name, options):
    made = installed(name, options)
    first, *_, last = conformance.script(name)
    driven = await conformance.drive(
      made, [{**first, 'delay_s': 610}, last], timeout_s=1500
    )
    assert [c.status for c in driven.calls] == ['ok', 'ok'], name
    assert driven.ended and driven.calls[0].end - driven.calls[0].start > 600

  await asyncio.gather(*(one(*case) for case in TIMERS))


QUITTER = """
import json, pathlib, sys, urllib.request
body = json.dumps({'messages': [{'role': 'user', 'content': (sys.argv[2] if sys.argv[2:] else sys.stdin.read())}]})
urllib.request.urlopen(urllib.request.Request(
  sys.argv[1] + '/v1/chat/completions', body.encode(),
  {'Content-Type': 'application/json'})).read()
assert pathlib.Path('notes.txt').read_text() == 'a note'
sys.exit(3)
"""


@pytest.mark.parametrize('told', ['argv', 'stdin'])
async def test_a_program_that_stops_early_is_seen(tmp_path, told):
  script = tmp_path / 'quitter.py'
  script.write_text(QUITTER)
  made = harness.load(
    'template',
    name='quitter',
    dialect='chat',
    argv=(sys.executable, str(script), '{base_url}')
    + (('{prompt}',) if told == 'argv' else ()),
    stdin='{prompt}' if told == 'stdin' else '',
    fixed_version='1',
  )
  calls, code, ended, _ = await conformance.drive(
    made,
    ['one', 'two'],
    bodies=str(tmp_path / 'bodies'),
    files={'notes.txt': 'a note'},
  )
  assert (code, ended) == (3, False)
  assert [c.text for c in calls] == ['one']
  (kept,) = (tmp_path / 'bodies').iterdir()
  said = json.loads(kept.read_text())['messages']
  assert said == [{'role': 'user', 'content': conformance.PROMPT}]

  report = conformance.Report(
    harness='quitter',
    version='1',
    dialect='chat',
    ended=True,
    returncode=0,
    account=accounting.account(calls),
    normalised=(),
  )
  assert report.ok
  assert not dataclasses.replace(report, ended=False).ok
  for cause, fine in (('retry', True), ('role: side', True), ('error', False)):
    lost = dataclasses.replace(report.account, missing={cause: 4})
    assert dataclasses.replace(report, account=lost).ok is fine


HANGER = """
import subprocess, sys, time
child = 'import fcntl, sys, time; f = open(sys.argv[1], "w"); ' \\
  'fcntl.flock(f, fcntl.LOCK_EX); f.write("held"); f.flush(); time.sleep(900)'
subprocess.Popen([sys.executable, '-c', child, sys.argv[1]])
while not open(sys.argv[1]).read():
  time.sleep(0.01)
open(sys.argv[1] + '.ready', 'w').close()
time.sleep(900)
"""


async def test_a_timeout_ends_all_that_a_program_started(tmp_path):
  """A child that its parent never ends holds a lock as long as it lives."""
  script, lock = tmp_path / 'hanger.py', tmp_path / 'lock'
  script.write_text(HANGER)
  lock.touch()
  made = harness.load(
    'template',
    name='hanger',
    dialect='chat',
    argv=(sys.executable, str(script), str(lock)),
    fixed_version='1',
  )
  seconds = 1.0
  while True:  # Until it is long enough on this machine for both to start.
    driven = await conformance.drive(made, ['one'], timeout_s=seconds)
    assert driven == ((), 124, False, 0)
    if (tmp_path / 'lock.ready').exists():
      break
    seconds *= 4
  with lock.open() as file:
    async with asyncio.timeout(60):
      while True:
        try:
          fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
          break
        except BlockingIOError:
          await asyncio.sleep(0.02)
