"""metrics.jsonl is one history, whatever happened to the process."""

import json
import math

from clawjax import metrics


def test_rows_come_back_and_resume_drops_later_steps(tmp_path):
  writer = metrics.Writer(tmp_path, tensorboard=False)
  for step in range(4):
    writer.write(step, {'a/b': step * 0.5})
  writer.close()
  writer = metrics.Writer(tmp_path, resume_step=1, tensorboard=False)
  writer.write(2, {'a/b': 9.0})
  writer.close()
  rows = metrics.read(tmp_path)
  assert [(r['step'], r['a/b']) for r in rows] == [(0, 0.0), (1, 0.5), (2, 9.0)]


def test_a_torn_line_is_cut(tmp_path):
  writer = metrics.Writer(tmp_path, tensorboard=False)
  writer.write(0, {'x': 1.0})
  writer.close()
  path = tmp_path / metrics.FILE
  path.write_text(path.read_text() + '{"step": 1, "x"')
  assert len(metrics.read(tmp_path)) == 1
  writer = metrics.Writer(tmp_path, resume_step=0, tensorboard=False)
  writer.write(1, {'x': 2.0})
  writer.close()
  assert [r['x'] for r in metrics.read(tmp_path)] == [1.0, 2.0]


def test_non_finite_is_null_and_counted(tmp_path):
  writer = metrics.Writer(tmp_path, tensorboard=False)
  row = writer.write(0, {'x': math.nan, 'y': 1.0})
  writer.close()
  assert row['x'] is None and row['log/non_finite'] == 1
  line = (tmp_path / metrics.FILE).read_text()
  assert 'NaN' not in line
  assert json.loads(line)['y'] == 1.0


def test_tensorboard_events_hold_the_values(tmp_path):
  writer = metrics.Writer(tmp_path)
  writer.write(3, {'train/reward': 0.25})
  writer.close()
  files = list((tmp_path / 'tensorboard').glob('events*'))
  assert len(files) == 1
  assert b'train/reward' in files[0].read_bytes()
