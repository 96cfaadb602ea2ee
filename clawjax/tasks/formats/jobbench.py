"""JobBench: occupational work with deliverables, scored by rubrics alone.

dataset/OCCUPATION/taskN/{task_folder/, RUBRICS.json, task_card.md,
files_required_to_search/} with `dataset_easy/` beside it (older trees:
dataset/{main,easy}/...). The agent sees `task_folder/` and nothing else, and must
put its work into `output/`, the only folder that is scored. Each rubric is one
question to the judge and passes when all its criteria pass; the reward is the
passed share of the weight.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax import types
from clawjax.tasks.formats import report, tree
from clawjax.tasks.formats.report import Broken, Unsupported

OUTPUT = 'output'
_INSTRUCTIONS = 'TASK_INSTRUCTIONS.txt'
_NOTE = (
  '\n\nYour working folder holds all the input files. Put every deliverable into '
  f'the folder {OUTPUT}/ (make it if it is not there): only what is in there is '
  'looked at, a changed input file included.'
)


def candidates(
  path: pathlib.Path, options: Mapping[str, Any]
) -> Iterator[report.Candidate]:
  """Every folder below `path` that holds a RUBRICS.json."""
  for file in sorted(path.rglob('RUBRICS.json')):
    folder = file.parent
    parts = folder.relative_to(path).parts
    easy = any(p in ('dataset_easy', 'easy') for p in (path.name, *parts))
    split = 'easy' if easy else 'main'
    if options['split'] not in ('', split):
      continue
    name = '/'.join([split, *folder.parts[-2:]])
    yield (
      name,
      lambda warn, f=folder, n=name, s=split: _load(f, n, s, warn, options),
    )


def _load(
  folder: pathlib.Path,
  name: str,
  split: str,
  warn: report.Warn,
  options: Mapping[str, Any],
) -> types.Task:
  inputs = folder / 'task_folder'
  instruction = tree.text_of(inputs / _INSTRUCTIONS).strip()
  if not instruction:
    raise Broken('bad_field', f'{_INSTRUCTIONS} is empty')
  if (
    folder / 'files_required_to_search'
  ).is_dir() and 'needs_network' not in options['allow']:
    raise Unsupported(
      'needs_network',
      'it needs a search of the web; --allow needs_network loads it',
    )
  files = tree.read_tree(inputs, max_bytes=options['max_bytes'])
  files.pop(_INSTRUCTIONS)
  return types.Task(
    id=f'jobbench/{name}',
    turns=(instruction + _NOTE,),
    files=files,
    time_limit_s=3600.0 * float(options['timeout_factor']),
    metadata={
      'domain': folder.parent.name,
      'split': split,
      'judge': {
        'kind': 'checklist',
        'output': OUTPUT,
        'rubrics': rubrics(tree.json_of(folder / 'RUBRICS.json')),
      },
      'weights': {'code': 0.0, 'rubric': 1.0},
    },
  )


def rubrics(data: Any) -> list[dict[str, Any]]:
  """Rubrics of a RUBRICS.json in our form."""
  items = data.get('rubrics') if isinstance(data, dict) else data
  if not isinstance(items, list) or not items:
    raise Broken('bad_rubric', 'RUBRICS.json: wanted a list of rubrics')
  found = []
  for number, item in enumerate(items, 1):
    what = f'rubrics[{number}]'
    if not isinstance(item, dict):
      raise Broken('bad_rubric', f'{what}: wanted an object')
    weight = item.get('weight')
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
      raise Broken('bad_rubric', f'{what}: weight {weight!r:.40}')
    if weight < 0:
      raise Broken('bad_rubric', f'{what}: a weight below 0')
    criteria = item.get('criterion', item.get('criteria'))
    if isinstance(criteria, str):
      criteria = [criteria]
    if not isinstance(criteria, list) or not criteria:
      raise Broken('bad_rubric', f'{what}: no criterion')
    found.append(
      {
        'rubric': str(item.get('rubric', '')),
        'weight': weight,
        'criteria': [str(c) for c in criteria],
      }
    )
  if not sum(r['weight'] for r in found) > 0:
    raise Broken('bad_rubric', 'RUBRICS.json: the total weight is 0')
  return found
