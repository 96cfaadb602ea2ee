"""Conversations as chat JSONL lines."""

import json

from clawjax.eval import chat_jsonl


def test_chat_jsonl(talk, tmp_path):
  rollout, tokenizer = talk.plain()
  path = tmp_path / 'chat.jsonl'
  unscored, _ = talk.plain(reward=None, outcome='infra_error')
  poor, _ = talk.plain(reward=0.25)
  count = chat_jsonl.write(
    path, [rollout, unscored, poor], tokenizer, least_reward=0.5
  )
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  assert count == len(lines) == 1
  line = lines[0]
  assert [m['role'] for m in line['messages']] == [
    *('system', 'user', 'assistant', 'tool', 'tool', 'assistant')
  ]
  first = line['messages'][2]
  assert first['reasoning_content'] == 'look first'
  assert first['tool_calls'][1] == {
    'id': 'call_1',
    'type': 'function',
    'function': {'name': 'bash', 'arguments': {'command': 'pwd'}},
  }
  assert line['messages'][4]['tool_call_id'] == 'call_1'
  assert line['metadata']['reward'] == 0.5
  assert line['tools'][0]['function']['name'] == 'bash'


def test_arguments_as_text(talk):
  rollout, tokenizer = talk.plain()
  (line,) = chat_jsonl.lines(rollout, tokenizer, arguments='text')
  call = line['messages'][2]['tool_calls'][0]['function']
  assert call['arguments'] == '{"command": "ls"}'
