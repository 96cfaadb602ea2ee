"""The record on disk: killed, resumed, complete."""

import asyncio
import json
import os
import pathlib
import signal
import sys

import httpx
import numpy as np
import pytest

from clawjax import errors
from clawjax.proxy import capture, resume
from tests.proxy.conftest import BASH, call, extends

ROOT = pathlib.Path(__file__).resolve().parents[2]
USER = {'role': 'user', 'content': 'go'}


class Process:
  """`python -m clawjax.proxy` and its admin API."""

  def __init__(self, folder):
    self.folder = folder
    self.process = None
    self.script = folder / 'script.jsonl'

  def write(self, script):
    self.script.write_text('\n'.join(map(json.dumps, script)))

  async def start(self):
    self.process = await asyncio.create_subprocess_exec(
      sys.executable,
      '-m',
      'clawjax.proxy',
      '--backend',
      f'scripted:{self.script}',
      '--tokenizer',
      'tiny',
      '--record-dir',
      str(self.folder / 'record'),
      '--admin-token',
      'T',
      cwd=ROOT,
      stdout=asyncio.subprocess.PIPE,
      stderr=asyncio.subprocess.DEVNULL,
    )
    ready = json.loads(await self.process.stdout.readline())
    self.http = httpx.AsyncClient(base_url=ready['url'], timeout=30)
    self.admin = {'headers': {'Authorization': 'Bearer T'}}
    assert ready['admin'] == ready['url'] + '/admin'

  async def stop(self, number=signal.SIGKILL):
    if self.process is None:
      return
    process, self.process = self.process, None
    process.send_signal(number)
    await process.wait()
    process._transport.close()
    await self.http.aclose()

  async def shown(self, session):
    path = f'/admin/sessions/{session.replace("/", "%2F")}'
    return (await self.http.get(path, **self.admin)).json()


@pytest.fixture
async def process(tmp_path):
  made = Process(tmp_path)
  yield made
  await made.stop()


async def test_kill_9_loses_no_finished_call_and_the_session_goes_on(
  process, tmp_path
):
  script = [
    {'text': call('one', thinking='t'), 'logprob': -0.75},
    {'text': 'never', 'delay_s': 60},
  ]
  p = process
  p.write(script)
  await p.start()
  opened = await p.http.post(
    '/admin/sessions',
    json={'rollout_id': 'a/b', 'rules': ['date_line'], 'run_seed': 3},
    **p.admin,
  )
  assert opened.status_code == 201
  made = opened.json()
  assert made['session'] == 'a/b'
  assert made['base_url'].endswith(f'/r/{made["key"]}')
  url = made['base_url'] + '/v1/chat/completions'
  system = {'role': 'system', 'content': 'Current date: 1'}
  body = {'messages': [system, USER], 'tools': [BASH]}
  first = (await p.http.post(url, json=body)).json()['choices'][0]['message']
  hanging = asyncio.create_task(
    p.http.post(url, json={**body, 'messages': [USER]})
  )
  await asyncio.sleep(0.3)
  before = await p.shown('a/b')
  assert before['pending'] == ['c1']
  await p.stop(signal.SIGKILL)
  with pytest.raises(httpx.HTTPError):
    await hanging

  p.script.write_text(json.dumps({'text': 'done'}))
  await p.start()
  after = await p.shown('a/b')
  assert after['calls'][0] == before['calls'][0]
  assert after['calls'][0]['logprobs'][0] == -0.75
  lost = after['calls'][1]
  assert (lost['status'], lost['error']) == ('aborted', resume.IN_FLIGHT)

  results = [
    {'role': 'tool', 'tool_call_id': c['id'], 'content': 'o'}
    for c in first['tool_calls']
  ]
  later = {'role': 'system', 'content': 'Current date: 2'}
  path = f'/r/{made["key"]}/v1/chat/completions'
  body['messages'] = [later, USER, {**first, 'reasoning_content': ''}, *results]
  answer = await p.http.post(path, json=body)
  assert answer.status_code == 200
  calls = (await p.shown('a/b'))['calls']
  c0, c2 = calls[0], calls[2]
  start = c0['prompt_ids'] + c0['output_ids']
  assert c2['prompt_ids'][: len(start)] == start
  assert c2['parent'] == 'c0'
  gone = await p.http.delete('/admin/sessions/a%2Fb', **p.admin)
  assert gone.status_code == 200
  assert (await p.http.post(path, json=body)).status_code == 401
  assert (await p.http.get('/admin/sessions')).status_code == 401
  await p.stop(signal.SIGTERM)
  read = resume.calls(tmp_path / 'record' / capture.file_name('a/b'))
  assert [c.status for c in read] == ['ok', 'aborted', 'ok']
  assert extends(read[2], read[0])


async def test_the_record_holds_what_memory_holds(bench):
  script = [
    call('a', thinking='r'),
    call('b'),
    {'text': 'x', 'finish': 'length'},
  ]
  async with bench(script) as b:
    history = [USER]
    for _ in range(3):
      answer = await b.post(
        'chat/completions', {'messages': history, 'tools': [BASH]}
      )
      message = answer.json()['choices'][0]['message']
      history = [*history, message] + [
        {'role': 'tool', 'tool_call_id': c['id'], 'content': 'o'}
        for c in message.get('tool_calls', ())
      ]
    calls = b.calls()
    path = next((b.proxy._record_dir).glob('*.jsonl'))
    assert path.stat().st_mode & 0o077 == 0
    read = resume.calls(path)
    for ours, theirs in zip(calls, read, strict=True):
      assert np.array_equal(ours.prompt_ids, theirs.prompt_ids)
      assert np.array_equal(ours.sample.token_ids, theirs.sample.token_ids)
      assert np.array_equal(ours.sample.logprobs, theirs.sample.logprobs)
      for name in (
        'parent',
        'role',
        'status',
        'params',
        'text',
        'start',
        'index',
      ):
        assert getattr(ours, name) == getattr(theirs, name)
    # Only what is new is written, so prompts are not repeated.
    lines = resume.lines(path)
    written = sum(len(n['ids']) for x in lines for n in x.get('new', ())) + sum(
      len(x.get('opening', ())) for x in lines
    )
    assert written < sum(len(c.prompt_ids) for c in calls)


def test_a_torn_last_line_is_left_out_and_cut_off(tmp_path):
  path = tmp_path / 'x.jsonl'
  path.write_bytes(b'{"type":"open"}\n{"type":"sta')
  assert [x['type'] for x in resume.lines(path)] == ['open']
  recorder = capture.Recorder(path, repair=True)
  recorder.write('close', {})
  recorder.close()
  assert [x['type'] for x in resume.lines(path)] == ['open', 'close']


def test_a_damaged_line_is_an_error(tmp_path):
  path = tmp_path / 'x.jsonl'
  path.write_bytes(b'{"type":"open"}\n{"ty\n{"type":"close"}\n')
  with pytest.raises(errors.CaptureError, match='x.jsonl:2'):
    resume.lines(path)


def test_file_names_hold_any_id():
  name = capture.file_name('train/3/../x y')
  assert os.sep not in name and name.endswith('.jsonl')
