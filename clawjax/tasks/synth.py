"""Generated workspace tasks, their verifiers, and a scripted expert.

  tasks('train', count=64, seed=0)  ->  Task, Task, ...
  expert(task, rng=rng, skill=0.5)  ->  assistant turns, some of them mistaken

Task i of a split depends on (seed, split, i) alone, so a longer list starts
with the shorter one. Train and eval are disjoint by construction: the *set of
words* of a task (file names, keys, rows) is hashed, the hash decides the split,
and a draft of the other split is drawn again. No set of words is ever in both.

The expert looks where the answer is only in the workspace, acts, and ends with
a short text. With skill below 1 it makes mistakes, each at its own decision
point: all decisions right has the same chance `1 - 1.3 * (1 - skill)` in every
family, whatever the number of decisions. Trajectories of a half-skilled expert
are what the tiny model is cold-started on; what reinforcement learning then has
to find is which of the choices it has seen is the right one.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from clawjax import errors, types
from clawjax.tasks import domains
from clawjax.tasks import families as families_lib
from clawjax.tasks.words import WORDS

Split = Literal['train', 'eval']
EVAL_SHARE = 4  # one of so many sets of words belongs to eval
DONE = 'Done.'
# Failure per missing skill: at skill 0.5 about a third of the runs is flawless.
_SLOPE = 1.3
# Every family there is; `tasks` draws the simple ones unless told otherwise.
ALL = {**families_lib.FAMILIES, **domains.FAMILIES}


def split_of(words: Sequence[str]) -> Split:
  """The split that a set of words belongs to; order does not matter."""
  text = ' '.join(sorted(set(words)))
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return (
    'eval' if int.from_bytes(digest, 'little') % EVAL_SHARE == 0 else 'train'
  )


def tasks(
  split: Split,
  *,
  count: int,
  seed: int = 0,
  difficulty: int = 0,
  families: Sequence[str] | None = None,
) -> list[types.Task]:
  """Draws tasks, the families in turn.

  Args:
    split: 'train' or 'eval'.
    count: number of tasks.
    seed: of the draw; tasks of two seeds may coincide (then with one id).
    difficulty: 0: three or four rows and no more; 1: more rows and a file that
      does not matter; 2: still more, two such files, and an extra step.
    families: names to use, of `ALL`; None: the simple ones of `families`.

  Raises:
    TaskError: unknown split, family or difficulty.
  """
  if split not in ('train', 'eval'):
    raise errors.TaskError(f"wanted split 'train' or 'eval', got {split!r}")
  if difficulty not in (0, 1, 2):
    raise errors.TaskError(f'wanted difficulty 0, 1 or 2, got {difficulty!r}')
  names = list(families or families_lib.FAMILIES)
  for name in names:
    if name not in ALL:
      known = ', '.join(ALL)
      raise errors.TaskError(f'no family {name!r}; there are: {known}')
  found: list[types.Task] = []
  seen: set[str] = set()
  for index in range(count):
    family = names[index % len(names)]
    for task in _drafts(split, family, seed, index, difficulty):
      if task.id not in seen:
        break
    seen.add(task.id)
    found.append(task)
  return found


def _drafts(
  split: Split, family: str, seed: int, index: int, difficulty: int
) -> Iterator[types.Task]:
  """Drafts of one place in the list that fall into the split."""
  key = f'{split}/{family}/{seed}/{index}/{difficulty}'.encode()
  digest = hashlib.blake2b(key, digest_size=8).digest()
  rng = np.random.default_rng(int.from_bytes(digest, 'little'))
  while True:
    draw = families_lib.Draw(rng, difficulty)
    draft = ALL[family].draft(draw)
    instruction, files = draft.instruction, dict(draft.files)
    checks, spec = list(draft.checks), dict(draft.spec)
    for _ in range(difficulty):
      files[draw.name()] = families_lib.text(draw.some(draw.size - 1))
    guard = families_lib.kept(
      families_lib.Draft('', files, (), {}, draft.changes)
    )
    if guard:
      checks.append(guard)
    if difficulty == 2:
      phrase, command, extra, more = _extra_step(draw)
      instruction = f'{instruction} {phrase}'
      files.update(more)
      spec['extra'] = command
      total = sum(c.get('weight', 1.0) for c in checks if 'factor' not in c)
      checks = [
        {**c, 'weight': 0.75 * c.get('weight', 1.0) / total} for c in checks
      ] + [extra]
    if split_of(draw.words) != split:
      continue
    yield _task(split, family, difficulty, instruction, files, checks, spec)


def _extra_step(
  draw: families_lib.Draw,
) -> tuple[str, str, dict[str, Any], dict[str, str]]:
  """Phrase, command, check and files of a second demand."""
  if draw.flip():
    path = draw.name()
    body = families_lib.text(draw.some(2))
    check = {'name': 'gone', 'kind': 'gone', 'path': path, 'weight': 0.25}
    return f'Also delete {path}.', f'rm {path}', check, {path: body}
  path, word = draw.name(), draw.word()
  check = {'name': 'note', 'kind': 'value', 'path': path, 'value': word}
  check['weight'] = 0.25
  return f'Also write {word} to {path}.', f'echo {word} > {path}', check, {}


def _task(
  split: Split,
  family: str,
  difficulty: int,
  instruction: str,
  files: dict[str, str | bytes],
  checks: list[dict[str, Any]],
  spec: dict[str, Any],
) -> types.Task:
  hidden = json.dumps(checks, indent=1, sort_keys=True)
  shown = {
    path: body if isinstance(body, str) else hashlib.sha256(body).hexdigest()
    for path, body in files.items()
  }
  content = json.dumps([instruction, shown, hidden], sort_keys=True)
  digest = hashlib.blake2b(content.encode(), digest_size=5).hexdigest()
  return types.Task(
    id=f'synth/{family}-{digest}',
    turns=(instruction,),
    files={
      path: body.encode() if isinstance(body, str) else body
      for path, body in files.items()
    },
    verifier=types.Verifier(
      files={'check.py': grader_source(), 'checks.json': hidden.encode()},
      command=('python3', '-I', '/verifier/check.py', '/workspace'),
      timeout_s=120.0 if any(c['kind'] == 'runs' for c in checks) else 60.0,
    ),
    metadata={
      'domain': ALL[family].domain,
      'family': family,
      'difficulty': difficulty,
      'split': split,
      'spec': spec,
    },
  )


def grader_source() -> bytes:
  """The text of `check.py`, as it is put beside the checks."""
  return pathlib.Path(__file__).with_name('check.py').read_bytes()


def everything(split: Split, *, count: int, seed: int = 0) -> list[types.Task]:
  """Tasks of all families there are, in turn over the difficulties."""
  per = -(-count // 3)
  drawn = [
    tasks(split, count=per, seed=seed, difficulty=d, families=list(ALL))
    for d in (0, 1, 2)
  ]
  return [t for group in zip(*drawn, strict=True) for t in group][:count]


# ---- the expert ------------------------------------------------------------


def knows(task: types.Task) -> bool:
  """Whether the scripted expert can solve this task."""
  return 'spec' in task.metadata and (task.metadata.get('family') in ALL)


def mistakes(task: types.Task) -> tuple[str, ...]:
  """Names of the mistakes that can be made on this task, in script order."""
  return tuple(_family(task).mistakes)


def script(task: types.Task, wrong: Sequence[str] = ()) -> list[str]:
  """Shell commands of a solution, with the given mistakes made."""
  family, spec = _family(task), task.metadata['spec']
  unknown = set(wrong) - set(family.mistakes)
  if unknown:
    raise ValueError(f'no mistakes {sorted(unknown)} in this family')
  commands = family.script(spec, frozenset(wrong))
  if 'stop' in wrong:  # look, if that is the habit here, and end
    return commands[:-1]
  return commands + ([spec['extra']] if 'extra' in spec else [])


def expert(
  task: types.Task, *, rng: np.random.Generator, skill: float = 1.0
) -> list[types.Message]:
  """Assistant turns of a scripted expert: calls of `bash`, then a text.

  Args:
    task: one of `tasks`.
    rng: draws the mistakes.
    skill: 1 never errs; the chance of a flawless script falls linearly, to
      0.35 at skill 0.5.

  Returns:
    Messages of role assistant; all but the last hold one call each.
  """
  flawless = min(max(1.0 - _SLOPE * (1.0 - skill), 0.02), 1.0)
  shares = _family(task).mistakes
  total = sum(shares.values())
  # Independent decisions with chances that multiply to `flawless`.
  wrong = [
    name
    for name, share in shares.items()
    if rng.random() >= flawless ** (share / total)
  ]
  turns = [
    types.Message(
      'assistant',
      calls=(types.ToolCall('bash', json.dumps({'command': command})),),
    )
    for command in script(task, wrong)
  ]
  return [*turns, types.Message('assistant', content=DONE)]


def _family(task: types.Task) -> families_lib.Family:
  if not knows(task):
    raise errors.TaskError(
      f'{task.id}: the scripted expert knows only tasks of synth.tasks'
    )
  return ALL[task.metadata['family']]


# ---- texts for a tokenizer -------------------------------------------------


def corpus(*, count: int = 2000, seed: int = 0) -> list[str]:
  """Texts that a tokenizer for these tasks should see; train split only.

  Instructions, file contents, commands as JSON arguments, and every word in
  the places it has in use: alone, after a blank, in a file name.
  """
  texts = [
    f'{word}\n {word}\n{word}.txt\n {word}.txt\n "{word} {word}'
    for word in WORDS
  ]
  texts += [f'{n}\n {n}' for n in range(100)]
  for index, task in enumerate(
    t
    for d in (0, 1, 2)
    for t in tasks('train', count=count // 3, seed=seed, difficulty=d)
  ):
    rng = np.random.default_rng([seed, index])
    texts.append(task.instruction)
    texts.extend(body.decode() for body in task.files.values())
    texts.extend(
      call.arguments or turn.content
      for turn in expert(task, rng=rng, skill=0.5)
      for call in (turn.calls or (types.ToolCall('', ''),))
    )
  return texts
