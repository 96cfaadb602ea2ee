"""Records Claude Code's sub-agent and compaction traffic, for the role tests.

  python tests/golden/claude_code.py        # writes claude_code.json beside it

The real program is driven by a scripted model: it starts a sub-agent, runs a
command, is told `/compact`, and goes on. What is kept of each request is its
structure and the texts that are ours (prompts, answers, outputs); every other
stretch of text, which is the harness's own, becomes its length and a digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

TURNS = (
  'Find out how many lines notes.txt has and write the number to out.txt.',
  '/compact',
  'Now write the word done to end.txt.',
)
NOTES = 'first line\nsecond line\nthird line\n'
ASK = 'Count the lines of notes.txt in this folder and answer with the number.'
FOUND = 'The file notes.txt has exactly three lines.'
SUMMARY = (
  'The user wants the number of lines of notes.txt in out.txt. A helper '
  'counted three, and printf 3 > out.txt wrote the number.'
)


def call(name: str, **arguments: Any) -> str:
  """A tool call as the model writes it."""
  body = json.dumps({'name': name, 'arguments': arguments})
  return f'<tool_call>\n{body}\n</tool_call>'


ANSWERS = (
  # The main conversation asks a helper.
  call(
    'Agent',
    description='count lines',
    prompt=ASK,
    subagent_type='general-purpose',
  ),
  # The helper's own two calls.
  call('Bash', command='wc -l < notes.txt', description='count'),
  FOUND,
  # The main conversation again, to its end.
  call('Bash', command='printf 3 > out.txt', description='write'),
  'The number is in out.txt.',
  # `/compact`.
  f'<analysis>\nShort enough.\n</analysis>\n\n<summary>\n{SUMMARY}\n</summary>',
  # The conversation that begins with the summary.
  call('Bash', command='printf done > end.txt', description='write'),
  'All is done.',
)
_TELLING = 16  # Characters, as in `proxy.roles`.
# Phrases that tell a summary request, as `proxy.roles` knows them.
PHRASES = ('create a detailed summary of the conversation',)


def ours(texts: tuple[str, ...]) -> re.Pattern[str]:
  """Matches what is our own text; longer first."""
  found = {*texts, *PHRASES}
  for answer in ANSWERS:
    for block in re.findall(r'<tool_call>\n(.*)\n</tool_call>', answer):
      found.update(json.loads(block)['arguments'].values())
    if '<tool_call>' not in answer:
      found.add(answer)
  # Words as short as `write` stand in the harness's own texts as well.
  telling = {text for text in {SUMMARY, *found} if len(text) >= _TELLING}
  ordered = sorted(telling, key=len, reverse=True)
  return re.compile('(' + '|'.join(map(re.escape, ordered)) + ')')


def masked(text: str, own: re.Pattern[str]) -> str:
  """Text with the harness's own stretches reduced to size and digest."""
  parts = own.split(text)
  for i in range(0, len(parts), 2):
    if parts[i].strip():
      digest = hashlib.blake2b(parts[i].encode(), digest_size=4).hexdigest()
      parts[i] = f'[{len(parts[i])} characters {digest}]'
  return ''.join(parts)


def plain(value: Any, own: re.Pattern[str], key: str = '') -> Any:
  """A message without the harness's own texts."""
  if isinstance(value, dict):
    return {k: plain(v, own, k) for k, v in value.items()}
  if isinstance(value, list):
    return [plain(v, own, key) for v in value]
  names = ('type', 'role', 'name', 'id', 'tool_use_id', 'signature')
  names += ('description', 'subagent_type')  # Of our own calls.
  if isinstance(value, str) and key not in names:
    return masked(value, own)
  return value


def request(body: Mapping[str, Any], own: re.Pattern[str]) -> dict[str, Any]:
  """What the fixture keeps of one request."""
  kept = {k: body[k] for k in ('max_tokens', 'stream', 'thinking') if k in body}
  kept |= {k: plain(body.get(k), own) for k in ('system', 'messages')}
  kept['tools'] = [
    {'name': t['name'], 'input_schema': {'type': 'object', 'properties': {}}}
    for t in body.get('tools', ())
  ]
  return {'model': 'policy', **kept}


async def record() -> dict[str, Any]:
  """Drives the program and gives the fixture."""
  from clawjax import harness
  from clawjax.rollout import conformance

  made = harness.load('claude_code')
  made.env['CLAUDE_CODE_DISABLE_BACKGROUND_TASKS'] = '1'
  with tempfile.TemporaryDirectory() as folder:
    calls, code, *_ = await conformance.drive(
      made,
      ANSWERS,
      TURNS,
      timeout_s=1800,
      bodies=folder,
      files={'notes.txt': NOTES},
    )
    files = sorted(pathlib.Path(folder).iterdir())
    bodies = [json.loads(f.read_bytes()) for f in files]
  print(f'rc {code}, {len(bodies)} requests', file=sys.stderr)
  for c in calls:
    print(c.index, c.role, c.role_reason, c.text[:60], file=sys.stderr)
  own = ours(TURNS)
  return {
    'harness': f'claude_code {made.version}',
    'answers': list(ANSWERS),
    'bodies': [request(b, own) for b in bodies],
  }


if __name__ == '__main__':
  text = json.dumps(asyncio.run(record()), indent=1, ensure_ascii=False)
  pathlib.Path(__file__).with_suffix('.json').write_text(text + '\n')
