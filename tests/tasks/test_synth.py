"""Every family is solved, left alone and got wrong for real, with bash."""

import json
import re
import statistics
import subprocess

import numpy as np
import pytest

from clawjax import errors
from clawjax.tasks import check, domains, families, synth, words

FAMILIES = list(families.FAMILIES)
DOMAINS = [
  pytest.param(name, marks=pytest.mark.slow) for name in domains.FAMILIES
]
# Quick to run, and together every kind of check: always tested.
QUICK = ['incidents', 'plan', 'repair']
OFFICE = {'actions': 'docx', 'regions': 'openpyxl', 'factsheet': 'fpdf'}


@pytest.fixture(autouse=True)
def office_libraries(request):
  """Skips families whose office library is not installed."""
  params = getattr(request.node, 'callspec', None)
  family = params.params.get('family') if params else None
  if family in OFFICE:
    pytest.importorskip(OFFICE[family])


def run(task, commands, folder):
  """Runs shell commands on the task's files; the grader's answer."""
  folder.mkdir(exist_ok=True)
  for path, body in task.files.items():
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(body)
  # As an agent does: a failing command is not the end.
  subprocess.run(
    ['bash', '-c', '\n'.join(commands)],
    cwd=folder,
    capture_output=True,
    check=False,
    timeout=120,
  )
  checks = json.loads(task.verifier.files['checks.json'])
  return check.score(str(folder), checks)['reward']


def commands_of(turns):
  return [json.loads(t.calls[0].arguments)['command'] for t in turns[:-1]]


@pytest.mark.parametrize('difficulty', [0, 1, 2])
@pytest.mark.parametrize('family', FAMILIES + DOMAINS)
def test_expert_scores_one_and_nothing_scores_zero(
  family, difficulty, tmp_path
):
  drawn = synth.tasks(
    'train', count=3, seed=5, difficulty=difficulty, families=[family]
  )
  for index, task in enumerate(drawn if family in FAMILIES else drawn[:1]):
    turns = synth.expert(task, rng=np.random.default_rng(0), skill=1.0)
    assert turns[-1].content and not turns[-1].calls
    assert len(turns) >= (3 if synth.ALL[family].looks else 2)
    assert run(task, commands_of(turns), tmp_path / f'right{index}') == 1.0
    assert run(task, [], tmp_path / f'idle{index}') == 0.0


@pytest.mark.parametrize('difficulty', [0, 2])
@pytest.mark.parametrize('family', FAMILIES + DOMAINS)
def test_wrong_solutions_score_below_half(family, difficulty, tmp_path):
  drawn = synth.tasks(
    'eval', count=2, seed=1, difficulty=difficulty, families=[family]
  )
  assert len(synth.ALL[family].mistakes) >= 3
  for index, task in enumerate(drawn):
    for wrong in synth.mistakes(task):
      folder = tmp_path / f'{wrong}{index}'
      assert run(task, synth.script(task, [wrong]), folder) < 0.5, wrong


@pytest.mark.parametrize('family', FAMILIES + DOMAINS)
def test_brute_solutions_earn_little(family, tmp_path):
  """Copies of everything everywhere, and a wiped workspace."""
  (task,) = synth.tasks('train', count=1, seed=2, families=[family])
  spec = task.metadata['spec']
  out = spec.get('out', 'x.txt')
  assert run(task, ['rm -f *'], tmp_path / 'wiped') == 0.0
  assert run(task, [f'cat * > {out}'], tmp_path / 'all') < 0.5
  assert run(task, [f'touch {out}'], tmp_path / 'empty') == 0.0


@pytest.mark.parametrize('family', QUICK)
def test_office_work_is_solved_and_left_alone(family, tmp_path):
  (task,) = synth.tasks('eval', count=1, seed=8, families=[family])
  assert run(task, synth.script(task), tmp_path / 'right') == 1.0
  assert run(task, [], tmp_path / 'idle') == 0.0


def test_no_bug_of_repair_is_right_on_a_case():
  """By evaluating the buggy lines here; and no answer is wanted twice."""
  for task in synth.tasks(
    'train', count=24, seed=3, difficulty=2, families=['repair']
  ):
    checks = json.loads(task.verifier.files['checks.json'])
    (cases,) = [c['cases'] for c in checks if c['kind'] == 'runs']
    wanted = [int(want) for _, want in cases]
    assert len(set(wanted)) == 5
    buggy = next(
      b for _, right, b in domains._TOOLS.values()
      if right == task.metadata['spec']['right']
    )  # fmt: skip
    for given, want in cases:
      numbers = [int(n) for n in given.split()]
      assert eval(buggy, {'numbers': numbers}) != int(want)


def test_half_skill_scores_about_two_fifths(tmp_path):
  """Mean over runs of the half-skilled expert, per family and overall."""
  means = {}
  for family in FAMILIES:
    drawn = synth.tasks('train', count=40, seed=3, families=[family])
    rng = np.random.default_rng(7)
    scores = []
    for index, task in enumerate(drawn):
      turns = synth.expert(task, rng=rng, skill=0.5)
      folder = tmp_path / f'{family}{index}'
      scores.append(run(task, commands_of(turns), folder))
    means[family] = statistics.mean(scores)
  assert 0.33 < statistics.mean(means.values()) < 0.5, means
  assert all(0.2 < mean < 0.65 for mean in means.values()), means


def test_splits_share_no_set_of_words():
  """Recomputed from the tasks themselves, not from the generator's word."""

  def content(task):
    known = set(words.WORDS)
    texts = [*task.files, *(b.decode() for b in task.files.values())]
    texts.append(task.instruction)
    tokens = ' '.join(texts).translate(str.maketrans('.,:?\n', '     ')).split()
    return frozenset(t for t in tokens if t in known)

  train = synth.tasks('train', count=400, seed=0)
  held = synth.tasks('eval', count=400, seed=0)
  assert not {content(t) for t in train} & {content(t) for t in held}
  assert not {t.id for t in train} & {t.id for t in held}
  assert len({t.id for t in train}) == 400


def test_draws_are_seeded_and_prefix_stable():
  first = synth.tasks('train', count=30, seed=4)
  assert first[:10] == synth.tasks('train', count=10, seed=4)
  assert first != synth.tasks('train', count=30, seed=5)


def test_everything_is_of_all_families_in_all_difficulties():
  for library in OFFICE.values():
    pytest.importorskip(library)
  kinds = [*families.FAMILIES, *domains.FAMILIES]
  drawn = synth.everything('train', count=3 * len(kinds))
  assert [t.metadata['family'] for t in drawn[::3]] == kinds
  for three in zip(drawn[::3], drawn[1::3], drawn[2::3], strict=True):
    assert len({t.metadata['family'] for t in three}) == 1
    assert [t.metadata['difficulty'] for t in three] == [0, 1, 2]


def test_difficulty_adds_rows_files_and_a_step():
  easy, hard = (
    synth.tasks('train', count=36, seed=0, difficulty=d) for d in (0, 2)
  )
  size = lambda ts: sum(len(t.files) for t in ts)  # noqa: E731
  assert size(hard) >= size(easy) + 2 * 36
  assert all('Also' in t.instruction for t in hard)


def test_instructions_are_short_and_varied():
  """Without words and numbers, three to five phrasings per direction."""
  known = set(words.WORDS)
  drawn = synth.tasks('train', count=900, seed=0)
  for family in FAMILIES:
    mine = [t for t in drawn if t.metadata['family'] == family]
    shapes = {
      ' '.join(
        w
        for w in re.findall('[a-z]+', t.instruction)
        if w not in known and w not in ('with', 'without')
      )
      for t in mine
    }
    assert 3 <= len(shapes) <= 10
    assert max(len(t.instruction.split()) for t in mine) <= 25


def test_words_do_not_contain_each_other():
  pairs = [
    (a, b) for a in words.WORDS for b in words.WORDS if a != b and a in b
  ]
  assert not pairs
  assert len(set(words.WORDS)) == len(words.WORDS) > 250


def test_bad_arguments_name_the_way_out():
  with pytest.raises(errors.TaskError, match='there are: create'):
    synth.tasks('train', count=1, families=['juggle'])
  with pytest.raises(errors.TaskError, match='difficulty'):
    synth.tasks('train', count=1, difficulty=3)
  with pytest.raises(errors.TaskError, match='split'):
    synth.tasks('test', count=1)


def test_grader_ignores_links_and_reads_only_the_workspace(tmp_path):
  """A link to a file outside that holds the answer earns nothing."""
  work, answer = tmp_path / 'work', tmp_path / 'answer.txt'
  work.mkdir()
  answer.write_text('42\n')
  (work / 'a.txt').symlink_to(answer)
  demand = {'name': 'v', 'kind': 'value', 'path': 'a.txt', 'value': '42'}
  assert check.score(str(work), [demand])['reward'] == 0.0
  (work / 'a.txt').unlink()
  (work / 'a.txt').write_text('42')  # no newline at the end: free
  assert check.score(str(work), [demand])['reward'] == 1.0
  (work / 'a.txt').write_text('42 43')
  assert check.score(str(work), [demand])['reward'] == 0.0


def test_checks_of_office_work(tmp_path):
  """Values by hand for each kind that the simple families do not use."""

  def value(kind, content, **fields):
    (tmp_path / 'f').write_text(content)
    demand = {'name': 'x', 'kind': kind, 'path': 'f', **fields}
    return check.score(str(tmp_path), [demand])['reward']

  at = {'at': ['a', 1], 'value': 2}
  assert value('json_at', '{"a": [0, 2.0]}', **at) == 1.0
  assert value('json_at', '{"a": [0, "2"]}', **at) == 0.0
  assert value('json_at', '{"a": [0, true]}', at=['a', 1], value=1) == 0.0
  assert value('json_at', '{"a": [0]}', **at) == 0.0
  assert value('json_at', '{"a": ', **at) == 0.0
  rows = {'header': ['k', 'v'], 'rows': [['a', '1'], ['b', '2']]}
  rows['partial'] = 0.3
  assert value('table', 'k,v\na,1\n"b", 2\n\n', **rows) == 1.0
  assert value('table', 'k,v\nb,2\na,1\n', **rows) == 0.3
  assert value('table', 'k,v\nb,2\na,1\n', any_order=True, **rows) == 1.0
  # One of two rows: F1 is 2 * 1 / (1 + 2).
  assert value('table', 'k,v\na,1\n', **rows) == pytest.approx(0.2)
  assert value('table', 'v,k\na,1\nb,2\n', **rows) == 0.0
  held = {'rows': ['# A', '- b: c'], 'most': 3, 'never': ['- d: e']}
  assert value('has_rows', '#  a\n- b: C\n', **held) == 1.0
  assert value('has_rows', '# A\n', **held) == 0.5
  assert value('has_rows', '# A\n- b: c\n- d: e\n', **held) == 0.0
  assert value('has_rows', '# A\n- b: c\nx\ny\n', **held) == 0.0
  cases = {'cases': [['1\n', '2\n'], ['4\n', '5\n'], ['7\n', '8\n']]}
  cases['partial'] = 0.2
  assert value('runs', 'print(int(input()) + 1)', **cases) == 1.0
  assert value('runs', 'print(2)', **cases) == 0.0  # a constant is no part
  # Two of three right, one of which a constant would get: 0.2 * (2 - 1) / 2.
  two = 'n = int(input()); print(n + 1 if n < 5 else 0)'
  assert value('runs', two, **cases) == pytest.approx(0.1)
  assert value('runs', 'print(', **cases) == 0.0


def test_corpus_holds_what_the_model_will_see():
  texts = synth.corpus(count=90, seed=0)
  joined = '\n'.join(texts)
  for piece in ('sort -r', 'sed -i', 'grep -l', '{"command": "cat ', 'Done.'):
    assert piece in joined
  assert all(f' {w}.txt' in joined for w in words.WORDS)
