"""PinchBench and QwenClawBench: one markdown file a task, two presets.

YAML front matter, then `##` sections: Prompt, Expected Behavior, Grading
Criteria, Automated Checks (a python block with `grade`), LLM Judge Rubric. The
splitting knows code fences: a `## ` line inside one is text.

The judge's weight keys of two QwenClawBench tasks are misspelt (`llm`,
`llmjudge`); they are read with a warning, where the upstream runner silently
falls back to 0.5: `weights_compat='upstream'` gives that back.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax import types
from clawjax.tasks import drivers
from clawjax.tasks.formats import report, tree
from clawjax.tasks.formats.report import Broken, Unsupported

TIMEOUT_S = 120.0
THEIR_WORKSPACE = '/root/.openclaw/workspace'
_ALIASES = ('llm', 'llmjudge', 'judge', 'llm-judge')
_SECTIONS = (
  'Prompt',
  'Expected Behavior',
  'Grading Criteria',
  'Automated Checks',
  'LLM Judge Rubric',
  'Additional Notes',
)
_FENCE = re.compile(r'^ {0,3}(`{3,}|~{3,})(.*)$')
# Live pages and services, by what the tasks are named and ask for.
_NETWORK = re.compile(
  r'stock(?!_announce)|events|market_research|skill_search|weather'
  r'|polymarket|earnings|clawdhub'
)
_LIVE = re.compile(
  r'web search|https?://|\bcurrent\b|\blatest\b|\bupcoming\b|wttr|registry'
  r'|internet|online',
  re.IGNORECASE,
)
_IMAGE_OUT = re.compile(r'image_gen')
_IMAGES = ('.png', '.jpg', '.jpeg', '.webp', '.gif', '.mp3', '.wav', '.mp4')


def candidates(
  path: pathlib.Path, options: Mapping[str, Any]
) -> Iterator[report.Candidate]:
  """Candidates of a checkout, a set folder, or its `tasks/` folder."""
  for folder in _task_folders(path):
    for file in _files(folder):
      yield file.stem, lambda warn, f=file: _load(f, warn, options)


def _task_folders(path: pathlib.Path) -> list[pathlib.Path]:
  if any(path.glob('task_*.md')):
    return [path]
  found = [path / 'tasks', *sorted(path.glob('data/*/tasks'))]
  return [f for f in found if any(f.glob('task_*.md'))]


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  """Task files in the order of the manifest, else by name."""
  manifest = folder / 'manifest.yaml'
  if manifest.is_file():
    data = tree.yaml_text(tree.text_of(manifest), 'manifest.yaml')
    names = data.get('tasks', data) if isinstance(data, dict) else data
    if isinstance(names, list):
      stems = [n if isinstance(n, str) else n.get('id', '') for n in names]
      listed = [folder / f'{s.removesuffix(".md")}.md' for s in stems]
      if listed and all(f.is_file() for f in listed):
        return listed
  return [
    f for f in sorted(folder.glob('task_*.md')) if f.name != 'TASK_TEMPLATE.md'
  ]


def _load(
  file: pathlib.Path, warn: report.Warn, options: Mapping[str, Any]
) -> types.Task:
  front, body = split_front(tree.text_of(file))
  name = tree.string(front, 'id', 'front matter')
  parts = sections(body)
  if name != file.stem:
    warn('id_differs', f'the id is {name}, the file {file.stem}')
  turns, fresh = _turns(front, parts)
  turns = tuple(_here(t, warn) for t in turns)
  files = _workspace(front, file, name, options)
  tags = _tags(front, name, files, '\n'.join(turns))
  refused = [t for t in tags if t not in options['allow']]
  if refused:
    raise Unsupported(
      refused[0], f'{_WHY[refused[0]]}; --allow {",".join(tags)} loads it'
    )
  grading = front.get('grading_type', 'automated')
  if grading not in ('automated', 'llm_judge', 'hybrid'):
    raise Broken('bad_field', f'grading_type {grading!r} is not known')
  metadata: dict[str, Any] = {
    'domain': str(front.get('category', 'unknown')),
    'grading': grading,
    'stem': file.stem,
    'tags': tags,
    'openclaw_bootstrap': 'remove',
  }
  for key in ('subcategory', 'difficulty', 'verification_method'):
    if front.get(key) is not None:
      metadata[key] = str(front[key])
  if any(fresh):
    metadata['new_session'] = list(fresh)
  verifier = None
  if grading != 'llm_judge':
    code = grader(parts.get('Automated Checks', ''))
    verifier = types.Verifier(
      files={'grade.py': drivers.source('grade'), 'grader.py': code.encode()},
      command=('python3', '-I', '/verifier/grade.py', '/workspace'),
      timeout_s=TIMEOUT_S,
    )
  if grading != 'automated':
    metadata['judge'] = _judge(parts)
    metadata['weights'] = (
      {'code': 0.0, 'rubric': 1.0}
      if grading == 'llm_judge'
      else weights(front.get('grading_weights'), warn, options)
    )
    if options['hybrid'] != 'weighted' and grading == 'hybrid':
      metadata['hybrid'] = options['hybrid']
  factor = float(options.get('timeout_factor', 1.0))
  limit = tree.seconds(front.get('timeout_seconds'), 'timeout_seconds', 120.0)
  return types.Task(
    id=f'{options["format"]}/{name}',
    turns=turns,
    files=files,
    verifier=verifier,
    time_limit_s=limit * factor,
    metadata=metadata,
  )


_WHY = {
  'needs_network': 'it needs live pages or services of the internet',
  'needs_image_model': 'it needs an image model',
  'multimodal': 'it needs a model that sees images or hears sound',
  'needs_mock': 'it needs a mock service that is not part of the set',
}


def _here(text: str, warn: report.Warn) -> str:
  """The text with the workspace where it is here."""
  if THEIR_WORKSPACE not in text:
    return text
  warn('path_rewritten', f'{THEIR_WORKSPACE} became /workspace')
  return text.replace(THEIR_WORKSPACE, '/workspace')


def _turns(
  front: Mapping[str, Any], parts: Mapping[str, str]
) -> tuple[list[str], list[bool]]:
  """User messages, and for each whether it opens a new session."""
  sessions = front.get('sessions')
  if sessions:
    if not isinstance(sessions, list):
      raise Broken('bad_field', 'sessions: wanted a list')
    texts, fresh = [], []
    for number, session in enumerate(sessions, 1):
      if not isinstance(session, dict):
        raise Broken('bad_field', f'sessions[{number}]: wanted an object')
      text = session.get('prompt') or session.get('message')
      if not isinstance(text, str) or not text.strip():
        raise Broken('bad_field', f'sessions[{number}]: no prompt')
      texts.append(text.strip())
      fresh.append(bool(session.get('new_session')))
    return texts, fresh
  prompt = parts.get('Prompt', '').strip()
  if not prompt:
    raise Broken('missing_section', 'there is no Prompt section')
  return [prompt], [False]


def _workspace(
  front: Mapping[str, Any],
  file: pathlib.Path,
  name: str,
  options: Mapping[str, Any],
) -> dict[str, bytes]:
  entries = front.get('workspace_files') or []
  if not isinstance(entries, list):
    raise Broken('bad_field', 'workspace_files: wanted a list')
  assets = file.parent.parent / 'assets'
  files: dict[str, bytes] = {}
  limit = options['max_bytes']
  for entry in entries:
    if not isinstance(entry, dict):
      raise Broken('bad_field', f'workspace_files: {entry!r:.60}')
    taken = sum(map(len, files.values()))
    if 'content' in entry:
      path = tree.plain(entry.get('path') or entry.get('dest'), 'path')
      files[path] = str(entry['content']).encode()
      continue
    source = tree.plain(entry.get('source'), 'source')
    dest = tree.plain(entry.get('dest') or source, 'dest')
    source = source.removeprefix('assets/')
    places = [assets / name / source, assets / file.stem / source]
    places.append(assets / source)
    found = next((p for p in places if p.exists()), None)
    if found is None:
      raise Broken('missing_asset', f'assets/{source} is not there')
    if not found.resolve().is_relative_to(assets.resolve()):
      raise Broken('path_escape', f'assets/{source} leaves the folder')
    if found.is_dir():
      for inner, data in tree.read_tree(
        found, max_bytes=limit, taken=taken
      ).items():
        files[f'{dest}/{inner}'] = data
    else:
      files[dest] = tree.read_file(found, max_bytes=limit, taken=taken)
  if sum(map(len, files.values())) > limit:
    raise tree.too_large(limit)
  return files


def _tags(
  front: Mapping[str, Any],
  name: str,
  files: Mapping[str, bytes],
  prompt: str,
) -> list[str]:
  tags = []
  outside = str(front.get('external_dependency') or 'none').lower()
  if outside in ('requires_mock',):
    tags.append('needs_mock')
  elif outside not in ('none', 'false', ''):
    tags.append('needs_network')
  # QwenClawBench declares what it needs; PinchBench does not.
  elif 'external_dependency' not in front and 'subcategory' not in front:
    if _NETWORK.search(name) and _LIVE.search(prompt):
      tags.append('needs_network')
    if _IMAGE_OUT.search(name):
      tags.append('needs_image_model')
  modality = str(front.get('input_modality') or 'text').lower()
  if not modality.startswith('text') or any(
    f.lower().endswith(_IMAGES) for f in files
  ):
    tags.append('multimodal')
  return tags


# ---- reading the file ------------------------------------------------------


def split_front(text: str) -> tuple[dict[str, Any], str]:
  """Front matter and the rest.

  `source_query` and `source_line_number` are taken out first: their free text
  is often no YAML.
  """
  lines = text.split('\n')
  if not lines or lines[0].strip() != '---':
    raise Broken('no_front_matter', 'the file does not start with ---')
  end = next(
    (n for n, line in enumerate(lines[1:], 1) if line.rstrip() == '---'), None
  )
  if end is None:
    raise Broken('no_front_matter', 'the front matter has no end')
  kept, skipping = [], False
  for line in lines[1:end]:
    if re.match(r'(source_query|source_line_number)\s*:', line):
      skipping = True
    elif re.match(r'[A-Za-z_][\w-]*\s*:', line):
      skipping = False
    if not skipping:
      kept.append(line)
  front = tree.yaml_text('\n'.join(kept), 'front matter')
  if not isinstance(front, dict):
    raise Broken('bad_yaml', 'front matter: wanted keys and values')
  return front, '\n'.join(lines[end + 1 :])


def sections(body: str) -> dict[str, str]:
  """Texts below the known `## ` headers; headers inside fences are text."""
  found: dict[str, list[str]] = {}
  current: list[str] | None = None
  fence = ''
  for line in body.split('\n'):
    fence_now = _FENCE.match(line)
    if fence:
      if _closes(line, fence):
        fence = ''
    elif fence_now:
      fence = fence_now.group(1)
    elif line.startswith('## '):
      title = line[3:].strip()
      known = [s for s in _SECTIONS if title.startswith(s)]
      current = found.setdefault(known[0] if known else title, [])
      continue
    if current is not None:
      current.append(line)
  return {title: '\n'.join(lines).strip() for title, lines in found.items()}


def _closes(line: str, fence: str) -> bool:
  """Whether a line closes a fence: as long at least, and nothing else."""
  mark = line.strip()
  return len(mark) >= len(fence) and set(mark) == {fence[0]}


def grader(section: str) -> str:
  """Code of the first python fence of Automated Checks."""
  lines = section.split('\n')
  for start, line in enumerate(lines):
    opened = _FENCE.match(line)
    if not opened or opened.group(2).strip().lower() not in ('python', 'py'):
      continue
    for end in range(start + 1, len(lines)):
      if _closes(lines[end], opened.group(1)):
        code = '\n'.join(lines[start + 1 : end]) + '\n'
        if 'def grade' not in code:
          raise Broken('no_grader', 'the python block defines no grade()')
        try:
          compile(code, 'grader.py', 'exec')
        except (SyntaxError, ValueError) as error:
          raise Broken('bad_grader', f'Automated Checks: {error}') from None
        return code
    raise Broken('no_grader', 'the python block has no end')
  raise Broken('no_grader', 'Automated Checks has no python block')


def _judge(parts: Mapping[str, str]) -> dict[str, Any]:
  checklist = re.findall(
    r'^\s*[-*] \[[ xX]\] (.+)$', parts.get('Grading Criteria', ''), re.MULTILINE
  )
  text = parts.get('LLM Judge Rubric', '').strip()
  if not text and not checklist:
    raise Broken('bad_rubric', 'neither LLM Judge Rubric nor a checklist')
  return {
    'kind': 'free',
    'text': text or '\n'.join(f'- {item.strip()}' for item in checklist),
    'checklist': [item.strip() for item in checklist],
    'expected': parts.get('Expected Behavior', ''),
  }


def weights(
  given: Any, warn: report.Warn, options: Mapping[str, Any]
) -> dict[str, float]:
  """Weights of code and judge, by their sum; 0.5 each by default."""
  if given is None:
    return {'code': 0.5, 'rubric': 0.5}
  if not isinstance(given, dict):
    raise Broken('bad_field', f'grading_weights: {given!r:.60}')
  values = {'automated': 0.5, 'llm_judge': 0.5}
  for key, value in given.items():
    if isinstance(value, bool) or not isinstance(value, (int, float)):
      raise Broken('bad_field', f'grading_weights.{key}: {value!r:.60}')
    if key in values:
      values[key] = float(value)
    elif key in _ALIASES:
      warn('misspelt_key', f'grading_weights.{key} is read as llm_judge')
      if options['weights_compat'] != 'upstream':
        values['llm_judge'] = float(value)
    else:
      raise Broken('misspelt_key', f'grading_weights has a key {key!r}')
  both = values['automated'] + values['llm_judge']
  if min(values.values()) < 0 or not both > 0:
    raise Broken('bad_field', f'grading_weights {given!r:.60}')
  return {
    'code': values['automated'] / both,
    'rubric': values['llm_judge'] / both,
  }
