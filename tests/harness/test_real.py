"""Every harness for real: the pinned program, in a sandbox, through the proxy.

The model is scripted: one tool call that writes a file, then a last word. What
is checked is what training needs: the file is there, every answer was captured,
and each later prompt extends the ids of the earlier one together with its
answer, so nothing sampled is lost.
"""

import numpy as np
import pytest

from clawjax import harness
from clawjax.chat import tokenizers
from clawjax.rollout import conversation
from tests.harness.conftest import call
from tests.rollout.hi import make_task

WRITE = 'printf hi > out.txt'
SHELL = {
  'pi': call('bash', command=WRITE),
  'claude_code': call('Bash', command=WRITE, description='write'),
  'codex': call('exec_command', cmd=WRITE),
  'openclaw': call('exec', command=WRITE),
  'qwen_code': call('run_shell_command', command=WRITE, is_background=False),
  'opencode': call('bash', command=WRITE, description='write'),
  'mini_swe': call('bash', command=WRITE),
}
SUBMIT = call('bash', command='echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT')
FAST = [
  ('pi', {}),
  ('pi', {'dialect': 'messages'}),
  ('pi', {'dialect': 'responses', 'lean': True, 'tools': ('bash',)}),
  ('claude_code', {'variant': 'bare'}),
  ('codex', {'variant': 'trimmed'}),
  ('openclaw', {'variant': 'lean'}),
]
SLOW = [
  ('claude_code', {}),
  ('codex', {}),
  ('openclaw', {}),
  ('openclaw', {'variant': 'lean', 'dialect': 'responses'}),
  ('qwen_code', {}),
  ('qwen_code', {'variant': 'bare'}),
  ('opencode', {}),
  ('opencode', {'dialect': 'messages'}),
  ('mini_swe', {}),
]


def installed(name, options):
  found = harness.load(name, **options)
  if not found.installed():
    pytest.skip(f'{name} is not installed: python -m clawjax.harness.install')
  return found


def extends(calls):
  """Whether each prompt begins with the one before and its whole answer."""
  for old, new in zip(calls, calls[1:], strict=False):
    head = np.concatenate([old.prompt_ids, old.sample.token_ids])
    if not np.array_equal(new.prompt_ids[: len(head)], head):
      return False
  return True


# Of a program that takes its time to start, on a machine that has other work.
PATIENT_S = 1500


async def check(roll, backend, name, options):
  found = installed(name, options)
  await found.prepare(backend)
  last = SUBMIT if name == 'mini_swe' else 'It is done.'
  task = make_task(time_limit_s=PATIENT_S)
  rollout = await roll(found, [SHELL[name], last], task)
  assert (rollout.outcome, rollout.reward) == ('ok', 1.0), (
    rollout.reason,
    rollout.extra['printed'][-2000:],
  )
  assert len(rollout.calls) == 2, [c.text for c in rollout.calls]
  assert all(c.status == 'ok' and c.role == 'main' for c in rollout.calls)
  assert rollout.extra['served'] == rollout.extra['captured'] == 2
  assert extends(rollout.calls)
  assert rollout.harness_version == found.version
  return rollout


def ids(case):
  return '-'.join([case[0], *map(str, case[1].values())])


@pytest.mark.parametrize('case', FAST, ids=ids)
async def test_fast(roll, backend, case):
  await check(roll, backend, *case)


@pytest.mark.slow
@pytest.mark.parametrize('case', SLOW, ids=ids)
async def test_slow(roll, backend, case):
  await check(roll, backend, *case)


MULTI = [
  ('pi', {}),
  ('claude_code', {'variant': 'bare'}),
  ('codex', {'variant': 'trimmed'}),
  ('openclaw', {'variant': 'lean'}),
  ('qwen_code', {}),
  ('qwen_code', {'variant': 'bare'}),
  ('opencode', {}),
]


@pytest.mark.slow
@pytest.mark.parametrize('case', MULTI, ids=ids)
async def test_two_user_messages(roll, case):
  name, options = case
  task = make_task(
    'First: say hello.',
    'Second: write hi into out.txt.',
    time_limit_s=PATIENT_S,
  )
  found = installed(name, options)
  rollout = await roll(found, ['Hello.', SHELL[name], 'Done.'], task)
  assert (rollout.outcome, rollout.reward) == ('ok', 1.0), (
    rollout.reason,
    rollout.extra['printed'][-2000:],
  )
  commands = found.plan(task.turns, base_url='http://h/r/k').argv
  assert rollout.extra['turns'] == len(commands)
  assert len(rollout.calls) == 3, [c.text for c in rollout.calls]
  assert extends(rollout.calls)
  # One session: the model has the first message and its answer before it.
  said = conversation.transcript(rollout.calls, tokenizers.load('tiny'))
  asked = [m.content for m in said if m.role == 'user']
  first, second = (
    [i for i, text in enumerate(asked) if turn in text] for turn in task.turns
  )
  assert len(first) == len(second) == 1 and first < second, asked
  answers = [m.content for m in said if m.role == 'assistant']
  assert answers[0] == 'Hello.' and answers[-1] == 'Done.'
