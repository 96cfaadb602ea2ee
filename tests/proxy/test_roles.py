"""Roles on traffic that Claude Code made: a sub-agent, then `/compact`.

`tests/golden/claude_code.json` holds its requests, `claude_code.py` beside it
made them. The expected roles are read off what the conversation is about, not
off our output.
"""

import json
import pathlib

import pytest

from clawjax.proxy import accounting, roles
from tests.proxy.conftest import call, extends

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / 'golden'
ASKED = 'Write the report into out.txt please.'


@pytest.fixture
def recorded():
  return json.loads((GOLDEN / 'claude_code.json').read_text())


async def test_claude_codes_subagent_and_compaction(bench, recorded):
  first = 'Find out how many lines notes.txt has and write the number to'
  opened = {'metadata': {'instruction': first}, 'rules': ('billing',)}
  async with bench(recorded['answers'], window=1 << 20, opened=opened) as b:
    for body in recorded['bodies']:
      answer = await b.post('messages', body)
      assert answer.status_code == 200, answer.text
    calls = b.calls()
    said = [(c.role, c.text.split('"name": "')[-1][:12]) for c in calls]
    assert said == [
      ('main', 'Agent", "arg'),
      ('subagent', 'Bash", "argu'),
      ('subagent', 'The file not'),
      ('main', 'Bash", "argu'),
      ('main', 'The number i'),
      ('compaction', '<analysis>\nS'),
      ('compaction', 'Bash", "argu'),
      ('compaction', 'All is done.'),
    ]
    # The question for a summary leaves the last answer out.
    for later, earlier in ((2, 1), (3, 0), (4, 3), (5, 3), (7, 6)):
      assert extends(calls[later], calls[earlier]), (later, earlier)
    every = {c.role for c in calls}
    account = accounting.account(calls, roles=tuple(every))
    assert account.fraction == 1.0 and account.inexact == 0


@pytest.mark.parametrize(
  'summary, reason',
  [
    # The summary names a command: the longer text says what it is.
    ('We ran grep -c x /data/names.txt and found seven, as wanted.', 'answer'),
    # Thinking aloud before the summary does not come back.
    (
      '<analysis>\nhm\n</analysis>\n<summary>\nSeven names were counted in '
      'all, with grep -c x /data/names.txt.\n</summary>',
      'answer',
    ),
    # A client may reword it; what it says itself is enough.
    ('Short.', 'continues'),
  ],
)
async def test_what_follows_a_compaction(bench, summary, reason):
  command = 'grep -c x /data/names.txt'
  script = [call(command), summary, 'Done.']
  opened = {'metadata': {'instruction': ASKED}}
  async with bench(script, opened=opened) as b:
    await b.post(
      'messages',
      {
        'max_tokens': 99,
        'messages': [{'role': 'user', 'content': ASKED}],
        'tools': [{'name': 'bash', 'input_schema': {'type': 'object'}}],
      },
    )
    ask = 'Your task is to create a detailed summary of the conversation so far'
    await b.post(
      'messages',
      {'max_tokens': 99, 'messages': [{'role': 'user', 'content': ask}]},
    )
    told = summary.split('<summary>')[-1].removesuffix('</summary>').strip()
    opening = (
      'This session is being continued from a previous conversation.\n'
      f'Summary:\n{told} {command}'
    )
    await b.post(
      'messages',
      {'max_tokens': 99, 'messages': [{'role': 'user', 'content': opening}]},
    )
    assert [c.role for c in b.calls()] == ['main', 'compaction', 'compaction']
    assert reason in b.calls()[2].role_reason


async def test_a_task_that_quotes_an_answer_is_a_subagents(bench):
  """The task is longer than the answer in it."""
  answer = 'There are seven names in the list.'
  task = f'Check this claim and say yes or no: "{answer}"'
  script = [answer, call(task), 'Yes.']
  opened = {'metadata': {'instruction': ASKED}}
  async with bench(script, opened=opened) as b:
    said = {'role': 'user', 'content': ASKED}
    history = [said, {'role': 'assistant', 'content': answer}]
    history.append({'role': 'user', 'content': 'Really?'})
    tools = [{'name': 'bash', 'input_schema': {'type': 'object'}}]
    for messages in ([said], history, [{'role': 'user', 'content': task}]):
      body = {'max_tokens': 99, 'messages': messages, 'tools': tools}
      assert (await b.post('messages', body)).status_code == 200
    assert [c.role for c in b.calls()] == ['main', 'main', 'subagent']


def test_what_asks_for_a_summary():
  for text in (
    'Your task is to create a detailed summary of the conversation so far',
    'You are performing a CONTEXT CHECKPOINT COMPACTION.',
    'Summarise this conversation for whoever goes on with it',
    'Please summarize the above conversation.',
  ):
    assert roles._SUMMARISE.search(text), text
  assert not roles._SUMMARISE.search('Summarise the report in names.txt')
