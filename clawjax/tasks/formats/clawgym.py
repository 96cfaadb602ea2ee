"""ClawGym task sets: a folder of task folders, or JSONL / a JSON array.

Folder:  TASK/data_entry.json, TASK/input_files/..., TASK/reward/{reward.sh,
check.py}.  Lines: {prompt, input_files: [{file_path, content}], hook_code,
rules, ...}; entries below `reward/` are the hidden grader.

The workspace is `/workspace` here, whatever path the set was made for; the
graders take it as an argument. The folder form has neither rubrics nor domains
(a `domains.json` of the user, {task id: domain}, adds the latter), so its score
is code-only and must not be set beside hybrid scores.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax import types
from clawjax.tasks import drivers, rubric
from clawjax.tasks.formats import report, tree
from clawjax.tasks.formats.report import Broken

TIMEOUT_S = 120.0  # of a grader, as upstream
AGENT_S = 900.0
_AVERAGES = re.compile(r'sum\(float\(v\) for v in data\.values\(\)\)')


def candidates(
  path: pathlib.Path, options: Mapping[str, Any]
) -> Iterator[report.Candidate]:
  """Candidates of a folder of tasks, a JSONL file or a JSON array."""
  domains = options.get('domains') or {}
  limit = options['max_bytes']
  if path.is_dir() and not (path / 'data_entry.json').is_file():
    for entry in sorted(path.iterdir()):
      if entry.is_dir() and not entry.name.startswith('.'):
        yield (
          entry.name,
          lambda warn, e=entry: _folder(e, warn, domains, limit),
        )
    for file in sorted(path.glob('*.json*')):
      if file.name != 'domains.json':
        yield from _items(file, options, domains)
  elif path.is_dir():
    yield path.name, lambda warn: _folder(path, warn, domains, limit)
  else:
    yield from _items(path, options, domains)


def _folder(
  folder: pathlib.Path,
  warn: report.Warn,
  domains: Mapping[str, str],
  limit: int,
) -> types.Task:
  entry = tree.json_of(folder / 'data_entry.json')
  if not isinstance(entry, dict):
    raise Broken('bad_json', 'data_entry.json: wanted an object')
  name = tree.string(entry, 'task_id', 'data_entry.json')
  if name != folder.name:
    raise Broken(
      'id_mismatch', f'task_id is {name!r} in a folder {folder.name!r}'
    )
  inputs = folder / 'input_files'
  if entry.get('input_mount_dir') and not inputs.is_dir():
    raise Broken('missing_file', 'input_mount_dir is set, no input_files/')
  files = tree.read_tree(inputs, max_bytes=limit) if inputs.is_dir() else {}
  _no_grader_inside(files)
  reward = folder / 'reward'
  tree.need(reward / 'reward.sh')
  hidden = tree.read_tree(reward, max_bytes=limit)
  metadata = entry.get('metadata') or {}
  if not isinstance(metadata, dict):
    raise Broken('bad_field', 'metadata: wanted an object')
  return types.Task(
    id=f'clawgym/{name}',
    turns=(tree.string(entry, 'user_query', 'data_entry.json'),),
    files=files,
    verifier=_verifier(hidden, metadata),
    time_limit_s=AGENT_S,
    metadata={
      'domain': domains.get(name) or metadata.get('category') or 'unknown',
      'scoring': 'code_only',
      **rubric.metadata(
        entry.get('rules'), entry, default_mode='code', warn=warn
      ),
    },
  )


def _verifier(
  hidden: Mapping[str, bytes], metadata: Mapping[str, Any]
) -> types.Verifier:
  script = hidden.get('reward.sh', b'').decode('utf-8', 'replace')
  plain = 'check.py' in hidden and (
    not script or ('check.py' in script and bool(_AVERAGES.search(script)))
  )
  return types.Verifier(
    files={
      'clawgym.py': drivers.source('clawgym'),
      'metadata.json': json.dumps(metadata).encode(),
      **{f'reward/{k}': v for k, v in hidden.items()},
    },
    command=(
      'python3',
      '-I',
      '/verifier/clawgym.py',
      '/workspace',
      'check' if plain else 'script',
    ),
    timeout_s=TIMEOUT_S,
  )


def _no_grader_inside(files: Mapping[str, bytes]) -> None:
  inside = [f for f in files if f.startswith('reward/')]
  if inside:
    raise Broken('grader_leak', f'the agent would see {inside[0]}')


# ---- lines -----------------------------------------------------------------


def _items(
  path: pathlib.Path,
  options: Mapping[str, Any],
  domains: Mapping[str, str],
) -> Iterator[report.Candidate]:
  """Items of a JSONL file (streamed) or of a JSON array."""
  with path.open(encoding='utf-8-sig') as stream:
    first = stream.read(1)
    stream.seek(0)
    if first == '[':
      lines: Any = (json.dumps(item) for item in tree.json_of(path))
    else:
      lines = stream
    for number, line in enumerate(lines, 1):
      if not line.strip():
        continue

      def read(warn, line=line, number=number):
        item = tree.json_text(line, f'line {number}')
        return _item(item, number, warn, options, domains)

      yield f'line-{number}', read


def _item(
  item: Any,
  number: int,
  warn: report.Warn,
  options: Mapping[str, Any],
  domains: Mapping[str, str],
) -> types.Task:
  if not isinstance(item, dict):
    raise Broken('bad_json', f'line {number}: wanted an object')
  where = f'line {number}'
  prompt = tree.string(item, 'prompt', where)
  visible, hidden = _split_files(item, where, options['max_bytes'])
  name = _name(item, number)
  hook = item.get('hook_code') or ''
  verifier = None
  if hook:
    verifier = _hook(hook, item.get('hook_lang') or 'bash', hidden, where)
  elif any(k.endswith(('check.py', 'test.py')) for k in hidden):
    verifier = _hook('python3 reward/test.py', 'bash', hidden, where)
  rules = item.get('rules') or item.get('rule') or item.get('rubrics')
  if verifier is None and not rules:
    raise Broken('no_verifier', f'{where}: neither a grader nor a rubric')
  mode = 'code' if verifier else 'rubric'
  judge = rubric.metadata(rules, item, default_mode=mode, warn=warn)
  return types.Task(
    id=f'clawgym/{name}',
    turns=(prompt,),
    files=visible,
    verifier=verifier,
    time_limit_s=AGENT_S,
    metadata={
      'domain': domains.get(name)
      or item.get('macro_category')
      or item.get('category')
      or 'unknown',
      'scoring': 'hybrid' if judge else 'code_only',
      **judge,
    },
  )


def _split_files(
  item: Mapping[str, Any], where: str, limit: int
) -> tuple[dict[str, bytes], dict[str, bytes]]:
  """Files of the agent, and those of the grader without `reward/`."""
  visible: dict[str, bytes] = {}
  hidden: dict[str, bytes] = {}
  total = 0
  for source, is_hidden in (('input_files', False), ('reward_files', True)):
    entries = item.get(source) or []
    if not isinstance(entries, list):
      raise Broken('bad_field', f'{where}: {source}: wanted a list')
    for entry in entries:
      if not isinstance(entry, dict):
        raise Broken('bad_field', f'{where}: {source}: wanted objects')
      content = entry.get('content')
      if not isinstance(content, str):
        raise Broken('bad_field', f'{where}: {source}: content is not text')
      raw = str(entry.get('file_path', '')).replace('{{reward_dir}}', 'reward')
      path = tree.plain(raw, f'{where}: {source}')
      total += len(content)
      if total > limit:
        raise Broken('too_large', f'{where}: more than {limit >> 20} MiB')
      if is_hidden or path.startswith('reward/'):
        hidden[path.removeprefix('reward/')] = content.encode()
      else:
        visible[path] = content.encode()
  return visible, hidden


def _name(item: Mapping[str, Any], number: int) -> str:
  if isinstance(item.get('task_id'), str) and item['task_id'].strip():
    return item['task_id'].strip()
  origin = item.get('origin_template')
  if isinstance(origin, str):
    found = re.search(r'^id:\s*(\S+)', origin, re.MULTILINE)
    if found:
      return found.group(1).strip('\'"')
  digest = hashlib.blake2b(
    json.dumps(item, sort_keys=True).encode(), digest_size=4
  ).hexdigest()
  return f'line-{number}-{digest}'


def _hook(
  hook: str, lang: str, hidden: Mapping[str, bytes], where: str
) -> types.Verifier:
  """The grader that a hook names: `python3 reward/x.py <workspace>`."""
  if lang not in ('bash', 'sh', 'shell'):
    raise Broken('bad_field', f'{where}: hook_lang {lang!r} is not known')
  found = re.search(r'(?:^|[\s/])reward/([\w./-]+\.py)\b', hook)
  if not found or found.group(1) not in hidden:
    raise Broken(
      'no_verifier',
      f'{where}: hook_code names no file of reward/: {hook!r:.80}',
    )
  # Our driver runs reward/check.py; the hook's file goes under that name too.
  files = {**hidden, 'check.py': hidden[found.group(1)]}
  files.pop('reward.sh', None)
  return _verifier(files, {})
