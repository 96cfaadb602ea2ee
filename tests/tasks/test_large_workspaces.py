"""Workspaces of 100 MiB: a named error unless they are wanted, then they work."""

import json
import tracemalloc

import pytest

from clawjax import errors, sandbox, types
from clawjax.sandbox import base
from clawjax.tasks import formats, verifier
from tests.tasks import test_formats as made

LARGE = 100 << 20


def clawgym(root):
  made.put(root, made.clawgym_task('good') | made.clawgym_task('big'))
  return root / 'big/input_files/b.bin'


def pinchbench(root):
  made.markdown_set(root, 'task_1_good', extra='id: task_1_good')
  entry = 'id: task_2_big\nworkspace_files:\n  - {source: b.bin}'
  made.markdown_set(root, 'task_2_big', extra=entry)
  return root / 'assets/b.bin'


def pinchbench_folder(root):
  made.markdown_set(root, 'task_1_good', extra='id: task_1_good')
  entry = 'id: task_2_big\nworkspace_files:\n  - {source: d}'
  made.markdown_set(root, 'task_2_big', extra=entry)
  return root / 'assets/d/b.bin'


def harbor(root):
  docker = made.DOCKER.replace('COPY data/', 'COPY b.bin a.txt ./\nCOPY data/')
  made.put(root, made.harbor_task('good'))
  made.put(root, made.harbor_task('big', docker=docker))
  return root / 'big/environment/b.bin'


def harbor_tests(root):
  made.put(root, made.harbor_task('good') | made.harbor_task('big'))
  return root / 'big/tests/b.bin'


def native(root):
  for name in ('good', 'big'):
    made.put(
      root / name,
      {
        'task.toml': made.TOML,
        'instruction.md': 'Do it.',
        'workspace/a.txt': 'A',
        'verifier/test.sh': 'echo 1',
      },
    )
  return root / 'big/workspace/b.bin'


def jobbench(root):
  rubric = {'rubrics': [{'rubric': 'R', 'weight': 1, 'criterion': 'c'}]}
  for name in ('good', 'big'):
    place = f'dataset/{name}/task1'
    made.put(
      root,
      {
        f'{place}/RUBRICS.json': json.dumps(rubric),
        f'{place}/task_folder/TASK_INSTRUCTIONS.txt': 'File it.',
      },
    )
  return root / 'dataset/big/task1/task_folder/b.bin'


SETS = [
  clawgym,
  pinchbench,
  pinchbench_folder,
  harbor,
  harbor_tests,
  native,
  jobbench,
]


@pytest.mark.parametrize('make', SETS, ids=lambda make: make.__name__)
def test_a_workspace_of_100_mib_is_a_named_error(tmp_path, make):
  """Its file is sparse: it takes no room here, and none may be read."""
  large = make(tmp_path)
  large.parent.mkdir(parents=True, exist_ok=True)
  with large.open('wb') as file:
    file.truncate(LARGE)
  tracemalloc.start()
  try:
    got = formats.load(tmp_path, make.__name__.partition('_')[0])
    most = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  (task,) = got.tasks
  assert 'good' in task.id
  (fault,) = got.faults
  assert fault.code == 'too_large' and 'big' in fault.id
  assert '--max-mib' in fault.text
  assert most < LARGE / 2


CHECK = """
  import json, pathlib
  files = [p for p in pathlib.Path('/workspace').rglob('*') if p.is_file()]
  data = pathlib.Path('/workspace/b.bin').read_bytes()
  right = len(data) == 100 << 20 and data[-3:] == b'end' and len(files) == 3
  print(json.dumps({'reward': float(right)}))
"""


async def test_a_workspace_of_100_mib_works_where_it_is_wanted(tmp_path):
  """Loaded, filled into a sandbox, added to there, read back, and graded."""
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(probe.text)
  large = native(tmp_path)
  with large.open('wb') as file:
    file.truncate(LARGE - 3)
    file.seek(LARGE - 3)
    file.write(b'end')
  options = formats.Options(max_bytes=LARGE + (1 << 20))
  tasks = {t.id: t for t in formats.load(tmp_path, 'native', options).tasks}
  (task,) = [t for name, t in tasks.items() if 'big' in name]
  made.put(tmp_path, {'check.py': CHECK})
  task = types.Task(
    task.id,
    task.turns,
    task.files,
    types.Verifier(
      {'check.py': (tmp_path / 'check.py').read_bytes()},
      ('python3', '-I', '/verifier/check.py'),
      'json_line',
      60.0,
    ),
  )
  limits = base.Limits()
  box = await backend.create(base.SandboxSpec(label='large'))
  try:
    for path, data in task.files.items():
      await box.write(path, data)
    await box.exec(['sh', '-c', 'echo done > out.txt'])
    with pytest.raises(errors.SandboxError, match='more than'):
      await box.export()
    workspace = await box.export(max_bytes=limits.workspace_bytes)
  finally:
    await box.destroy()
  assert workspace['out.txt'] == b'done\n' and len(workspace) == 3
  score = await verifier.verify(task, workspace, backend)
  assert score.reward == 1.0
  await backend.close()
