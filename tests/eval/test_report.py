"""The report page: whole and broken runs, and that nothing can break out."""

import json
import shutil

import numpy as np
import pytest

from clawjax import types
from clawjax.eval import folder, gallery, report, scores


@pytest.fixture
def byte_tokens(monkeypatch, synthetic):
  monkeypatch.setattr(
    gallery, 'load_tokenizer', lambda run, notes: synthetic.Bytes()
  )


@pytest.fixture
def copy(run_dir, tmp_path):
  shutil.copytree(run_dir, tmp_path / 'run')
  return tmp_path / 'run'


def _page(path, parse):
  return parse(report.write_report(path).read_text())


def test_a_whole_run(copy, parse, byte_tokens):
  page = _page(copy, parse)
  for part in (
    'Result on tasks not seen in training',
    'By part',
    'Curves',
    'Entropy',
    'Delivered tokens',
    'How rollouts ended',
    'Where the time went',
    'Packing',
    'Rollouts',
    'Everything logged',
  ):
    assert part in page.text
  assert [t for t, _ in page.tags].count('svg') >= 6


def test_the_page_asks_the_network_for_nothing(copy, byte_tokens, parse):
  source = report.write_report(copy).read_text()
  page = parse(source)
  for tag, attrs in page.tags:
    assert 'src' not in attrs and 'srcset' not in attrs
    assert tag not in ('iframe', 'object', 'embed', 'img', 'base', 'form')
    if 'href' in attrs:
      assert attrs['href'].startswith(('#', 'data:', 'rollouts/'))
  for word in ('http://', 'https://', '@import', 'url('):
    assert word not in source
  assert not list(copy.glob('*.tmp'))


def test_headline_numbers_are_those_of_the_trials(copy, parse, byte_tokens):
  # Two tasks. Sampled: a 0.0 -> 1.0, b 0.5 -> 0.5; greedy: both 0 -> 0.
  def rows(a, b, greedy):
    return [
      {
        'task_id': k,
        'family': f'family-{k}',
        'sample_index': 0,
        'reward': r,
        'outcome': 'ok',
        'greedy': greedy,
      }
      for k, r in (('a', a), ('b', b))
    ]

  (copy / 'eval' / 'before.json').write_text(
    json.dumps(rows(0.0, 0.5, False) + rows(0.0, 0.0, True))
  )
  (copy / 'eval' / 'after.json').write_text(
    json.dumps(rows(1.0, 0.5, False) + rows(0.0, 0.0, True))
  )
  text = ' '.join(_page(copy, parse).text.split())
  # The interval of two tasks spans both values, so 'moved', not 'rose'.
  assert 'Pass@1 moved from 0.250 to 0.750' in text
  assert 'not distinguishable from no change' in text
  assert 'before: 4 rollouts of 2 tasks, 3 zeros' in text.lower()


def test_sharpening_is_called_so(copy, parse, byte_tokens):
  def rows(sampled, greedy):
    return [
      {'task_id': f't{i}', 'reward': r, 'greedy': g, 'outcome': 'ok'}
      for i in range(20)
      for r, g in ((sampled, False), (greedy, True))
    ]

  (copy / 'eval' / 'before.json').write_text(json.dumps(rows(0.5, 1.0)))
  (copy / 'eval' / 'after.json').write_text(json.dumps(rows(1.0, 1.0)))
  assert 'may be sharpening' in _page(copy, parse).text
  (copy / 'eval' / 'before.json').write_text(json.dumps(rows(0.5, 0.5)))
  assert 'more than mere sharpening' in _page(copy, parse).text


@pytest.mark.parametrize(
  'missing',
  [
    'config.json',
    'metrics.jsonl',
    'eval',
    'eval/after.json',
    'eval/before.json',
    'rollouts',
    'rollouts/eval',
  ],
)
def test_a_missing_part_leaves_a_page(copy, parse, byte_tokens, missing):
  target = copy / missing
  shutil.rmtree(target) if target.is_dir() else target.unlink()
  _page(copy, parse)


def test_an_empty_folder_leaves_a_page_that_says_so(tmp_path, parse):
  page = _page(tmp_path, parse)
  assert 'metrics.jsonl is missing' in page.text
  assert 'no evaluation' in page.text


@pytest.mark.parametrize('junk', ['', '{', 'null', '[1]', '{"a": []}', '\x00'])
def test_broken_files_leave_a_page(copy, parse, byte_tokens, junk):
  for path in copy.rglob('*.json*'):
    path.write_text(junk)
  _page(copy, parse)


def test_a_torn_last_line_costs_that_line_alone(copy):
  path = copy / 'metrics.jsonl'
  whole = len(path.read_text().splitlines())
  with path.open('a') as file:
    file.write('{"step": 7, "train/rew')
  run = folder.read(copy)
  assert len(run.rows) == whole
  assert any('1 lines' in note for note in run.notes)


def test_null_metrics_are_gaps(copy, parse, byte_tokens):
  rows = [
    {'step': i, 'train/reward_mean': None if i == 1 else 0.5} for i in range(3)
  ]
  (copy / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  run = folder.read(copy)
  assert run.series('train/reward_mean') == ([0.0, 2.0], [0.5, 0.5])
  _page(copy, parse)


def test_text_of_a_rollout_cannot_break_out(
  copy, parse, byte_tokens, synthetic
):
  rng = np.random.default_rng(0)
  evil = '</span></details><script>alert(1)</script>"\'&\x1b[31m\u202e\x00'
  item = types.Rollout(
    rollout_id=f'train/{evil}',
    task_id=evil,
    harness=evil,
    calls=(
      synthetic.call(rng, 'r', 0, evil, evil, error=evil, malformed=True),
    ),
    reward=0.5,
    checks={evil: 0.5},
    outcome='harness_error',
    reason=evil,
    timings={evil: 1.0},
  )
  shutil.rmtree(copy / 'rollouts')
  place = copy / 'rollouts' / 'train' / '00001'
  place.mkdir(parents=True)
  (place / 'x.json').write_text(types.dumps(item))
  source = report.write_report(copy).read_text()
  page = parse(source)
  assert [t for t, _ in page.tags].count('script') == 1
  assert (
    '\x1b' not in source and '\u202e' not in source and '\x00' not in source
  )
  assert '\\x1b[31m[U+202E]\\x00' in page.text


def test_rollouts_over_the_budget_are_sampled(run_dir):
  everything = folder.read(run_dir)
  size = sum(p.stat().st_size for p in run_dir.glob('rollouts/*/*/*.json'))
  part = folder.read(run_dir, rollout_bytes=size // 3)
  assert 0 < len(part.rollouts) <= everything.rollouts_seen // 2
  assert part.rollouts_seen == everything.rollouts_seen
  assert any('spread over all steps' in n for n in part.notes)


def test_advantages_of_a_group_by_hand():
  # Rewards 1, 0, 0, 1: mean 0.5, population deviation 0.5: +1, -1, -1, +1.
  def item(i, reward, **fields):
    rollout = types.Rollout(
      f'r{i}', 't', 'pi', index=i, reward=reward, **fields
    )
    return folder.Recorded('train', '00001', rollout)

  items = [item(i, r) for i, r in enumerate([1.0, 0.0, 0.0, 1.0])]
  items.append(item(4, None, outcome='infra_error'))
  found = gallery.advantages(items)
  assert [found[i] for i in range(4)] == pytest.approx([1, -1, -1, 1], abs=1e-5)
  assert 4 not in found
  # Equal rewards: nothing to learn.
  equal = [item(i, 0.5) for i in range(3)]
  assert gallery.advantages(equal) == pytest.approx({0: 0, 1: 0, 2: 0})
  # What the trainer stored wins.
  assert gallery.advantages(items, {'r1': 0.25}) == {1: 0.25}


def test_without_a_tokenizer_the_text_is_that_of_the_calls(copy, parse):
  # The config names 'tiny'; break it so that it cannot load.
  config = json.loads((copy / 'config.json').read_text())
  config['tokenizer'] = 'hf:/nowhere'
  (copy / 'config.json').write_text(json.dumps(config))
  page = _page(copy, parse)
  assert "Tokenizer 'hf:/nowhere' cannot be loaded" in page.text
  assert 'Done.<|im_end|>' in page.text


def test_trials_with_wrong_types_are_no_crash(copy, parse, byte_tokens):
  (copy / 'eval' / 'after.json').write_text('[{"task_id": "a"}, 3]')
  page = _page(copy, parse)
  assert 'holds an entry that is no trial' in page.text
  assert scores.trial_from_json is not None


def test_the_command(copy, capsys, byte_tokens, tmp_path):
  assert report.main([str(copy), '--rollouts', '2']) == 0
  assert capsys.readouterr().out.strip() == str(copy / 'report.html')
  assert (copy / 'report.html').read_text().count('class="rollout"') == 2
  assert report.main([str(tmp_path / 'nowhere')]) == 2


def test_a_control_run_is_called_so(copy, parse, byte_tokens):
  config = json.loads((copy / 'config.json').read_text())
  config['loop'] = {'credit': {'shuffle_rewards': True}}
  (copy / 'config.json').write_text(json.dumps(config))
  assert 'A control run' in _page(copy, parse).text


def test_stored_advantages_are_shown(copy, parse, byte_tokens):
  """The trainer's own numbers, not ours from the rewards."""
  run = folder.read(copy)
  ids = [r.rollout.rollout_id for r in run.rollouts if r.phase == 'train']
  path = copy / 'rollouts' / 'train' / '00000.advantages.json'
  path.write_text(json.dumps(dict.fromkeys(ids, 0.4321)))
  assert 'advantage +0.432' in _page(copy, parse).text
