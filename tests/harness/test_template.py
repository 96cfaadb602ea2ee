"""Harnesses as data: holes, options, a user's own harness, our agent loop."""

import json

import pytest

from clawjax import config as config_lib
from clawjax import experiment, harness
from clawjax.errors import ConfigError, HarnessError
from clawjax.experiment import parts
from clawjax.harness import install, template
from tests.harness.conftest import call
from tests.rollout.hi import make_task

TOY = """
import json, os, subprocess, sys, urllib.request
messages = [{'role': 'user', 'content': sys.argv[2]}]
for _ in range(9):
  body = json.dumps({'model': os.environ['TOY'], 'messages': messages, 'tools': [
    {'type': 'function', 'function': {'name': 'sh', 'parameters': {
      'type': 'object', 'properties': {'line': {'type': 'string'}}}}}]})
  request = urllib.request.Request(
    sys.argv[1] + '/v1/chat/completions', body.encode(),
    {'Content-Type': 'application/json'})
  answer = json.load(urllib.request.urlopen(request))['choices'][0]['message']
  messages.append(answer)
  if not answer.get('tool_calls'):
    break
  for c in answer['tool_calls']:
    line = json.loads(c['function']['arguments'])['line']
    out = subprocess.run(line, shell=True, capture_output=True, text=True)
    messages.append({'role': 'tool', 'tool_call_id': c['id'],
                     'content': out.stdout})
"""


def test_holes_are_filled_once():
  holes = {'prompt': '{model} {"a": 1}', 'model': 'm'}
  assert template._fill('{prompt}|{model}|{other}|{', holes) == (
    '{model} {"a": 1}|m|{other}|{'
  )


@pytest.mark.parametrize(
  'name, options, wanted',
  [
    ('nothing', {}, 'unknown harness'),
    ('pi', {'colour': 'red'}, 'colour'),
    ('pi', {'dialect': 'smoke'}, 'dialect'),
    ('codex', {'variant': 'bare'}, 'trimmed'),
    ('template', {'name': 'x', 'dialect': 'chat', 'argv': ()}, 'argv'),
    ('template', {'name': 'x', 'dialect': 'chat', 'argv': ('a',)}, 'version'),
  ],
)
def test_mistakes_are_named(name, options, wanted):
  with pytest.raises(HarnessError, match=wanted):
    harness.load(name, **options)


def test_every_pin_names_one_version_and_no_host():
  for folder in sorted(install.PINS.iterdir()):
    if not folder.is_dir():
      continue
    package = install.package(folder.name)
    assert package.version[0].isdigit()
    for file in folder.iterdir():
      text = file.read_text()
      assert 'resolved' not in text and '://registry' not in text, file
    if package.kind == 'npm':
      lock = json.loads((folder / 'package-lock.json').read_text())
      entries = [v for k, v in lock['packages'].items() if k]
      assert all(e.get('integrity') for e in entries if may_be_installed(e))
      assert missing(lock) == [], f'npm ci would refuse the lock of {folder}'


def may_be_installed(entry):
  """Whether `npm ci` on Linux x64 (glibc) would fetch it."""
  if entry.get('inBundle'):
    return False
  wanted = {'os': 'linux', 'cpu': 'x64', 'libc': 'glibc'}
  return not entry.get('optional') or all(
    value in entry.get(key, [value]) for key, value in wanted.items()
  )


def missing(lock):
  """What an entry depends on and no entry of the lock stands for."""
  packages = lock['packages']
  found = []
  for place, entry in packages.items():
    names = {**entry.get('dependencies', {})}
    names |= entry.get('optionalDependencies', {})
    for name in names:
      folder = place
      while f'{folder}/node_modules/{name}'.lstrip('/') not in packages:
        if not folder:
          found.append(f'{place}: {name}')
          break
        folder = folder.rpartition('node_modules/')[0].rstrip('/')
  return found


async def test_a_users_own_harness_by_a_config_entry(roll, tmp_path):
  program = tmp_path / 'toy'
  program.mkdir()
  (program / 'toy.py').write_text(TOY)
  for folder in (program, *list(program.parents)[:4]):
    if folder.owner() == 'root' and str(folder).startswith('/tmp/'):
      folder.chmod(folder.stat().st_mode | 0o055)
  config = experiment.default_config('t')
  config.harnesses = {
    'toy': {
      'name': 'template',
      'options': {
        'dialect': 'chat',
        'argv': ('python3', '/opt/toy/toy.py', '{base_url}', '{prompt}'),
        'readonly': ((str(program), '/opt/toy'),),
        'env': {'TOY': '{model}'},
        'fixed_version': '0.1',
      },
    }
  }
  [toy] = parts.make_harnesses(config_lib.build(experiment.Experiment, config))
  rollout = await roll(toy, [call('sh', line='printf hi > out.txt'), 'Done.'])
  assert (rollout.outcome, rollout.reward) == ('ok', 1.0), rollout.reason
  assert (rollout.harness, rollout.harness_version) == ('toy', '0.1')
  assert len(rollout.calls) == 2


def test_two_entries_of_one_name_are_refused():
  config = experiment.default_config('t')
  config.harnesses = {
    'a': {'name': 'pi', 'options': {}},
    'b': {'name': 'pi', 'options': {'lean': True}},
  }
  built = config_lib.build(experiment.Experiment, config)
  with pytest.raises(ConfigError, match='harnesses.b: two entries'):
    parts.make_harnesses(built)
  config.harnesses = {
    'a': {'name': 'codex', 'options': {}},
    'b': {'name': 'codex', 'options': {'variant': 'trimmed'}},
  }
  built = config_lib.build(experiment.Experiment, config)
  names = [found.name for found in parts.make_harnesses(built)]
  assert names == ['codex', 'codex_trimmed']


async def test_agent_loop(roll):
  steps = [
    call('list'),
    call('write', path='out.txt', content='ho'),
    call('edit', path='out.txt', old='ho', new='hx'),
    call('read', path='out.txt'),
    call('search', query='hx'),
    call('python', code='open("out.txt", "w").write("hi")'),
    call('bash', command='cat out.txt'),
    call('nonsense'),
    'First done.',
    'All done.',
  ]
  task = make_task('Write hi into out.txt.', 'Anything else?')
  rollout = await roll(harness.load('agent_loop'), steps, task)
  assert (rollout.outcome, rollout.reward) == ('ok', 1.0), rollout.reason
  assert len(rollout.calls) == len(steps)
  printed = rollout.extra['printed'].splitlines()
  assert printed[0] == 'list: data/'
  assert 'search: ./out.txt:1: hx' in printed
  assert 'bash: hi' in printed
  assert any(p.startswith('nonsense: error') for p in printed)


async def test_a_harness_of_one_message_says_so(roll):
  found = harness.load('mini_swe')
  assert not found.multi_turn
  rollout = await roll(found, ['Hello.'], make_task('One.', 'Two.'))
  assert rollout.outcome == 'infra_error' and not rollout.calls
  assert rollout.reason.startswith(
    'mini_swe takes one user message a session, the task has 2'
  )
