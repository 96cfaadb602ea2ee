"""OfficeQA: questions in a CSV file over a folder of documents.

The user has both, and upstream's `reward.py`; all three are named by options.
The documents are mounted read-only at `/corpus` (`metadata['readonly']`) and never
copied. Columns that tell where the answer stands are hidden from the agent, and
neither question nor answer is printed anywhere: the set is gated so that its
answers stay off the web.

Score: `score_answer` of the user's `reward.py` on the final message, 0 or 1, at a
relative tolerance that is part of the provenance (the paper does not state its
own; ours is 0).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax import errors, types
from clawjax.tasks import drivers
from clawjax.tasks.formats import report, tree

CORPUS = '/corpus'
_PROMPT = (
  'The folder {corpus} holds the documents you need; it is read-only. Find the '
  'answer to the question below in them, computing what must be computed.\n\n'
  'Question: {question}\n\n'
  'End your last message with the answer alone between tags, like this: '
  '<FINAL_ANSWER>answer</FINAL_ANSWER>'
)


def candidates(
  path: pathlib.Path, options: Mapping[str, Any]
) -> Iterator[report.Candidate]:
  """One task a row of the CSV file (or of each in the folder)."""
  reward = pathlib.Path(options['reward_file'] or path.parent / 'reward.py')
  reward = reward.expanduser()
  if not reward.is_file():
    raise errors.TaskError(
      f'{reward}: OfficeQA is scored by its own reward.py; give --reward-file'
    )
  corpus = options['corpus']
  if not corpus or not pathlib.Path(corpus).expanduser().is_dir():
    raise errors.TaskError(
      'OfficeQA needs its folder of documents; give --corpus'
    )
  place = str(pathlib.Path(corpus).expanduser().resolve())
  files = sorted(path.glob('*.csv')) if path.is_dir() else [path]
  for file in files:
    try:
      rows = list(tree.csv_rows(file))
    except report.Broken as problem:
      raise errors.TaskError(f'{file}: {problem}') from None
    sound = [row for row in rows if not isinstance(row, report.Broken)]
    missing = {'uid', 'question', 'answer'} - set(sound[0] if sound else ())
    if missing:
      raise errors.TaskError(f'{file}: no column {", ".join(sorted(missing))}')
    for number, row in enumerate(rows, 1):
      name = f'{file.name}, row {number}'
      if not isinstance(row, report.Broken):
        name = row['uid'] or name
      yield (
        name,
        lambda warn, r=row: _task(
          r, reward.read_bytes(), place, options['tolerance']
        ),
      )


def _task(
  row: Mapping[str, str] | report.Broken,
  reward: bytes,
  corpus: str,
  tolerance: float,
) -> types.Task:
  if isinstance(row, report.Broken):
    raise row
  uid = tree.string(dict(row), 'uid', 'row')
  question = tree.string(dict(row), 'question', f'row {uid}')
  answer = tree.string(dict(row), 'answer', f'row {uid}')
  hidden = json.dumps({'answer': answer, 'tolerance': tolerance})
  return types.Task(
    id=f'officeqa/{uid}',
    turns=(_PROMPT.format(corpus=CORPUS, question=question.strip()),),
    verifier=types.Verifier(
      files={
        'officeqa.py': drivers.source('officeqa'),
        'reward.py': reward,
        'answer.json': hidden.encode(),
      },
      command=('python3', '-I', '/verifier/officeqa.py'),
    ),
    time_limit_s=1800.0,
    metadata={
      'domain': row.get('difficulty') or 'all',
      'readonly': [[corpus, CORPUS]],
      'tolerance': tolerance,
      'secret': True,
    },
  )
