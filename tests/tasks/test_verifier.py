"""Rewards are read strictly: what is not a number in [0, 1] is an error."""

import json

import pytest

from clawjax import errors, types
from clawjax.tasks import synth, verifier


def task_of(code, output='json_line', timeout_s=10.0):
  return types.Task(
    'test/one',
    ('do it',),
    verifier=types.Verifier(
      {'check.py': code.encode()},
      ('python3', '/verifier/check.py', '/workspace'),
      output,
      timeout_s,
    ),
  )


async def test_generated_task_is_scored_through_the_protocol(folder_backend):
  task = synth.tasks('train', count=1, families=['create'])[0]
  idle = await verifier.verify(task, task.files, folder_backend)
  assert idle.reward == 0.0 and idle.checks == {'rows': 0.0}
  spec = task.metadata['spec']
  body = '\n'.join(spec['words']).encode()
  done = await verifier.verify(
    task, {**task.files, spec['out']: body}, folder_backend
  )
  assert done.reward == 1.0 and done.checks == {'rows': 1.0}


async def test_grader_sees_workspace_and_transcript(folder_backend):
  code = (
    'import json, os, sys\n'
    'turns = json.load(open(os.path.dirname(__file__) + "/transcript.json"))\n'
    'ok = open(sys.argv[1] + "/sub/a.txt").read() == turns[0]["content"]\n'
    'print("noise"); print(json.dumps({"same": ok, "half": 0.5}))\n'
  )
  score = await verifier.verify(
    task_of(code),
    {'sub/a.txt': b'hello'},
    folder_backend,
    transcript=[types.Message('assistant', 'hello')],
  )
  assert score.reward == 0.75
  assert score.checks == {'same': 1.0, 'half': 0.5}


@pytest.mark.parametrize(
  ('code', 'message'),
  [
    ('', 'printed nothing'),
    ('print("garbage")', 'wanted JSON'),
    ('print([1])', 'wanted a JSON object'),
    ('print({})', 'neither'),
    ('print("{\\"reward\\": NaN}")', 'finite'),
    ('print("{\\"reward\\": 1.5}")', 'from 0 to 1'),
    ('print("{\\"reward\\": \\"1\\"}")', 'wanted a number'),
    ('print("{\\"reward\\": 1, \\"checks\\": {\\"a\\": -1}}")', 'from 0 to 1'),
    ('print("{\\"reward\\": 1}"); raise SystemExit(3)', 'status 3'),
    ('import time; time.sleep(30)', 'ran past 0.5 s'),
  ],
)
async def test_unusable_output_is_an_error(code, message, folder_backend):
  task = task_of(code, timeout_s=0.5 if 'sleep' in code else 10.0)
  with pytest.raises(errors.VerifierError, match=message) as caught:
    await verifier.verify(task, {}, folder_backend)
  assert str(caught.value).startswith('test/one: ')


def test_float_line():
  assert verifier.parse_float_line('x\n 0.25 \n\n') == (0.25, {})
  for text in ('', 'nan', '1 2', '-0.1', 'inf'):
    with pytest.raises(ValueError):
      verifier.parse_float_line(text)


def test_harbor_json_goes_before_txt():
  both = json.dumps({'reward': 1, 'speed': 3.5}).encode()
  assert verifier.parse_harbor(both, b'0') == (1.0, {'speed': 3.5})
  assert verifier.parse_harbor(None, b'0.5\n') == (0.5, {})
  for files in (
    (None, None),
    (b'', b'1'),
    (b'{"reward": Infinity}', b'1'),
    (b'{"other": 1}', b'1'),
    (None, b''),
    (None, b'yes'),
  ):
    with pytest.raises(ValueError):
      verifier.parse_harbor(*files)


async def test_task_without_verifier_is_an_error(folder_backend):
  with pytest.raises(errors.VerifierError, match='no verifier'):
    await verifier.verify(types.Task('t/1', ('x',)), {}, folder_backend)
