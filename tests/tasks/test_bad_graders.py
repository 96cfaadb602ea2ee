"""Graders that misbehave, in the real sandbox: a named error, never a 0.

Each runs beside a sound one, which must not notice. The rules are in
`tasks.verifier`; that loaders name broken sets is in `test_formats`.
"""

import asyncio

import pytest

from clawjax import errors, sandbox, types
from clawjax.sandbox import base
from clawjax.tasks import verifier

GOOD = 'print(\'{"reward": 0.25}\')'
# name -> (code, part of the message)
BAD = {
  'silent': ('', 'printed nothing'),
  'not_a_number': ('print(\'{"reward": NaN}\')', 'finite'),
  'infinite': ('print(\'{"reward": Infinity}\')', 'finite'),
  'too_much': ('print(\'{"reward": 2}\')', 'from 0 to 1'),
  'garbage_and_exit_0': ('print("all tests passed!")', 'wanted JSON'),
  'binary': ('import os; os.write(1, bytes(range(256)))', 'wanted JSON'),
  'crash': ('1 / 0', 'ended with status 1; stderr ends'),
  'good_then_crash': (GOOD + '; raise SystemExit(3)', 'status 3'),
  'hang': ('import time; time.sleep(600)', 'ran past 3 s'),
  'hang_after_answer': (
    f'{GOOD}; import sys, time; sys.stdout.flush(); time.sleep(600)',
    'ran past 3 s',
  ),
  'fork_bomb': (
    'import os\nwhile True:\n  os.fork()',
    '',  # the limit on processes or the clock, whichever comes first
  ),
  'memory': (
    'x = bytearray(3 << 30)\nfor i in range(0, len(x), 4096): x[i] = 1',
    '',  # a MemoryError of its own, or the kernel's
  ),
  'flood': (
    'import sys\nfor _ in range(200): sys.stdout.write("x" * 65536)',
    'printed more than is read',
  ),
}
# A child that outlives the grader and goes on printing changes nothing.
ORPHAN = """
import os, sys, time
print('{"reward": 0.25}')
sys.stdout.flush()
if not os.fork():
  os.setsid()
  while True:
    time.sleep(0.5)
    print('{"reward": 1}', flush=True)
os._exit(0)
"""


def task_of(name, code):
  return types.Task(
    f't/{name}',
    ('x',),
    verifier=types.Verifier(
      {'g.py': code.encode()}, ('python3', '-I', '/verifier/g.py'), timeout_s=3
    ),
  )


@pytest.fixture
async def bwrap():
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(probe.text)
  yield backend
  await backend.close()


async def _verify(backend, name, code):
  limits = base.Limits(
    memory_bytes=256 * base.MIB, processes=32, output_bytes=base.MIB
  )
  return await verifier.verify(
    task_of(name, code), {'a.txt': b'x'}, backend, limits=limits
  )


@pytest.mark.parametrize('name', BAD)
async def test_a_bad_grader_is_an_error_of_its_task(bwrap, name):
  code, text = BAD[name]
  bad, good = await asyncio.gather(
    _verify(bwrap, name, code),
    _verify(bwrap, 'good', GOOD.replace('print', 'import time; print')),
    return_exceptions=True,
  )
  assert isinstance(bad, errors.VerifierError), bad
  assert str(bad).startswith(f't/{name}: ') and text in str(bad)
  assert good.reward == 0.25


async def test_a_child_of_a_grader_has_no_say(bwrap):
  score = await _verify(bwrap, 'orphan', ORPHAN)
  assert score.reward == 0.25
