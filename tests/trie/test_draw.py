"""The drawing says what the tree is."""

import json
import xml.etree.ElementTree as ET

from clawjax import trie, types
from clawjax.trie import draw


def example(script):
  call = script('r')
  call([1, 2, 3], [4, 5])
  call([1, 2, 3], [6])
  call([1, 2, 3, 4, 5, 7], [8])
  return call.calls


def test_text(script):
  tree, _ = trie.filter(trie.build(example(script)))
  assert draw.text(tree).splitlines() == [
    'r: 3 calls, 8 nodes; tokens: 4 sampled, 3 trained, 1 retry',
    '  3 context',
    '    2 sampled c0',
    '    1 context',
    '    1 sampled c2',
    '    1 sampled c1  retry, not trained',
  ]


def test_svg_has_a_bar_per_run(script):
  tree, _ = trie.filter(trie.build(example(script)))
  root = ET.fromstring(draw.svg(tree))
  bars = root.findall('{http://www.w3.org/2000/svg}rect')
  kinds = [b.get('class') for b in bars]
  assert kinds == ['context', 'trained', 'context', 'trained', 'untrained']


def test_rows(script):
  """3 context, answers trained, padding behind; the retry is not packed."""
  tree, _ = trie.filter(trie.build(example(script)))
  batch = trie.pack([tree], row_tokens=9, row_buckets=(9,))
  assert draw.rows_text(batch) == '---##-#..'


def test_command_line(script, tmp_path, capsys):
  calls = example(script)
  lines = tmp_path / 'calls.jsonl'
  lines.write_text('\n'.join(json.dumps(types.to_json(c)) for c in calls))
  rollout = types.Rollout('r', 'task', 'pi', calls=tuple(calls))
  whole = tmp_path / 'rollout.json'
  whole.write_text(types.dumps(rollout))
  outputs = []
  for path in (lines, whole):
    assert draw.main([str(path), '--svg', str(tmp_path / 'x.svg')]) == 0
    outputs.append(capsys.readouterr().out)
  assert outputs[0] == outputs[1]
  assert '1 sampled c1  retry, not trained' in outputs[0]
  assert (tmp_path / 'x.svg').read_text().startswith('<svg')


def test_a_file_that_holds_no_calls(tmp_path, capsys):
  path = tmp_path / 'x.json'
  path.write_text('{"a": 1}')
  assert draw.main([str(path)]) == 2
  assert 'wanted calls or rollouts' in capsys.readouterr().err
  path.write_text('no json')
  assert draw.main([str(path)]) == 2


def test_nothing_to_draw():
  tree = trie.build([])
  assert draw.text(tree).startswith('trie: 0 calls')
  ET.fromstring(draw.svg(tree))
