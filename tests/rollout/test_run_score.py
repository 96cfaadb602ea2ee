"""A rollout from the task to its score: graders, judges, sandbox, flags.

The proxy is the real one with a scripted model, the judge a small
OpenAI-compatible server on loopback, and the sandbox the fake one, whose
commands talk to the proxy as a harness would.
"""

import dataclasses
import json

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from clawjax import sandbox, types
from clawjax.chat import tokenizers
from clawjax.harness import base as harness_base
from clawjax.proxy import app, scripted, serve
from clawjax.rollout import run
from clawjax.sandbox import base
from clawjax.tasks import judge as judge_lib
from clawjax.tasks import scoring

LOOK = (
  'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n'
  '</tool_call>'
)
TOOL = {
  'type': 'function',
  'function': {'name': 'bash', 'parameters': {'type': 'object'}},
}
RUBRIC = {
  'judge': {
    'kind': 'anchors',
    'items': [{'text': 'clear', 'anchors': [[0, 'no'], [0.5, ''], [1, 'yes']]}],
  },
  'weights': {'code': 0.7, 'rubric': 0.3},
}


@dataclasses.dataclass(frozen=True)
class Toy:
  """A harness without a program: its commands are ('toy', url, message)."""

  name = 'toy'
  version = '1'
  dialect = 'chat'
  rules = ()
  multi_turn = True

  def plan(self, turns, *, base_url, model='policy'):
    return harness_base.Plan(
      files={'.toy/config': b'1'},
      argv=tuple(('toy', base_url, turn) for turn in turns),
      env={'TOY': '1'},
      readonly=(('/host/toy', '/opt/toy'),),
    )


class World:
  """What happens in the sandboxes.

  Attributes:
    script: answers of the model in order.
    tool: told the files and the number of the call, does a tool's work.
    grade: told the files, gives the grader's last line.
    commands: all commands that ran.
  """

  def __init__(self):
    self.script = [LOOK, 'Done.']
    self.tool = lambda files, number: None
    self.grade = lambda files: {'reward': 1.0}
    self.commands = []
    self.backend = sandbox.load('fake', answer=self._answer)
    self.proxy = None

  async def _answer(self, command):
    self.commands.append(command)
    if command.argv[0] == 'toy':
      return await self._harness(command)
    if command.argv[0] == 'find':
      for path in [p for p in command.files if p.startswith(base.HOME)]:
        del command.files[path]
      return base.ExecResult(0)
    line = json.dumps(self.grade(command.files))
    return base.ExecResult(0, line.encode())

  async def _harness(self, command):
    """A loop of calls and tools, its history kept below HOME."""
    _, url, message = command.argv
    kept = f'{base.HOME}/.toy/history'
    history = json.loads(command.files.get(kept, b'[]'))
    history.append({'role': 'user', 'content': message})
    path = '/' + url.split('/', 3)[3]
    async with httpx.AsyncClient(
      transport=httpx.ASGITransport(app=self.proxy.app),
      base_url='http://proxy',
      timeout=60,
    ) as client:
      for number in range(10):
        reply = await client.post(
          f'{path}/v1/chat/completions',
          json={'messages': history, 'tools': [TOOL]},
        )
        if reply.status_code != 200:
          return base.ExecResult(1, stderr=reply.content)
        answer = reply.json()['choices'][0]['message']
        history.append(answer)
        if not answer.get('tool_calls'):
          break
        self.tool(command.files, number)
        for call in answer['tool_calls']:
          result = {'role': 'tool', 'tool_call_id': call['id']}
          history.append(result | {'content': 'a.txt'})
    command.files[kept] = json.dumps(history).encode()
    return base.ExecResult(0)

  async def run(self, task, tmp_path, **options):
    tokenizer = tokenizers.load('tiny')
    client = scripted.ScriptedClient(self.script, tokenizer)
    self.proxy = app.Proxy(client, tokenizer)
    rollout = await run.run_rollout(
      task,
      harness=Toy(),
      backend=options.pop('backend', self.backend),
      proxy=self.proxy,
      socket_dir=tmp_path,
      rollout_id='r',
      limits=run.RolloutLimits(
        settle_interval_s=0.001, scoring=scoring.Scoring(**options)
      ),
    )
    await scoring.close_judges()
    assert not self.backend.live
    return rollout


@pytest.fixture
def world():
  return World()


def task_of(metadata=None, **fields):
  verifier = types.Verifier({'check.py': b''}, ('python3', 'check.py'))
  return types.Task(
    **{
      'id': 't/1',
      'turns': ('Go.',),
      'files': {'in.txt': b'x'},
      'verifier': verifier,
      'metadata': metadata or {},
    }
    | fields
  )


@pytest.fixture
async def judged():
  """Serves a judge that gives `judged.reply`; `judged.seen` are its requests."""

  class Served:
    reply = json.dumps({'scores': {'criterion_1': 0.5}, 'notes': 'half'})
    status = 200
    seen: list = []
    url = ''

    def config(self, **options):
      return judge_lib.JudgeConfig(
        model='m', base_url=self.url, retries=1, backoff_s=0.001, **options
      )

  served = Served()
  served.seen = []

  async def answer(request):
    served.seen.append(await request.json())
    message = {'role': 'assistant', 'content': served.reply}
    choice = {'index': 0, 'finish_reason': 'stop', 'message': message}
    usage = {'prompt_tokens': 200, 'completion_tokens': 20, 'total_tokens': 220}
    body = {'id': 'x', 'object': 'chat.completion', 'created': 0, 'model': 'm'}
    return JSONResponse(
      body | {'choices': [choice], 'usage': usage}, status_code=served.status
    )

  routes = [Route('/v1/chat/completions', answer, methods=['POST'])]
  async with serve.serve(Starlette(routes=routes)) as url:
    served.url = f'{url}/v1'
    yield served


async def test_grader_and_judge_see_the_run(world, judged, tmp_path):
  def grade(files):
    events = json.loads(files['/verifier/events.json'])
    plain = json.loads(files['/verifier/transcript.json'])
    assert [m['role'] for m in plain] == [
      *('system', 'user', 'assistant', 'tool', 'assistant')
    ]
    roles = [e['message']['role'] for e in events]
    assert roles == ['user', 'assistant', 'toolResult', 'assistant']
    block = events[1]['message']['content'][1]
    # The harness calls it bash, graders written for OpenClaw look for exec.
    assert (block['name'], block['nativeName']) == ('exec', 'bash')
    assert block['arguments'] == {'command': 'ls'}
    assert block['id'] == events[2]['message']['toolCallId']
    assert events[3]['message']['content'][0]['text'] == 'Done.'
    return {'reward': 0.5, 'checks': {'a': 1, 'b': 0}}

  world.grade = grade
  config = judged.config(price_in=5.0, price_out=50.0)
  rollout = await world.run(task_of(RUBRIC), tmp_path, judges=(config,))
  assert (rollout.outcome, rollout.reason) == ('ok', '')
  assert rollout.reward == pytest.approx(0.7 * 0.5 + 0.3 * 0.5)
  assert rollout.checks == {'a': 1.0, 'b': 0.0, 'criterion_1': 0.5}
  assert rollout.extra['parts'] == {'code': 0.5, 'rubric': 0.5}
  assert rollout.extra['by_judge'] == {'m': 0.5}
  used = rollout.extra['judge']
  assert (used['calls'], used['tokens_in'], used['tokens_out']) == (1, 200, 20)
  # 200 tokens at 5 and 20 at 50 dollars a million.
  assert used['cost'] == pytest.approx(0.002)
  (asked,) = judged.seen
  shown = asked['messages'][1]['content']
  assert '[call bash]' in shown and 'Done.' in shown and 'Go.' in shown
  assert types.rollout_from_json(json.loads(types.dumps(rollout))).extra == (
    rollout.extra
  )


async def test_native_names_where_no_aliases_are_wanted(world, tmp_path):
  def grade(files):
    events = json.loads(files['/verifier/events.json'])
    return {'reward': events[1]['message']['content'][1]['name'] == 'bash'}

  world.grade = grade
  assert (await world.run(task_of(), tmp_path, aliases=False)).reward == 1.0
  assert (await world.run(task_of(), tmp_path)).reward == 0.0


@pytest.mark.parametrize(
  'status, reply', [(401, ''), (500, ''), (200, 'I cannot.')]
)
async def test_a_failing_judge_is_not_a_zero(
  world, judged, tmp_path, status, reply
):
  judged.status, judged.reply = status, reply
  rollout = await world.run(
    task_of(RUBRIC), tmp_path, judges=(judged.config(),)
  )
  assert rollout.outcome == 'verifier_error' and rollout.reward is None
  assert 'judge m gave no usable answer' in rollout.reason
  assert not rollout.valid and len(rollout.calls) == 2
  alone = await world.run(
    task_of(RUBRIC),
    tmp_path,
    judges=(judged.config(),),
    renormalise_missing=True,
  )
  assert alone.reward == 1.0 and 'grader stands alone' in alone.extra['notes']


async def test_no_judge_is_an_error_unless_the_rubric_is_left_out(
  world, tmp_path
):
  rollout = await world.run(task_of(RUBRIC), tmp_path)
  assert rollout.outcome == 'verifier_error'
  assert 'no judge is configured' in rollout.reason
  assert (await world.run(task_of(RUBRIC), tmp_path, code_only=True)).valid


async def test_a_rubric_alone(world, judged, tmp_path):
  task = task_of(RUBRIC | {'weights': {'rubric': 1.0}}, verifier=None)
  rollout = await world.run(task, tmp_path, judges=(judged.config(),))
  assert rollout.reward == 0.5
  assert [c.argv[0] for c in world.commands] == ['toy']


async def test_sandboxes_are_as_the_task_asks(world, tmp_path):
  task = task_of(
    {
      'readonly': [['/host/corpus', '/corpus']],
      'env': {'WORD': 'a b'},
      'image': 'some/image:1',
      'verifier_env': {'KEY': 'v'},
    }
  )
  rollout = await world.run(task, tmp_path)
  assert rollout.valid
  agent, grader = world.commands
  assert agent.spec.readonly == (
    ('/host/toy', '/opt/toy'),
    ('/host/corpus', '/corpus'),
  )
  assert agent.env == {'WORD': 'a b', 'TOY': '1'}
  assert grader.spec.readonly == (('/host/corpus', '/corpus'),)
  assert grader.env == {'WORD': 'a b', 'KEY': 'v'}
  assert agent.spec.image == grader.spec.image == 'some/image:1'
  # The proxy's socket is the agent's alone.
  assert agent.spec.socket_dir == tmp_path and grader.spec.socket_dir is None


async def test_an_image_that_the_backend_cannot_give(world, tmp_path):
  class Plain:
    name = 'bwrap'

    async def create(self, spec):
      raise AssertionError('it must not be asked')

  rollout = await world.run(
    task_of({'image': 'some/image'}), tmp_path, backend=Plain()
  )
  assert rollout.outcome == 'infra_error'
  assert 'wants the image some/image' in rollout.reason
  await world.run(task_of({'build': '/set/environment'}), tmp_path)
  made = {command.spec.image for command in world.commands}
  assert made == {'build:/set/environment'}


async def test_files_that_may_be_run(stub, socket_dir):
  """In the real sandbox: modes of the task, and those that an agent set."""
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(probe.text)
  check = b"""
import json, subprocess
ran = [subprocess.run(['./' + n], capture_output=True).stdout for n in 'ab']
print(json.dumps({'reward': ran == [b'1\\n', b'2\\n']}))
"""

  class Shell(Toy):
    def plan(self, turns, *, base_url, model='policy'):
      script = "./a && printf '#!/bin/sh\necho 2\n' > b && chmod +x b"
      return harness_base.Plan({}, (('/bin/sh', '-c', script),), {})

  proxy = await stub([])
  opened = proxy.open

  def open_with_a_call(rollout_id, **options):
    session = opened(rollout_id, **options)
    proxy.add(rollout_id)
    return session

  proxy.open = open_with_a_call
  rollout = await run.run_rollout(
    task_of(
      {'executable': ['a']},
      files={'a': b'#!/bin/sh\necho 1\n'},
      verifier=types.Verifier(
        {'check.py': check}, ('python3', '/verifier/check.py')
      ),
    ),
    harness=Shell(),
    backend=backend,
    proxy=proxy,
    socket_dir=socket_dir,
    rollout_id='r',
  )
  await backend.close()
  assert (rollout.outcome, rollout.reason) == ('ok', '')
  assert rollout.reward == 1.0


async def test_a_new_session_in_the_same_workspace(world, tmp_path):
  world.script = [LOOK, 'One.', 'Two.', 'Three.']
  task = task_of(
    {'new_session': [False, False, True]},
    turns=('First.', 'Second.', 'Third.'),
  )
  seen = {}

  def grade(files):
    seen['plain'] = json.loads(files['/verifier/transcript.json'])
    return {'reward': 1}

  world.grade = grade
  rollout = await world.run(task, tmp_path)
  assert rollout.valid and rollout.extra['turns'] == 3
  assert [c.argv[0] for c in world.commands[:4]] == [
    *('toy', 'toy', 'find', 'toy')
  ]
  # The third call knows nothing of the first two, and is the agent's own.
  assert [c.parent != '' for c in rollout.calls] == [False, True, True, False]
  assert [c.role for c in rollout.calls] == ['main'] * 4
  said = [m['content'] for m in seen['plain'] if m['role'] != 'system']
  assert said == [
    *('First.', 'I look.', 'a.txt', 'One.', 'Second.', 'Two.'),
    *('Third.', 'Three.'),
  ]
  wrong = await world.run(
    task_of({'new_session': [True]}, turns=('a', 'b')), tmp_path
  )
  assert 'new_session with 2 entries' in wrong.reason


async def test_flags_are_remarks_not_zeros(world, tmp_path):
  def tool(files, number):
    files[f'{base.WORKSPACE}/tests/test_a.py'] = b'pass'
    secret = files[f'{base.WORKSPACE}/.grader/expected.json']
    files[f'{base.WORKSPACE}/out.txt'] = secret

  world.tool = tool
  task = task_of(files={'tests/test_a.py': b'assert 0', 'in.txt': b''})
  seen = {}
  world.grade = lambda files: seen.update(files) or {'reward': 1}
  rollout = await world.run(task, tmp_path, canaries=True)
  assert rollout.reward == 1.0
  assert rollout.extra['flags'] == [
    'edited test tests/test_a.py',
    'read .grader/expected.json',
  ]
  # The grader sees the agent's work, not what we planted.
  assert '/workspace/out.txt' in seen
  assert '/workspace/.grader/expected.json' not in seen


async def test_rewards_of_calls_from_workspaces_between_them(world, tmp_path):
  """a right, then a undone and b right, then a right again: 0 .5 .5 1."""
  world.script = [LOOK, LOOK, LOOK, 'Done.']
  steps = [{'a': b'1'}, {'a': b'0', 'b': b'1'}, {'a': b'1'}]

  def tool(files, number):
    for path, content in steps[number].items():
      files[f'{base.WORKSPACE}/{path}'] = content

  def grade(files):
    right = {k: files.get(f'/workspace/{k}') == b'1' for k in 'ab'}
    return {'reward': sum(right.values()) / 2, 'checks': right}

  world.tool, world.grade = tool, grade

  async def rewards(how):
    rollout = await world.run(task_of(), tmp_path, process=how)
    assert rollout.reward == 1.0
    found = rollout.extra['process']
    assert list(found['rewards']) == [c.call_id for c in rollout.calls]
    return found['levels'], list(found['rewards'].values())

  levels, rises = await rewards('last')
  assert levels == [0, 0.5, 0.5, 1, 1] and rises == [0.5, 0, 0.5, 0]
  # Check by check a stays passed: both are from the second call on.
  levels, rises = await rewards('checks')
  assert levels == [0, 0.5, 1, 1, 1] and rises == [0.5, 0.5, 0, 0]
  world.commands.clear()
  await rewards('best')
  # Five workspaces, two of them equal to the final one: graded once each.
  graded = [c for c in world.commands if c.argv[0] == 'python3']
  assert len(graded) == 1 + 4


async def test_a_grader_that_fails_in_between_costs_no_reward(world, tmp_path):
  world.tool = lambda files, n: files.update({'/workspace/out.txt': b''})
  world.grade = lambda files: (
    {'reward': 1} if '/workspace/out.txt' in files else {}
  )
  rollout = await world.run(task_of(), tmp_path, process='best')
  assert rollout.reward == 1.0 and rollout.outcome == 'ok'
  assert 'neither a reward nor a check' in rollout.extra['process']['fault']
