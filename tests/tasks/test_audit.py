"""The audit finds weak graders and passes sound ones."""

import dataclasses
import json

from clawjax import types
from clawjax.tasks import audit, synth


def graded(name, code, instruction='Write the total to out.txt.', **fields):
  return types.Task(
    f't/{name}',
    (instruction,),
    {'in.txt': b'4\n'},
    types.Verifier(
      {'c.py': code.encode()}, ('python3', '/verifier/c.py', '/workspace')
    ),
    **fields,
  )


HEAD = 'import json, os, sys, random\nos.chdir(sys.argv[1])\n'


async def test_weak_graders_are_found(folder_backend):
  exists = HEAD + 'print(json.dumps({"r": os.path.exists("out.txt")}))'
  tasks = [
    graded('exists', exists),
    graded('gift', HEAD + 'print(json.dumps({"r": 0.2}))'),
    graded('dice', HEAD + 'print(json.dumps({"r": random.random() / 25}))'),
    graded('wiped', HEAD + 'print(json.dumps({"r": not os.listdir(".")}))'),
    graded('broken', HEAD + 'sys.exit(1)'),
    graded(
      'leak',
      HEAD + 'print(json.dumps({"r": open("in.txt").read() == "5"}))',
    ),
    types.Task('t/judge', ('x',)),
  ]
  leaky = tasks[5]
  tasks[5] = dataclasses.replace(
    leaky, files={**leaky.files, 'x': leaky.verifier.files['c.py']}
  )
  done = await audit.audit(tasks, folder_backend)
  found = {(f.task.removeprefix('t/'), f.code) for f in done.findings}
  assert ('exists', 'cheap_score') in found
  assert ('gift', 'idle_scores') in found
  assert ('dice', 'not_deterministic') in found
  assert ('wiped', 'cheap_score') in found
  assert ('broken', 'grader_fails') in found
  assert ('leak', 'leak') in found
  assert done.skipped == ('t/judge',)
  assert done.scores['t/exists']['empty'] == 1.0
  assert done.scores['t/exists']['idle'] == 0.0
  assert json.dumps(audit.as_json(done))


async def test_generated_tasks_pass_their_audit(folder_backend):
  tasks = [
    *synth.tasks('train', count=1, families=['sort']),
    *synth.tasks('eval', count=1, families=['follow'], difficulty=2),
  ]
  done = await audit.audit(tasks, folder_backend, concurrency=2)
  assert done.findings == ()
  for scores in done.scores.values():
    assert scores['solution'] == 1.0 and scores['idle'] == 0.0


def test_files_that_an_instruction_names():
  text = (
    'Read in.txt and /workspace/a/b.csv, then write out/report.md, x.json; not '
    'e.g. this, /etc/passwd.txt or v1.2 or https://x.org/y.html.'
  )
  task = types.Task('t/1', (text,), {'in.txt': b''})
  assert audit.named_files(task) == ['a/b.csv', 'out/report.md', 'x.json']


async def test_a_probe_that_is_the_solution_is_no_finding(folder_backend):
  """'Join both files': all inputs in one file is what was asked for."""
  task = next(
    t
    for t in synth.tasks('train', count=20, families=['combine'])
    if synth.script(t)[0].split()[1:3] == sorted(t.files)
  )
  done = await audit.audit([task], folder_backend)
  assert done.scores[task.id]['flood'] == 1.0
  assert not done.findings
  blind = await audit.audit([task], folder_backend, solve=False)
  assert [f.code for f in blind.findings] == ['cheap_score']
