"""Agreement, process rewards, transcripts and extraction, by hand."""

import io
import json
import math
import sqlite3
import zipfile

import pytest

from clawjax import types
from clawjax.tasks import agreement, extract, process, transcript, verifier

# ---- agreement -------------------------------------------------------------


def test_cohen_kappa_by_hand():
  """2x2 table 20 5 / 10 15: observed 0.7, expected 0.5, kappa 0.4."""
  pairs = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
  first, second = zip(*pairs, strict=True)
  assert agreement.cohen_kappa(first, second) == pytest.approx(0.4)
  assert agreement.cohen_kappa([0, 1, 0], [0, 1, 0]) == 1.0
  assert math.isnan(agreement.cohen_kappa([1, 1], [1, 1]))
  # Quadratic: ratings 0, 1 against 1, 0 differ by 1 each; expected over the
  # four pairs of margins is 1/2, so kappa is -1.
  got = agreement.cohen_kappa([0, 1], [1, 0], distance=agreement.interval)
  assert got == pytest.approx(-1.0)
  with pytest.raises(ValueError, match='same'):
    agreement.cohen_kappa([1], [1, 2])


def test_krippendorff_alpha_on_the_published_example():
  """The four-observer example of Krippendorff's "Computing alpha" (2011):
  nominal 0.743, interval 0.849; units in columns there, in rows here."""
  n = None
  observers = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, n, n, n],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, n, 3],
    [n, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, n],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, n],
  ]
  units = list(zip(*observers, strict=True))
  nominal = agreement.krippendorff_alpha(units, distance=agreement.nominal)
  assert nominal == pytest.approx(0.743, abs=5e-4)
  assert agreement.krippendorff_alpha(units) == pytest.approx(0.849, abs=5e-4)
  assert math.isnan(agreement.krippendorff_alpha([[1, None]]))


def test_agreement_report():
  units = [{'a': 0.0, 'b': 0.0}, {'a': 1.0, 'b': 1.0}, {'a': 0.5}]
  got = agreement.report(units)
  assert got['judges'] == {
    'a': {'mean': 0.5, 'units': 3},
    'b': {'mean': 0.5, 'units': 2},
  }
  assert got['alpha'] == 1.0 and got['kappa'] == {'a / b': 1.0}


# ---- process rewards -------------------------------------------------------


def test_rises_sum_to_best_or_to_last():
  levels = [0.0, 0.5, 0.25, 0.75, 0.5]
  assert process.rises(levels) == [0.5, 0.0, 0.25, 0.0]
  assert process.rises(levels, monotone=False) == [0.5, -0.25, 0.5, -0.25]
  assert process.rises([0.3]) == []
  with pytest.raises(ValueError):
    process.rises([])


def test_check_points_stay_passed():
  scores = [
    verifier.Score(0.0, {'a': 0.0, 'b': 0.0}),
    verifier.Score(0.5, {'a': 1.0, 'b': 0.0}),
    verifier.Score(0.5, {'a': 0.0, 'b': 1.0}),
  ]
  assert process.check_points(scores) == [0.0, 0.5, 1.0]
  assert process.check_points(scores, ['b']) == [0.0, 0.0, 1.0]


async def test_equal_snapshots_are_scored_once(folder_backend, monkeypatch):
  code = (
    'import json, os, sys\n'
    'print(json.dumps({n: os.path.exists(sys.argv[1] + "/" + n)'
    ' for n in "ab"}))'
  )
  task = types.Task(
    't/1',
    ('x',),
    verifier=types.Verifier(
      {'c.py': code.encode()}, ('python3', '/verifier/c.py', '/workspace')
    ),
  )
  made = []
  create = folder_backend.create

  async def counted(spec):
    made.append(spec)
    return await create(spec)

  monkeypatch.setattr(folder_backend, 'create', counted)
  shots = [{}, {'a': b''}, {'a': b''}, {'a': b'', 'b': b''}, {'b': b''}]
  scores = await process.snapshot_scores(task, shots, folder_backend)
  assert [s.reward for s in scores] == [0.0, 0.5, 0.5, 1.0, 0.5]
  assert len(made) == 4
  assert process.rises([s.reward for s in scores]) == [0.5, 0, 0.5, 0]


# ---- transcripts -----------------------------------------------------------


def test_events_hold_both_names_and_keys():
  call = types.ToolCall('mcp__fs__read_file', '{"file_path": "a.txt"}', 'c1')
  bad = types.ToolCall('shell', 'not json', 'c2')
  run = [
    types.Message('system', 'prompt'),
    types.Message('user', 'go'),
    types.Message('assistant', 'ok', calls=(call, bad)),
    types.Message('tool', 'A', call_id='c1', name='mcp__fs__read_file'),
  ]
  user, turn, result = transcript.openclaw_events(run)
  assert user['message'] == {
    'role': 'user',
    'content': [{'type': 'text', 'text': 'go'}],
  }
  text, read, shell = turn['message']['content']
  assert text['text'] == 'ok'
  assert (read['name'], read['nativeName']) == ('read', 'mcp__fs__read_file')
  assert read['arguments'] == {'file_path': 'a.txt', 'path': 'a.txt'}
  assert shell['name'] == 'exec' and shell['arguments'] == {'raw': 'not json'}
  assert result['message']['role'] == 'toolResult'
  assert result['message']['toolCallId'] == 'c1'
  plain = transcript.openclaw_events(run, aliases=False)[1]
  assert plain['message']['content'][1]['name'] == 'mcp__fs__read_file'
  codex = transcript.arguments('{"cmd": ["ls", "-l"]}')
  assert codex['command'] == 'ls -l'


def test_judges_see_short_results():
  run = [
    types.Message('assistant', 'x' * 3000),
    types.Message('tool', 'y' * 300),
    types.Message('assistant', ' '),
  ]
  shown = transcript.render(run)
  assert 'x' * 2000 + ' [...]' in shown and 'x' * 2001 not in shown
  assert 'y' * 200 + ' [...]' in shown and 'y' * 201 not in shown
  assert transcript.final_message(run) == 'x' * 3000


# ---- extraction ------------------------------------------------------------


def zipped(**parts):
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, 'w') as archive:
    for name, text in parts.items():
      archive.writestr(name.replace('__', '/') + '.xml', text)
  return stream.getvalue()


def test_office_files_become_text(tmp_path):
  import openpyxl

  p = '<w:p xmlns:w="w"><w:r><w:t>one </w:t><w:t>two</w:t></w:r></w:p>'
  body = f'<w:document xmlns:w="w">{p}{p}</w:document>'
  docx = zipped(word__document=body)
  assert extract.text_of('a.docx', docx) == 'one two\none two'
  slide = '<s xmlns:a="a"><a:p><a:t>{}</a:t></a:p></s>'
  slides = {
    f'ppt__slides__slide{n}': slide.format(t) for n, t in ((10, 'B'), (2, 'A'))
  }
  got = extract.text_of('a.pptx', zipped(**slides))
  assert got == '[slide 1]\nA\n\n[slide 2]\nB'
  book = openpyxl.Workbook()
  book.active.title = 'S'
  book.active.append(['x', 1, None])
  book.save(tmp_path / 'a.xlsx')
  got = extract.text_of('a.xlsx', (tmp_path / 'a.xlsx').read_bytes())
  assert got == '[sheet S]\nx\t1\t'


def test_databases_and_notebooks_become_text(tmp_path):
  file = tmp_path / 'a.db'
  with sqlite3.connect(file) as connection:
    connection.execute('CREATE TABLE "odd ""name" (n INTEGER)')
    connection.executemany(
      'INSERT INTO "odd ""name" VALUES (?)', [(n,) for n in range(600)]
    )
  connection.close()
  got = extract.text_of('a.db', file.read_bytes())
  assert got.startswith('[table odd "name]\nn\n0\n1\n')
  assert got.endswith('\n499')
  cell = {'cell_type': 'code', 'source': ['a', 'b'], 'outputs': [{'text': 'c'}]}
  got = extract.text_of('a.ipynb', json.dumps({'cells': [cell]}).encode())
  assert got == '[code]\nab\n\n[output]\nc'


def test_hostile_files_are_refused(monkeypatch):
  with pytest.raises(extract.NoReader, match='cannot be read'):
    extract.text_of('a.docx', b'PK\3\4 broken')
  doc = '<!DOCTYPE x [<!ENTITY a "b">]><w>&a;</w>'
  with pytest.raises(extract.NoReader, match='DTD'):
    extract.text_of('a.docx', zipped(word__document=doc))
  monkeypatch.setattr(extract, 'MAX_UNPACKED', 1000)
  with pytest.raises(extract.NoReader, match='when unpacked'):
    extract.text_of('a.docx', zipped(word__document='x' * 2000))
  assert extract.text_of('a.txt', b'x' * 50, max_chars=9).startswith('x' * 9)
