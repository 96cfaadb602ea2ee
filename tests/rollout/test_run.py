"""One rollout: the real pi in a real sandbox, and every fate on a fake one."""

import asyncio
import dataclasses

import pytest

from clawjax import harness, sandbox
from clawjax.errors import SandboxError
from clawjax.harness import base as harness_base
from clawjax.rollout import run
from clawjax.sandbox import base

BASH = {'name': 'bash', 'arguments': {'command': 'printf hi > out.txt'}}


async def test_pi_in_bwrap(task, stub, socket_dir, tmp_path):
  pi = harness.load('pi', lean=True, tools=('bash',), system_prompt='Help.')
  if not pi.installed():
    pytest.skip('pi is not installed (clawjax.harness.pi.Pi().install())')
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(probe.text)
  proxy = await stub([BASH, 'done'])
  rollout = await run.run_rollout(
    task,
    harness=pi,
    backend=backend,
    proxy=proxy,
    socket_dir=socket_dir,
    rollout_id='train/0/hi/pi/0',
    out_dir=tmp_path,
  )
  await backend.close()
  assert (rollout.outcome, rollout.reason) == ('ok', '')
  assert rollout.reward == 1.0 and rollout.checks == {'out': 1.0}
  assert len(rollout.calls) == 2
  assert rollout.harness_version == '1.6.0'
  # What pi asked: one system line, the user's text, the bash tool alone.
  first = proxy.bodies[0]
  assert first['messages'][1]['content'][0]['text'] == task.instruction
  assert [t['function']['name'] for t in first['tools']] == ['bash']
  assert (tmp_path / rollout.telemetry).read_bytes() == b'done\n'
  for stage in ('create', 'harness', 'settle', 'verify', 'destroy', 'total'):
    assert rollout.timings[stage] >= 0


@dataclasses.dataclass(frozen=True)
class Toy:
  """A harness without a program, for the fake sandbox."""

  name = 'toy'
  version = '1'
  dialect = 'chat'
  rules = ()
  multi_turn = True

  def plan(self, turns, *, base_url, model='policy'):
    return harness_base.Plan(
      files={'cfg': b'1'},
      argv=tuple(('toy', t) for t in turns),
      env={},
      ok_codes=(0, 4),
    )


@pytest.fixture
def fate(task, stub, socket_dir):
  """Runs a rollout whose harness does `act(command, proxy)`."""

  async def go(act, *, fail=lambda stage: None, verdict=None, **changes):
    proxy = await stub([])

    def answer(command):
      if command.argv[0] == 'toy':
        return act(command, proxy)
      good = command.files.get('/workspace/out.txt') == b'hi'
      return verdict or base.ExecResult(0, f'{{"reward": {good:d}}}'.encode())

    backend = sandbox.load('fake', answer=answer, fail=fail)
    rollout = await run.run_rollout(
      dataclasses.replace(task, **changes),
      harness=Toy(),
      backend=backend,
      proxy=proxy,
      socket_dir=socket_dir,
      rollout_id='r',
    )
    assert proxy.closed == ['r']
    assert not backend.live
    return rollout

  return go


def good(command, proxy):
  proxy.add('r')
  command.files['/workspace/out.txt'] = b'hi'
  return base.ExecResult(0)


async def test_ok(fate):
  rollout = await fate(good)
  assert rollout.outcome == 'ok' and rollout.reward == 1 and rollout.valid


async def test_timeout_is_scored(fate):
  async def slow(command, proxy):
    good(command, proxy)
    await asyncio.sleep(60)

  rollout = await fate(slow, time_limit_s=0.05)
  assert rollout.outcome == 'timeout' and rollout.reward == 1 and rollout.valid


async def test_non_zero_after_a_call_is_scored(fate):
  def act(command, proxy):
    good(command, proxy)
    return base.ExecResult(3, stderr=b'boom')

  rollout = await fate(act)
  assert rollout.outcome == 'harness_error' and rollout.reward == 1
  assert 'boom' in rollout.reason and '3' in rollout.reason


async def test_an_exit_code_that_is_no_error(fate):
  """It is the harness's word for 'ended by itself'."""

  def act(command, proxy):
    good(command, proxy)
    return base.ExecResult(4)

  rollout = await fate(act, turns=('one', 'two'))
  assert (rollout.outcome, rollout.reward) == ('ok', 1)
  assert (rollout.extra['turns'], rollout.extra['exit_code']) == (2, 4)


async def test_no_call_is_a_fault_of_ours(fate):
  rollout = await fate(lambda command, proxy: base.ExecResult(1))
  assert rollout.outcome == 'infra_error' and rollout.reward is None


@pytest.mark.parametrize('changes', [{'time_limit_s': 0.05}, {}])
async def test_a_limit_before_the_first_answer_is_a_fault_of_ours(
  fate, changes
):
  """A reward for it would move the baseline of those that were heard."""

  async def act(command, proxy):
    if not changes:
      return base.ExecResult(137, out_of_memory=True)
    proxy.add('r', 'aborted')
    await asyncio.sleep(60)

  rollout = await fate(act, **changes)
  assert rollout.outcome == 'infra_error' and not rollout.valid
  assert rollout.reason.endswith('the model was never heard')


async def test_sandbox_dies(fate):
  def act(command, proxy):
    proxy.add('r')
    raise SandboxError('gone')

  rollout = await fate(act)
  assert rollout.outcome == 'infra_error' and not rollout.valid
  assert rollout.reason == 'gone' and len(rollout.calls) == 1


async def test_no_sandbox(fate):
  def fail(stage):
    if stage == 'create':
      raise SandboxError('no room')

  rollout = await fate(good, fail=fail)
  assert rollout.outcome == 'infra_error' and rollout.reason == 'no room'


async def test_engine_fault_at_the_end(fate):
  def act(command, proxy):
    good(command, proxy)
    proxy.add('r', 'error', 'crashed')
    return base.ExecResult(0)

  rollout = await fate(act)
  assert rollout.outcome == 'infra_error' and 'crashed' in rollout.reason


async def test_engine_fault_that_was_retried(fate):
  def act(command, proxy):
    proxy.add('r', 'error', 'busy')
    return good(command, proxy)

  assert (await fate(act)).outcome == 'ok'


async def test_verifier_says_nothing(fate):
  rollout = await fate(good, verdict=base.ExecResult(1, b'', b'Traceback'))
  assert rollout.outcome == 'verifier_error' and rollout.reward is None


async def test_turns_run_in_one_sandbox(fate):
  seen = []

  def act(command, proxy):
    seen.append((command.argv[1], sorted(command.files)))
    return good(command, proxy)

  rollout = await fate(act, turns=('one', 'two'))
  assert [s[0] for s in seen] == ['one', 'two']
  assert '/workspace/out.txt' in seen[1][1]
  assert rollout.extra['turns'] == 2
