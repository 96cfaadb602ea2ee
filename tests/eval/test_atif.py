"""ATIF documents: exact tokens, once-only steps, the format's own rules."""

import json
import os
import pathlib
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

from clawjax.eval import atif

_TEXT = {'type': 'string'}
_COUNT = {'type': 'integer', 'minimum': 0}
_IDS = {'type': 'array', 'items': _COUNT}


def _object(required, **properties):
  return {
    'type': 'object',
    'additionalProperties': False,
    'required': required,
    'properties': {**properties, 'extra': {'type': 'object'}},
  }


# The format's fields, restated from its specification; no other key is allowed
# outside `extra`.
_STEP = _object(
  ['step_id', 'source', 'message'],
  step_id={'type': 'integer', 'minimum': 1},
  timestamp=_TEXT,
  source={'enum': ['system', 'user', 'agent']},
  model_name=_TEXT,
  message=_TEXT,
  reasoning_content=_TEXT,
  tool_calls={
    'type': 'array',
    'items': _object(
      ['tool_call_id', 'function_name', 'arguments'],
      tool_call_id=_TEXT,
      function_name=_TEXT,
      arguments={'type': 'object'},
    ),
  },
  observation=_object(
    ['results'],
    results={
      'type': 'array',
      'items': _object([], source_call_id=_TEXT, content=_TEXT),
    },
  ),
  metrics=_object(
    [],
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    cached_tokens=_COUNT,
    prompt_token_ids=_IDS,
    completion_token_ids=_IDS,
    logprobs={'type': 'array', 'items': {'type': 'number', 'maximum': 0}},
  ),
  is_copied_context={'type': 'boolean'},
  llm_call_count=_COUNT,
)
_SCHEMA = _object(
  ['schema_version', 'agent', 'steps'],
  schema_version={'const': 'ATIF-v1.8'},
  session_id=_TEXT,
  trajectory_id=_TEXT,
  agent=_object(
    ['name', 'version'],
    name=_TEXT,
    version=_TEXT,
    model_name=_TEXT,
    tool_definitions={'type': 'array', 'items': {'type': 'object'}},
  ),
  steps={'type': 'array', 'minItems': 1, 'items': _STEP},
  final_metrics=_object(
    [],
    total_prompt_tokens=_COUNT,
    total_completion_tokens=_COUNT,
    total_cached_tokens=_COUNT,
    total_steps=_COUNT,
  ),
  continued_trajectory_ref=_TEXT,
  subagent_trajectories={'type': 'array', 'items': {'$ref': '#'}},
)


def _check(document):
  """The format's rules, those that a schema cannot say included."""
  jsonschema.validate(document, _SCHEMA)
  for number, step in enumerate(document['steps'], 1):
    assert step['step_id'] == number
    if step['source'] != 'agent':
      assert not {'tool_calls', 'metrics', 'reasoning_content'} & step.keys()
    if step.get('llm_call_count') == 0:
      assert not {'metrics', 'reasoning_content'} & step.keys()
    calls = {c['tool_call_id'] for c in step.get('tool_calls', ())}
    for result in step.get('observation', {}).get('results', ()):
      assert result.get('source_call_id') in calls | {None}
  embedded = document.get('subagent_trajectories', [])
  names = [d['trajectory_id'] for d in embedded]
  assert len(set(names)) == len(names)
  for sub in embedded:
    _check(sub)


def test_a_plain_rollout(talk):
  rollout, tokenizer = talk.plain()
  (document,) = atif.documents(
    rollout, tokenizer, model_name='tiny', advantage=0.7
  )
  _check(document)
  system, user, first, second = document['steps']
  assert system['source'] == 'system' and user['message'] == talk.USER.content
  assert first['reasoning_content'] == 'look first'
  assert [r['source_call_id'] for r in first['observation']['results']] == [
    c['tool_call_id'] for c in first['tool_calls']
  ]
  assert first['timestamp'] == '2023-11-14T22:13:20.500000+00:00'
  assert second['message'] == 'Two files.'
  assert document['extra']['reward'] == 0.5
  assert document['extra']['advantage'] == 0.7
  assert document['agent']['model_name'] == 'tiny'
  first_call, second_call = rollout.calls
  assert document['final_metrics'] == {
    'total_prompt_tokens': len(first_call.prompt_ids)
    + len(second_call.prompt_ids),
    'total_completion_tokens': len(first_call.sample.token_ids)
    + len(second_call.sample.token_ids),
    'total_cached_tokens': 14,
    'total_steps': 4,
  }


@pytest.mark.parametrize('prompt_ids', ['inserted', 'full'])
def test_tokens_survive_the_round_trip(talk, prompt_ids):
  rollout, tokenizer = talk.plain()
  (document,) = atif.documents(rollout, tokenizer, prompt_ids=prompt_ids)
  back = atif.tokens(json.loads(json.dumps(document)))
  assert list(back) == ['c0', 'c1']
  for call in rollout.calls:
    found = back[call.call_id]
    np.testing.assert_array_equal(found.prompt_ids, call.prompt_ids)
    np.testing.assert_array_equal(found.token_ids, call.sample.token_ids)
    np.testing.assert_array_equal(found.logprobs, call.sample.logprobs)
    assert found.logprobs.dtype == np.float32


def test_forks_are_written_once(talk):
  rollout, tokenizer = talk.forked()
  documents = atif.documents(rollout, tokenizer)
  for document in documents:
    _check(document)
  a, b, c = documents

  def copied(document):
    return [
      s['extra']['call_id']
      for s in document['steps']
      if s.get('is_copied_context') and 'metrics' in s
    ]

  def own(document):
    return [
      s['extra']['call_id']
      for s in document['steps']
      if not s.get('is_copied_context') and 'metrics' in s
    ]

  assert (own(a), copied(a)) == (['c0', 'c2', 'c4'], [])
  assert (own(b), copied(b)) == (['c5'], ['c0'])
  assert (own(c), copied(c)) == (['c7'], [])
  # The subagent is embedded, the retry and the compaction are left out.
  (sub,) = a['subagent_trajectories']
  assert own(sub) == ['c3']
  # After the compaction the last document goes on in the next.
  assert 'continued_trajectory_ref' not in a
  assert b['continued_trajectory_ref'] == 'train_3_t_pi_0_7.json'
  assert atif.tokens(b)['c5'].prompt_ids.tolist() == (
    rollout.calls[5].prompt_ids.tolist()
  )


def test_an_unknown_reward_is_absent(talk):
  rollout, tokenizer = talk.plain(reward=None, outcome='infra_error')
  (document,) = atif.documents(rollout, tokenizer)
  assert 'reward' not in document['extra']
  assert document['extra']['outcome'] == 'infra_error'


def test_nothing_captured_gives_no_document(talk):
  b = talk.Builder()
  assert atif.documents(b.rollout(), b.tokenizer) == []


def _harbor_python():
  named = os.environ.get('CLAWJAX_HARBOR_PYTHON')
  if named:
    return named
  try:
    import harbor  # noqa: F401
  except Exception:
    pytest.skip('set CLAWJAX_HARBOR_PYTHON to a Python with harbor installed')
  return sys.executable


def test_harbor_accepts_our_files(talk, tmp_path):
  python = _harbor_python()
  for name, make in (('plain', talk.plain), ('forked', talk.forked)):
    rollout, tokenizer = make()
    atif.write(tmp_path / name, rollout, tokenizer, model_name='tiny')
  files = sorted(map(str, tmp_path.rglob('*.json')))
  assert len(files) == 4
  script = pathlib.Path(__file__).with_name('validate_atif.py')
  done = subprocess.run(
    [python, str(script), *files], capture_output=True, text=True, timeout=300
  )
  assert done.returncode == 0, done.stdout + done.stderr
