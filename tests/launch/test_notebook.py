"""The notebook's cells, run in order against a run folder of our making."""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / 'launch/notebook/quickstart.ipynb'

# Stands in for the training: writes what a run folder holds.
RUN = """#!/bin/bash
[ "$1 $2" = '--config=configs/quickstart.py --name=notebook' ] || exit 9
mkdir -p runs/notebook
echo '{"step": 0, "reward/mean": 0.25, "gone": null}' >runs/notebook/metrics.jsonl
echo '{"step": 1, "reward/mean": 0.75}' >>runs/notebook/metrics.jsonl
echo '<p title="x">report</p>' >runs/notebook/report.html
echo trained
"""

# Runs the code cells; IPython's HTML is one name.
PROGRAM = """
import json, sys, types
display = types.ModuleType('IPython.display')
display.HTML = lambda text: print(text)
sys.modules |= {'IPython': types.ModuleType('IPython'), 'IPython.display': display}
space = {}
for cell in json.load(open(sys.argv[1]))['cells']:
  if cell['cell_type'] == 'code':
    exec(compile(''.join(cell['source']), cell['id'], 'exec'), space)
"""


def test_cells_run_in_order_from_a_folder_below_the_checkout(tmp_path):
  below = tmp_path / 'launch/notebook'
  below.mkdir(parents=True)
  (tmp_path / 'launch/run.sh').write_text(RUN)
  (tmp_path / 'launch/run.sh').chmod(0o755)
  done = subprocess.run(
    [sys.executable, '-c', PROGRAM, str(NOTEBOOK)],
    cwd=below,
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[0] == str(tmp_path)
  assert lines[1] == 'trained'
  assert lines[2].split() == [
    *('reward/mean', 'first', '0.25', 'last', '0.75'),
  ]
  assert 'srcdoc="&lt;p title=&quot;x&quot;&gt;report' in lines[3]


def test_it_is_committed_without_outputs():
  cells = json.loads(NOTEBOOK.read_text())['cells']
  assert all(not cell.get('outputs') for cell in cells)
