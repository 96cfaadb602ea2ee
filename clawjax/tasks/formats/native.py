"""Our own task folders, which Harbor can run as well.

  TASK/task.toml         [task] name, [metadata], [agent], [verifier]
  TASK/instruction.md    what the user asks; further turns in turn_2.md, ...
  TASK/workspace/        files at the start
  TASK/verifier/         hidden files, at /verifier when scoring
  TASK/environment/, TASK/tests/     the same for Harbor (written on demand)

`[metadata.clawjax]` holds what Harbor has no place for: how the grader is
called and read, and `json`, the task's metadata. `write` makes such folders from
any loaded task, so a set of another format can be kept and edited as ours.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax import errors, types
from clawjax.tasks.formats import report, tree
from clawjax.tasks.formats.report import Broken

_COMMAND = ('python3', '-I', '/verifier/check.py', '/workspace')
_OUTPUTS = ('json_line', 'float_line', 'harbor')


def candidates(
  path: pathlib.Path, options: Mapping[str, Any]
) -> Iterator[report.Candidate]:
  """The folder itself, or the folders below it that hold a task.toml."""
  for file in sorted(path.rglob('task.toml')):
    folder = file.parent
    name = folder.relative_to(path).as_posix() if folder != path else path.name
    yield name, lambda warn, f=folder: read(f, warn, options)


def read(
  folder: pathlib.Path, warn: report.Warn, options: Mapping[str, Any]
) -> types.Task:
  """Reads one task folder."""
  spec = tree.toml_of(folder / 'task.toml')
  task, meta = _table(spec, 'task'), _table(spec, 'metadata')
  ours = _table(meta, 'clawjax')
  known = {'command', 'output', 'json', 'id'}
  for key in sorted(set(ours) - known):
    raise Broken(
      'misspelt_key', f'metadata.clawjax.{key}; known: {sorted(known)}'
    )
  turns = [tree.text_of(folder / 'instruction.md').strip()]
  while (folder / f'turn_{len(turns) + 1}.md').is_file():
    turns.append(tree.text_of(folder / f'turn_{len(turns) + 1}.md').strip())
  if not all(turns):
    raise Broken('bad_field', 'an instruction is empty')
  limit = options['max_bytes']
  workspace, hidden = folder / 'workspace', folder / 'verifier'
  files = (
    tree.read_tree(workspace, max_bytes=limit) if workspace.is_dir() else {}
  )
  metadata: dict[str, Any] = {
    'domain': str(meta.get('category') or 'unknown'),
    'stem': folder.name,
  }
  if 'json' in ours:
    stored = tree.json_text(str(ours['json']), 'metadata.clawjax.json')
    if not isinstance(stored, dict):
      raise Broken('bad_json', 'metadata.clawjax.json: wanted an object')
    metadata |= stored
    tree.check_mounts(metadata.get('readonly'), folder, options)
  runnable = tree.executables(workspace) if workspace.is_dir() else []
  if runnable:
    metadata['executable'] = runnable
  verifier = None
  if hidden.is_dir():
    table = _table(spec, 'verifier')
    command = ours.get('command', list(_COMMAND))
    output = ours.get('output', 'json_line')
    if output not in _OUTPUTS:
      raise Broken('bad_field', f'output {output!r}; known: {_OUTPUTS}')
    if not isinstance(command, list) or not all(
      isinstance(word, str) for word in command
    ):
      raise Broken('bad_field', 'metadata.clawjax.command: wanted texts')
    verifier = types.Verifier(
      files=tree.read_tree(hidden, max_bytes=limit),
      command=tuple(command),
      output=output,
      timeout_s=tree.seconds(table.get('timeout_sec'), 'verifier', 60.0),
    )
  elif 'judge' not in metadata:
    raise Broken('no_verifier', 'neither verifier/ nor a rubric')
  return types.Task(
    id=str(ours.get('id') or f'native/{task.get("name") or folder.name}'),
    turns=tuple(turns),
    files=files,
    verifier=verifier,
    time_limit_s=tree.seconds(
      _table(spec, 'agent').get('timeout_sec'), 'agent', 120.0
    )
    * float(options['timeout_factor']),
    metadata=metadata,
  )


def _table(spec: Mapping[str, Any], key: str) -> dict[str, Any]:
  value = spec.get(key, {})
  if not isinstance(value, dict):
    raise Broken('bad_field', f'task.toml: {key} must be a table')
  return value


# ---- writing ---------------------------------------------------------------

_TEST = """#!/bin/bash
# Runs the grader where Harbor looks for it, and writes its reward.
mkdir -p /logs/verifier
rm -rf /verifier && cp -r /tests/verifier /verifier
cd /workspace
{command} > /logs/verifier/stdout.txt || exit 0
python3 - <<'PY'
import json
line = [l for l in open('/logs/verifier/stdout.txt') if l.strip()][-1]
data = json.loads(line)
if not isinstance(data, dict):
  data = {{'reward': data}}
checks = data.get('checks') or {{}}
reward = data.get('reward')
if reward is None:
  reward = sum(checks.values()) / len(checks)
json.dump({{'reward': reward}}, open('/logs/verifier/reward.json', 'w'))
PY
"""
_DOCKERFILE = """FROM python:3.12-slim
WORKDIR /workspace
COPY workspace/ /workspace/
"""


def write(
  task: types.Task, folder: pathlib.Path, *, harbor: bool = True
) -> None:
  """Writes a task as a folder that `read` turns into the same task.

  Args:
    task: any task; a rubric goes into the metadata.
    folder: must not exist yet.
    harbor: write `environment/` and `tests/` too.

  Raises:
    TaskError: the folder exists.
  """
  if folder.exists():
    raise errors.TaskError(f'{folder}: exists already; nothing is overwritten')
  name = re.sub(r'[^\w.-]+', '-', task.id.split('/', 1)[-1])
  _put(folder / 'instruction.md', f'{task.turns[0]}\n'.encode())
  for number, turn in enumerate(task.turns[1:], 2):
    _put(folder / f'turn_{number}.md', f'{turn}\n'.encode())
  runnable = set(task.metadata.get('executable', ()))
  for path, data in task.files.items():
    _put(
      folder / 'workspace' / path, data, 0o755 if path in runnable else 0o644
    )
  source = task.id.split('/', 1)[0]
  lines = ['schema_version = "1.4"', '', '[task]']
  lines.append(f'name = {_quoted(f"{source}/{name}")}')
  lines += ['', '[agent]', f'timeout_sec = {float(task.time_limit_s)}']
  ours: list[str] = [f'id = {_quoted(task.id)}']
  verifier = task.verifier
  if verifier is not None:
    lines += ['', '[verifier]', f'timeout_sec = {float(verifier.timeout_s)}']
    for path, data in verifier.files.items():
      _put(folder / 'verifier' / path, data)
    words = ', '.join(_quoted(word) for word in verifier.command)
    ours += [f'command = [{words}]', f'output = {_quoted(verifier.output)}']
  stored = {k: v for k, v in task.metadata.items() if k != 'executable'}
  ours.append(f'json = {_quoted(json.dumps(stored, sort_keys=True))}')
  domain = str(task.metadata.get('domain', 'unknown'))
  lines += ['', '[metadata]', f'category = {_quoted(domain)}']
  lines += ['', '[metadata.clawjax]', *ours, '']
  _put(folder / 'task.toml', '\n'.join(lines).encode())
  if harbor and verifier is not None:
    _write_harbor(task, verifier, folder)


def _write_harbor(
  task: types.Task, verifier: types.Verifier, folder: pathlib.Path
) -> None:
  _put(folder / 'environment' / 'Dockerfile', _DOCKERFILE.encode())
  _put(folder / 'environment' / 'workspace' / '.gitkeep', b'')
  for path, data in task.files.items():
    _put(folder / 'environment' / 'workspace' / path, data)
  if verifier.output == 'harbor':
    for path, data in verifier.files.items():
      _put(folder / 'tests' / path, data, 0o755)
    return
  command = ' '.join(verifier.command)
  _put(
    folder / 'tests' / 'test.sh', _TEST.format(command=command).encode(), 0o755
  )
  for path, data in verifier.files.items():
    _put(folder / 'tests' / 'verifier' / path, data)


def _put(path: pathlib.Path, data: bytes, mode: int = 0o644) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(data)
  path.chmod(mode)


def _quoted(text: str) -> str:
  """A TOML basic string; JSON's escapes are TOML's, save for DEL."""
  return json.dumps(text, ensure_ascii=True).replace('\x7f', '\\u007f')
