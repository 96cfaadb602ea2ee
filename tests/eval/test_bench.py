"""A matrix of evaluations: on a fleet of a dozen lines, and for real."""

import asyncio
import dataclasses
import json

import numpy as np
import pytest

from clawjax import errors, types
from clawjax import harness as harness_lib
from clawjax.eval import __main__ as command
from clawjax.eval import bench, board, chat_jsonl, folder, run, scores
from clawjax.sandbox import fake


@dataclasses.dataclass(frozen=True)
class Echo:
  """A harness that is always there."""

  name: str = 'echo'
  version: str = '1'
  dialect: str = 'chat'
  option: int = 0
  multi_turn: bool = False

  def installed(self):
    return True

  async def prepare(self, backend):
    pass


class Fleet:
  """Scores a rollout by its id; `faults` are ids that fail."""

  faults: set = set()
  ran: list = []

  def __init__(self, *, proxy, limits, run_seed, **options):
    self.limits = limits

  async def run_groups(
    self, requests, *, concurrency, on_rollout, retry_budget
  ):
    for request in requests:
      id = f'{request.prefix}/0'
      Fleet.ran.append(id)
      task, sample = request.task.id, int(request.prefix.rsplit('/', 1)[1])
      fault = (task, sample) in Fleet.faults
      ids = np.array([5, 6, 7], np.int32)
      call = types.Call(
        f'{id}#0',
        id,
        0,
        ids,
        types.Sample(ids, np.full(3, -0.5, np.float32), 'stop'),
      )
      rollout = types.Rollout(
        id,
        task,
        request.harness.name,
        calls=(call,),
        reward=None if fault else (1.0 if task == 's/a' else 0.25),
        outcome='infra_error' if fault else 'ok',
        reason='no space' if fault else '',
      )
      on_rollout(rollout)
      await asyncio.sleep(0)
      yield [rollout]


@pytest.fixture
def script(tmp_path):
  path = tmp_path / 'script.jsonl'
  path.write_text('{"text": "Done."}\n')
  return f'scripted:{path}'


@pytest.fixture
def fake_fleet(monkeypatch):
  monkeypatch.setattr(bench.fleet_lib, 'LocalFleet', Fleet)
  Fleet.faults, Fleet.ran = set(), []
  return Fleet


TASKS = [
  types.Task('s/a', ('go',), metadata={'family': 'x', 'domain': 'd'}),
  types.Task('s/b', ('go',), metadata={'family': 'y', 'domain': 'e'}),
]
SET = bench.TaskSet('set', TASKS, {'digest': 'abc', 'run': 2})


async def _run(out, script, *, harnesses=(Echo(),), sets=(SET,), **options):
  return await bench.run(
    out,
    models=[script],
    harnesses=harnesses,
    sets=sets,
    backend=fake.FakeBackend(),
    config=bench.BenchConfig(**options),
  )


async def test_a_matrix(tmp_path, script, fake_fleet):
  out = tmp_path / 'out'
  cells = await _run(out, script, harnesses=[Echo(), Echo('other')], samples=2)
  assert [c.harness for c in cells] == ['echo', 'other']
  for cell in cells:
    # a: 1 and 1, b: 0.25 and 0.25.
    assert scores.pass1(cell.trials).value == pytest.approx(0.625)
    assert [t.family for t in cell.trials] == ['x', 'x', 'y', 'y']
    assert run.load_trials(out / 'eval' / f'{cell.slug}.json') == list(
      cell.trials
    )
  assert len(fake_fleet.ran) == 8 == len(set(fake_fleet.ran))
  # The folder is one that the run report can read too.
  assert len(folder.read(out).rollouts) == 8


async def test_only_what_is_missing_is_run_again(tmp_path, script, fake_fleet):
  out = tmp_path / 'out'
  fake_fleet.faults = {('s/b', 0)}
  (cell,) = await _run(out, script)
  assert scores.summarise(cell.trials).errors == {'infra_error': 1}
  fake_fleet.faults, fake_fleet.ran = set(), []
  (cell,) = await _run(out, script, samples=2)
  # s/a 0 is kept; s/b 0 failed and runs again; the second samples are new.
  assert sorted(i.split('/')[2:5:2] for i in fake_fleet.ran) == [
    ['s-a', '1'],
    ['s-b', '0'],
    ['s-b', '1'],
  ]
  assert len(cell.trials) == 4 and all(t.scored for t in cell.trials)
  # A torn file is run again.
  next(out.glob('rollouts/eval/*/s-a.0.json')).write_text('{"rollout_id": ')
  fake_fleet.ran = []
  await _run(out, script, samples=2)
  assert len(fake_fleet.ran) == 1


async def test_another_evaluation_in_the_folder_is_refused(
  tmp_path, script, fake_fleet
):
  out = tmp_path / 'out'
  await _run(out, script)
  for change in (
    {'harnesses': [Echo(version='2')]},
    {'harnesses': [Echo(option=1)]},
    {'sampling': {'temperature': 0.0}},
    {'seed': 1},
    {'sets': [bench.TaskSet('set', TASKS, {'digest': 'other', 'run': 2})]},
  ):
    with pytest.raises(errors.ConfigError, match='another evaluation'):
      await _run(out, script, **change)
  # More of the same is not another evaluation.
  more = bench.TaskSet('set', TASKS[:1], {'digest': 'abc', 'run': 1})
  await _run(out, script, sets=[more])


async def test_what_cannot_run_is_said_at_once(tmp_path, script, fake_fleet):
  class Absent(Echo):
    def installed(self):
      return False

  with pytest.raises(errors.HarnessError, match='is not installed'):
    await _run(tmp_path, script, harnesses=[Absent()])
  with pytest.raises(errors.ConfigError, match='distinct'):
    await _run(tmp_path, script, harnesses=[Echo(), Echo()])
  longer = dataclasses.replace(TASKS[1], id='long', turns=('One.', 'Two.'))
  sets = [bench.TaskSet('set', [TASKS[0], longer], {'digest': 'abc'})]
  with pytest.raises(
    errors.HarnessError, match='1 of 2 tasks have more .*long'
  ):
    await _run(tmp_path, script, sets=sets)
  with pytest.raises(errors.ConfigError, match="speaks 'chat'"):
    await _run(tmp_path, 'anthropic:https://api.example')
  with pytest.raises(errors.CheckpointError, match='config.json'):
    await _run(tmp_path, str(tmp_path / 'nothing'))
  assert not fake_fleet.ran


async def test_greedy_is_recorded(tmp_path, script, fake_fleet):
  (cell,) = await _run(tmp_path, script, sampling={'temperature': 0.0})
  assert all(t.greedy for t in cell.trials)


# ---- scores and the page ---------------------------------------------------


def _cell(model, rewards, *, tasks='set', harness='pi', domains=None):
  trials = tuple(
    scores.Trial(
      f's/{i}',
      r,
      outcome='ok' if r is not None else 'infra_error',
      reason='' if r is not None else '<b>no space</b>',
      harness=harness,
      domain=(domains or [''])[i % len(domains or [''])],
    )
    for i, r in enumerate(rewards)
  )
  return bench.Cell(
    model, harness, tasks, '1', {'tasks': {'reasons': {'needs_network': 3}}},
    trials,
  )  # fmt: skip


def test_results_as_json():
  cells = [_cell('m', [1.0, 0.0, None]), _cell('n', [1.0, 1.0, 1.0])]
  found = board.results(cells, board.BoardConfig(weights={'x': 1}))
  json.dumps(found, allow_nan=False)
  one = found['cells'][0]
  assert one['scores']['pass1']['value'] == 0.5
  assert one['scores']['errors'] == {'infra_error': 1}
  assert one['weighted_pass1'] is None  # no task of domain x was scored
  (pair,) = found['differences']
  # The third task has no score in the first cell: two common tasks.
  assert pair['change']['tasks'] == 2
  assert pair['change']['value'] == 0.5
  # Solved: 1 and 0 against 1 and 1.
  assert (pair['solved']['before'], pair['solved']['after']) == (0.5, 1.0)
  half = board.results(cells, board.BoardConfig(threshold=0.0))
  assert half['differences'][0]['solved']['change']['value'] == 0.0


def test_the_page(parse):
  cells = [_cell('m <i>', [1.0, 0.0, None] * 5), _cell('n', [0.5] * 15)]
  page = parse(
    board.render(
      cells,
      board.BoardConfig(),
      title='A & B',
      baseline=[_cell('old', [0.0] * 15)],
    )
  )
  for text in (
    'A & B',
    'm <i>',
    'needs_network (3)',
    '<b>no space</b>',
    'old (baseline)',
    'infra_error',
    'Differences',
  ):
    assert text in page.text
  links = [a['href'] for t, a in page.tags if t == 'a']
  assert len(links) == 30
  assert all(a.startswith('transcripts/') for a in links)
  assert 'published' not in page.text


def test_the_papers_table_is_marked_as_theirs(parse):
  domains = [
    'Product',
    'Systems',
    'Analysis',
    'Content',
    'Planning',
    'Software',
  ]
  cell = _cell('mine', [0.5] * 12, harness='openclaw', domains=domains)
  page = parse(board.render([cell], board.BoardConfig()))
  assert 'published' in page.text and 'arXiv 2608.16798' in page.text
  assert 'ClawII-OC-30A3B' in page.text and '62.62' in page.text
  # Only rows of our harness; ours is 50.00 in every column.
  assert 'ClawII-CC-8B' not in page.text
  assert page.text.count('50.00') >= 7


def test_an_empty_board(parse):
  parse(board.render([_cell('m', [])], board.BoardConfig()))


# ---- the command -----------------------------------------------------------


def _command(out, script, *more):
  return command.main(
    [
      *('--tasks', 'eval', '--format', 'synth', '--harness', 'pi'),
      *('--model', script, '--limit', '2', '--out', str(out)),
      *more,
    ]
  )


@pytest.fixture
def fake_pi(monkeypatch):
  monkeypatch.setattr(harness_lib, 'load', lambda name, **o: Echo(name))
  monkeypatch.setattr(
    command.sandbox_lib, 'load', lambda name: fake.FakeBackend()
  )


def test_the_command(tmp_path, script, fake_fleet, fake_pi, parse, capsys):
  out = tmp_path / 'out'
  assert _command(out, script, '--export', 'atif,chat') == 0
  assert 'scripted through pi on synth-eval: Pass@1 0.25' in (
    capsys.readouterr().out
  )
  parse((out / 'report.html').read_text())
  for path in out.glob('transcripts/*/*.html'):
    parse(path.read_text())
  assert json.loads((out / 'results.json').read_text())['cells']
  assert _command(tmp_path / 'b', script, '--baseline', str(out)) == 0
  assert '(baseline)' in (tmp_path / 'b' / 'report.html').read_text()
  # Another threshold scores the same rollouts anew.
  fake_fleet.ran = []
  assert _command(out, script, '--threshold', '0.2', '--json') == 0
  found = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert found['cells'][0]['scores']['success']['value'] == 1.0
  assert not fake_fleet.ran


def test_a_run_with_faults_ends_with_1(tmp_path, script, fake_fleet, fake_pi):
  from clawjax.tasks import synth

  (first, _) = synth.tasks('eval', count=2)
  fake_fleet.faults = {(first.id, 0)}
  assert _command(tmp_path / 'out', script) == 1


@pytest.mark.parametrize(
  'flags, text',
  [
    (['--export', 'pdf'], 'atif, chat'),
    (['--format', 'native'], 'one --format'),
    (['--harness-options', '{'], 'JSON object'),
    (['--harness-options', '[1]'], 'JSON object'),
    (['--baseline', '/nowhere'], 'finished evaluation'),
    (['--samples', '0'], '--samples >= 1'),
    (['--weights', '/nowhere'], '--weights'),
  ],
)
def test_bad_flags_are_one_line(
  tmp_path, script, fake_fleet, fake_pi, capsys, flags, text
):
  assert _command(tmp_path / 'out', script, *flags) == 2
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert error.startswith('clawjax.eval: ') and text in error


def test_chat_lines_by_reward(talk):
  good, tokenizer = talk.plain()
  assert chat_jsonl.good_enough(good, 0.5)
  assert not chat_jsonl.good_enough(good, 0.6)
  unknown, _ = talk.plain(reward=None, outcome='infra_error')
  assert chat_jsonl.good_enough(unknown, None)
  assert not chat_jsonl.good_enough(unknown, 0.0)


@pytest.mark.slow
def test_through_the_real_pi(tmp_path, parse):
  """pi in a bubblewrap sandbox, answers from a script, a real verifier."""
  if not harness_lib.load('pi').installed():
    pytest.skip('pi is not installed')
  script = tmp_path / 'script.jsonl'
  look = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n'
  lines = [{'text': f'{look}</tool_call>'}, {'text': 'Done.'}]
  script.write_text('\n'.join(map(json.dumps, lines * 2)) + '\n')
  out = tmp_path / 'out'
  done = _command(out, f'scripted:{script}', '--export', 'atif,chat')
  assert done == 0
  cell = json.loads((out / 'results.json').read_text())['cells'][0]
  assert cell['scores']['scored'] == 2
  assert len(list(out.glob('atif/*/*.json'))) == 2
  (chat,) = out.glob('chat/*.jsonl')
  roles = [
    [m['role'] for m in json.loads(line)['messages']]
    for line in chat.read_text().splitlines()
  ]
  assert all(r[-3:] == ['assistant', 'tool', 'assistant'] for r in roles)
