"""The matrix of harnesses trained on and evaluated on, from written folders."""

import json

import pytest

from clawjax.eval import folder, run, scores, transfer


def write(path, trained, after, before=None, rollouts=24):
  """A run folder: harness -> per-task rewards after (and before) training."""
  path.mkdir()

  def trials(values):
    return [
      scores.Trial(f't{i}', reward, harness=name, sample_index=0)
      for name, rewards in values.items()
      for i, reward in enumerate(rewards)
    ]

  run.save_trials(path / 'eval' / 'after.json', trials(after))
  if before is not None:
    run.save_trials(path / 'eval' / 'before.json', trials(before))
  rows = [
    {'step': s, 'wall_time': 0.0}
    | {f'reward/{h}': 0.5 for h in trained}
    | {f'rollouts/valid/{h}': rollouts / 2 for h in trained}
    for s in (1, 2)
  ]
  text = '\n'.join(json.dumps(r) for r in rows)
  (path / 'metrics.jsonl').write_text(text + '\n')
  return path


@pytest.fixture
def runs(tmp_path):
  """Alone on a: 0.25 there, nothing elsewhere. Mixed: better on a, same on b."""
  zero = {'a': [0.0] * 8, 'b': [0.0] * 8}
  return [
    write(
      tmp_path / 'mix',
      ('a', 'b'),
      {'a': [1.0] * 8, 'b': [1.0, 0.0] * 4},
      before=zero,
    ),
    write(tmp_path / 'one_a', ('a',), {'a': [1.0, 0, 0, 0] * 2, 'b': [0] * 8}),
    write(tmp_path / 'one_b', ('b',), {'a': [0] * 8, 'b': [0.0, 1.0] * 4}),
  ]


def test_rows_and_comparisons(runs):
  read = [folder.read(path) for path in runs]
  rows = [transfer.before(read), *map(transfer.row, read)]
  assert [r.name for r in rows] == ['before training', 'a + b', 'a', 'b']
  means = [
    {h: scores.pass1(t).value for h, t in r.trials.items()} for r in rows
  ]
  assert means == [
    {'a': 0.0, 'b': 0.0},
    {'a': 1.0, 'b': 0.5},
    {'a': 0.25, 'b': 0.0},
    {'a': 0.0, 'b': 0.5},
  ]
  found = {c.harness: c for c in transfer.compare(rows)}
  assert found['a'].verdict == 'above'  # 6 of 8 tasks better, none worse
  assert (found['a'].difference.better, found['a'].difference.worse) == (6, 0)
  # On b the means agree and the tasks do not: +1 on four, -1 on four.
  assert found['b'].verdict == 'within noise'
  assert found['b'].difference.change.value == 0
  assert found['a'].rollouts == (24, 24)
  # The other way round the mixed policy would be below.
  swapped = [rows[0], rows[2], rows[1]]
  assert transfer.compare(swapped)[0].verdict == 'above'
  assert transfer.compare([rows[0], rows[2]]) == []


def test_page_and_command(runs, tmp_path, capsys):
  out = tmp_path / 'page.html'
  status = transfer.main([*map(str, runs), '--out', str(out)])
  assert status == 0
  printed = capsys.readouterr().out
  assert 'a: alone 0.250, mixed 1.000: above' in printed
  text = out.read_text()
  assert '<b>1.000</b>' in text and 'before training' in text
  assert 'within noise' in text
  assert transfer.main([str(tmp_path / 'no')]) == 2
  assert 'wanted run folders' in capsys.readouterr().err
