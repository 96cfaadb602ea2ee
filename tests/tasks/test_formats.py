"""Every loader on small sets of our own, whole and broken, and graders run."""

import dataclasses
import json
import textwrap

import pytest

from clawjax import errors, types
from clawjax.tasks import formats, synth, verifier
from clawjax.tasks.formats import dockerfile, markdown, native, report, tree


def put(root, files):
  for path, text in files.items():
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(text, bytes):
      target.write_bytes(text)
    else:
      target.write_text(textwrap.dedent(text).lstrip('\n'), encoding='utf-8')
  return root


def codes(items):
  return {item.id: item.code for item in items}


# ---- ClawGym ---------------------------------------------------------------

REWARD_SH = (
  'python3 /root/.openclaw/workspace/reward/check.py x | python3 -c '
  "'import json, sys; data = json.load(sys.stdin); "
  "print(sum(float(v) for v in data.values()) / len(data))'\n"
)
CHECK = """
  import json, os, sys
  root = sys.argv[1]
  path = os.path.join(root, 'out.txt')
  there = os.path.exists(path)
  print(json.dumps({
    'there': 1.0 if there else 0.0,
    'right': 1.0 if there and open(path).read().strip() == '7' else 0.0,
    'payload': os.path.exists(os.environ['OPENCLAW_REWARD_PAYLOAD']) * 0.5,
  }, indent=1))
"""


def clawgym_task(name, **entry):
  data = {
    'task_id': name,
    'user_query': 'Write the sum of in.txt to out.txt.',
    'metadata': {'category': '', 'grading_type': 'automated'},
    'input_mount_dir': '/root/.openclaw/workspace',
    **entry,
  }
  return {
    f'{name}/data_entry.json': json.dumps(data),
    f'{name}/input_files/in.txt': '3\n4\n',
    f'{name}/reward/reward.sh': REWARD_SH,
    f'{name}/reward/check.py': CHECK,
  }


async def test_clawgym_folders_load_and_grade(tmp_path, folder_backend):
  put(tmp_path, clawgym_task('task_1') | clawgym_task('task_2'))
  put(tmp_path, {'README.md': 'not a task', '.cache/x': ''})
  domains = put(tmp_path / 'd', {'domains.json': '{"task_1": "analysis"}'})
  got = formats.load(
    tmp_path,
    'clawgym',
    formats.Options(domains=str(domains / 'domains.json')),
  )
  assert codes(got.faults) == {'d': 'missing_file'}
  first, second = got.tasks
  assert first.id == 'clawgym/task_1' and first.metadata['domain'] == 'analysis'
  assert second.metadata['domain'] == 'unknown'
  assert dict(first.files) == {'in.txt': b'3\n4\n'}
  idle = await verifier.verify(first, first.files, folder_backend)
  # By hand: there 0, right 0, payload 0.5, over three keys.
  assert idle.reward == pytest.approx(0.5 / 3)
  # A grader that the agent planted is replaced before it is run.
  work = {**first.files, 'out.txt': b'7\n', 'reward/check.py': b'print({})'}
  done = await verifier.verify(first, work, folder_backend)
  assert done.checks == {'there': 1.0, 'right': 1.0, 'payload': 0.5}
  assert done.reward == pytest.approx(2.5 / 3)


async def test_clawgym_own_reward_script_is_run(tmp_path, folder_backend):
  files = clawgym_task('task_1')
  files['task_1/reward/reward.sh'] = (
    'test -f /root/.openclaw/workspace/in.txt && echo noise && echo 0.25\n'
  )
  (task,) = formats.load(put(tmp_path, files), 'clawgym').tasks
  score = await verifier.verify(task, task.files, folder_backend)
  assert score.reward == 0.25


def test_clawgym_broken_folders_are_named(tmp_path):
  good = clawgym_task('good')
  put(tmp_path, good)
  put(tmp_path, clawgym_task('renamed', task_id='other'))
  put(tmp_path, clawgym_task('json'))
  put(tmp_path, {'json/data_entry.json': '{"task_id": '})
  put(tmp_path, clawgym_task('noinput'))
  (tmp_path / 'noinput/input_files/in.txt').unlink()
  (tmp_path / 'noinput/input_files').rmdir()
  put(tmp_path, clawgym_task('nograder'))
  (tmp_path / 'nograder/reward/reward.sh').unlink()
  put(tmp_path, clawgym_task('leak'))
  put(tmp_path, {'leak/input_files/reward/check.py': 'x'})
  put(tmp_path, clawgym_task('link'))
  (tmp_path / 'link/input_files/up').symlink_to('/etc/passwd')
  put(tmp_path, clawgym_task('big'))
  put(tmp_path, {'big/input_files/b.bin': b'x' * 2000})
  put(tmp_path, clawgym_task('noquery', user_query='  '))
  got = formats.load(tmp_path, 'clawgym', formats.Options(max_bytes=1500))
  assert [t.id for t in got.tasks] == ['clawgym/good']
  assert codes(got.faults) == {
    'renamed': 'id_mismatch',
    'json': 'bad_json',
    'noinput': 'missing_file',
    'nograder': 'missing_file',
    'leak': 'grader_leak',
    'link': 'path_escape',
    'big': 'too_large',
    'noquery': 'bad_field',
  }
  assert got.counts() == '1 loaded, 0 unsupported, 8 broken'


def line(**fields):
  return {
    'prompt': 'Do it.',
    'hook_code': 'python3 reward/test.py /root/x/workspace/workspace',
    'hook_lang': 'bash',
    'input_files': [
      {'file_path': 'a.txt', 'content': 'A'},
      {'file_path': 'reward/test.py', 'content': textwrap.dedent(CHECK)},
    ],
    **fields,
  }


RULES = [
  {'name': 'clear', 'file_path': 'a.md', 'scores': {'0.0': 'no', '1': 'yes'}},
  {'name': 'short', 'target_file': 'a.md', 'rule': 'At most ten lines.'},
]


async def test_clawgym_lines_hide_the_grader(tmp_path, folder_backend):
  items = [
    line(task_id='one'),
    line(origin_template='id: from-origin\nname: x', rules=RULES),
    line(hook_code='', hook_lang='', input_files=[], rule=RULES),
    line(rules=RULES, reward_aggregation='average_code_and_rubric'),
  ]
  file = tmp_path / 'set.jsonl'
  file.write_text('\n'.join(json.dumps(i) for i in items) + '\n\n')
  got = formats.load(file, 'clawgym')
  assert not got.faults
  one, two, three, four = got.tasks
  assert one.id == 'clawgym/one' and two.id == 'clawgym/from-origin'
  assert three.id.startswith('clawgym/line-3-')
  assert all('reward/test.py' not in t.files for t in got.tasks)
  assert (await verifier.verify(one, one.files, folder_backend)).reward == (
    pytest.approx(0.5 / 3)
  )
  assert 'judge' not in one.metadata
  assert two.metadata['weights'] == {'code': 0.7, 'rubric': 0.3}
  assert three.verifier is None
  assert three.metadata['weights'] == {'code': 0.0, 'rubric': 1.0}
  assert four.metadata['weights'] == {'code': 0.5, 'rubric': 0.5}
  first, second = two.metadata['judge']['items']
  assert first['anchors'] == [[0.0, 'no'], [1.0, 'yes']]
  assert [a[0] for a in second['anchors']] == [0, 0.25, 0.5, 0.75, 1]
  # The same items as one JSON array.
  array = tmp_path / 'set.json'
  array.write_text(json.dumps(items))
  assert [t.id for t in formats.load(array, 'clawgym').tasks][:2] == [
    one.id,
    two.id,
  ]


def test_clawgym_broken_lines(tmp_path):
  escape = {'file_path': '../../etc/x', 'content': ''}
  rooted = {'file_path': '/etc/x', 'content': ''}
  lines = [
    '{"prompt": ',
    json.dumps(line(prompt='')),
    json.dumps(line(input_files=[escape])),
    json.dumps(line(input_files=[rooted])),
    json.dumps(line(hook_code='python3 reward/none.py x')),
    json.dumps(line(hook_code='', input_files=[])),
    json.dumps(line(rules=[{'name': 'x', 'scores': {'two': 'y'}}])),
    json.dumps(line(input_files=[{'file_path': 'a', 'content': 3}])),
    '[1]',
  ]
  file = tmp_path / 'set.jsonl'
  file.write_text('\n'.join(lines))
  got = formats.load(file, 'clawgym')
  assert [item.code for item in got.faults] == [
    'bad_json',
    'bad_field',
    'path_escape',
    'path_escape',
    'no_verifier',
    'no_verifier',
    'bad_rubric',
    'bad_field',
    'bad_json',
  ]


# ---- markdown --------------------------------------------------------------

MARKDOWN = """
---
id: task_7_notes
name: Notes
category: memory
grading_type: {grading}
timeout_seconds: 90
source_query: he said: "do: this
  and: that
{extra}
---

## Prompt

Write notes.md like this:

````md
```
## Automated Checks
```
````

## Expected Behavior

Notes are there.

## Grading Criteria

- [ ] File exists
- [x] Reads well

## Automated Checks

```python
def grade(transcript, workspace_path):
    '''A fence in a string does not end it: ``` '''
    import os
    said = [b for e in transcript for b in e['message']['content']]
    calls = [b['name'] for b in said if b['type'] == 'toolCall']
    print('noise')
    return {{
      'there': os.path.exists(os.path.join(workspace_path, 'notes.md')),
      'ran': 'exec' in calls,
      'remark': 'text',
    }}
```

## LLM Judge Rubric

### Clarity (Weight: 100%)

Clear is 1.
"""


def markdown_set(root, stem='task_7_notes', grading='hybrid', extra=''):
  text = MARKDOWN.format(grading=grading, extra=extra)
  return put(root, {f'tasks/{stem}.md': text})


async def test_pinchbench_task_loads_and_grades(tmp_path, folder_backend):
  extra = (
    'grading_weights: {automated: 3, llm_judge: 1}\n'
    'workspace_files:\n'
    '  - {path: in/a.txt, content: "A", role: input}\n'
    '  - {source: b.txt, dest: b/c.txt}'
  )
  markdown_set(tmp_path, extra=extra)
  put(tmp_path, {'assets/b.txt': 'B', 'tasks/TASK_TEMPLATE.md': 'no'})
  got = formats.load(tmp_path, 'pinchbench')
  assert not got.faults
  (task,) = got.tasks
  assert '## Automated Checks' in task.turns[0]  # inside a fence: text
  assert dict(task.files) == {'in/a.txt': b'A', 'b/c.txt': b'B'}
  assert task.metadata['weights'] == {'code': 0.75, 'rubric': 0.25}
  assert task.metadata['judge']['checklist'] == ['File exists', 'Reads well']
  assert task.time_limit_s == 90
  run = [
    types.Message('user', 'go'),
    types.Message('assistant', calls=(types.ToolCall('Bash', '{}', 'c1'),)),
    types.Message('tool', 'ok', call_id='c1'),
  ]
  score = await verifier.verify(
    task, {'notes.md': b''}, folder_backend, transcript=run, code_only=True
  )
  assert score.checks == {'there': 1.0, 'ran': 1.0}
  assert 'remark' in score.notes
  plain = await verifier.verify(
    task,
    {'notes.md': b''},
    folder_backend,
    transcript=run,
    code_only=True,
    aliases=False,
  )
  assert plain.reward == 0.5  # 'Bash' is not what the grader looks for
  with pytest.raises(errors.VerifierError, match='no judge is configured'):
    await verifier.verify(task, {}, folder_backend)


def test_misspelt_weights_warn_and_can_follow_upstream(tmp_path):
  markdown_set(tmp_path, extra='grading_weights: {automated: 0.7, llm: 0.3}')
  got = formats.load(tmp_path, 'qwenclawbench')
  (task,) = got.tasks
  assert task.metadata['weights'] == pytest.approx({'code': 0.7, 'rubric': 0.3})
  assert task.metadata['hybrid'] == 'penalised'
  assert codes(got.warnings) == {'task_7_notes': 'misspelt_key'}
  upstream = formats.load(
    tmp_path,
    'qwenclawbench',
    formats.Options(weights_compat='upstream', hybrid='weighted'),
  )
  # The judge keeps its default of 0.5: 0.7 / 1.2 and 0.5 / 1.2.
  assert upstream.tasks[0].metadata['weights'] == pytest.approx(
    {'code': 0.7 / 1.2, 'rubric': 0.5 / 1.2}
  )
  assert 'hybrid' not in upstream.tasks[0].metadata
  assert upstream.provenance.options == {
    'weights_compat': 'upstream',
    'hybrid': 'weighted',
  }


def test_markdown_problems_are_named(tmp_path):
  markdown_set(tmp_path, extra='grading_weights: {auto: 1}')
  for stem, extra in {
    'task_asset': 'workspace_files: [{source: no.txt, dest: a}]',
    'task_escape': 'workspace_files: [{path: ../x, content: y}]',
    'task_yaml': 'name: [unclosed',
    'task_web': 'external_dependency: web',
    'task_sees': 'input_modality: image',
    'task_mock': 'external_dependency: requires_mock',
    'task_grading': 'grading_type: vibes',
    'task_sessions': 'sessions: [{id: x}]',
    'task_time': 'timeout_seconds: soon',
  }.items():
    markdown_set(tmp_path, stem, extra=f'{extra}\nid: {stem}')
  put(tmp_path, {'tasks/task_bare.md': 'no front matter\n'})
  put(tmp_path, {'tasks/task_latin.md': b'---\nid: \xff\n---\n'})
  got = formats.load(tmp_path, 'qwenclawbench')
  assert codes(got.faults) == {
    'task_7_notes': 'misspelt_key',
    'task_asset': 'missing_asset',
    'task_escape': 'path_escape',
    'task_yaml': 'bad_yaml',
    'task_grading': 'bad_field',
    'task_sessions': 'bad_field',
    'task_time': 'bad_field',
    'task_bare': 'no_front_matter',
    'task_latin': 'not_utf8',
  }
  assert codes(got.unsupported) == {
    'task_web': 'needs_network',
    'task_sees': 'multimodal',
    'task_mock': 'needs_mock',
  }
  allowed = formats.Options(allow=('needs_network', 'multimodal', 'needs_mock'))
  assert not formats.load(tmp_path, 'qwenclawbench', allowed).unsupported


def test_sessions_become_turns(tmp_path):
  extra = (
    'id: task_s\nsessions:\n  - {id: a, prompt: first}\n'
    '  - {message: second, new_session: true}'
  )
  markdown_set(tmp_path, 'task_s', grading='llm_judge', extra=extra)
  (task,) = formats.load(tmp_path, 'pinchbench').tasks
  assert task.turns == ('first', 'second')
  assert task.metadata['new_session'] == [False, True]
  assert task.verifier is None
  assert task.metadata['weights'] == {'code': 0.0, 'rubric': 1.0}


def test_sections_follow_tilde_and_long_fences():
  body = '## Prompt\na\n~~~\n## Notes\n```\n~~~\nb\n## Additional Notes (x)\nc'
  assert markdown.sections(body) == {
    'Prompt': 'a\n~~~\n## Notes\n```\n~~~\nb',
    'Additional Notes': 'c',
  }


# ---- Harbor ----------------------------------------------------------------

TOML = """
version = "1.0"
[metadata]
category = "files"
[verifier]
timeout_sec = 30.0
[agent]
timeout_sec = 45.0
[environment]
memory = "2G"
allow_internet = false
"""
DOCKER = """
FROM python:3.12-slim
# comment
ENV A=1
WORKDIR /workspace
COPY data/ ./data/
COPY a.txt \\
  b.txt /workspace/
RUN mkdir -p /workspace/out && chmod 755 /workspace
"""


def harbor_task(name, toml=TOML, docker=DOCKER, **more):
  return {
    f'{name}/task.toml': toml,
    f'{name}/instruction.md': 'Do it.\n',
    f'{name}/environment/Dockerfile': docker,
    f'{name}/environment/data/x.csv': 'x\n',
    f'{name}/environment/a.txt': 'A',
    f'{name}/environment/b.txt': 'B',
    f'{name}/tests/test.sh': 'echo hi\n',
    **{f'{name}/{k}': v for k, v in more.items()},
  }


def test_harbor_copies_become_the_workspace(tmp_path):
  put(tmp_path, harbor_task('one', **{'solution/solve.sh': 'true'}))
  (task,) = formats.load(tmp_path, 'harbor').tasks
  assert dict(task.files) == {
    'data/x.csv': b'x\n',
    'a.txt': b'A',
    'b.txt': b'B',
  }
  assert task.time_limit_s == 45 and task.verifier.timeout_s == 30
  assert task.verifier.output == 'harbor'
  assert task.metadata['solution'].endswith('one/solution')


def test_harbor_refusals_have_reasons(tmp_path):
  change = lambda old, new: DOCKER.replace(old, new)  # noqa: E731
  cases = {
    'apt': harbor_task('apt', docker=change('RUN mkdir', 'RUN apt-get x')),
    'app': harbor_task('app', docker=change('/workspace', '/app')),
    'stages': harbor_task('stages', docker=DOCKER + 'FROM debian\n'),
    'add': harbor_task('add', docker=DOCKER + 'ADD https://x.org/y /y\n'),
    'base': harbor_task('base', docker=change('python:', 'corp/own:')),
    'image': harbor_task('image', toml=TOML + 'docker_image = "x:1"\n'),
    'win': harbor_task('win', toml=TOML + 'os = "windows"\n'),
    'gpu': harbor_task('gpu', toml=TOML + 'gpus = 1\n'),
    'allow': harbor_task('allow', toml=TOML + 'network_mode = "allowlist"\n'),
    'steps': harbor_task('steps', toml=TOML + '[[steps]]\nname = "a"\n'),
    'own': harbor_task(
      'own',
      toml=TOML.replace('[verifier]', '[verifier]\nenvironment = {}').replace(
        'environment = {}', 'environment_mode = "separate"'
      ),
    ),
    'both': harbor_task('both', toml=TOML + 'memory_mb = 3\n'),
    'mcp': harbor_task(
      'mcp', toml=TOML + '[[environment.mcp_servers]]\nname = "m"\n'
    ),
    'toml': harbor_task('toml', toml='[metadata\n'),
    'gone': harbor_task('gone', docker=change('a.txt', 'zzz.txt')),
    'up': harbor_task('up', docker=change('a.txt', '../../a.txt')),
  }
  for files in cases.values():
    put(tmp_path, files)
  (tmp_path / 'image/environment/Dockerfile').unlink()
  got = formats.load(tmp_path, 'harbor')
  assert codes(got.unsupported) == {
    **dict.fromkeys(
      ['apt', 'app', 'stages', 'add', 'base', 'image'], 'needs_docker'
    ),
    'win': 'needs_windows',
    'gpu': 'needs_accelerator',
    'allow': 'needs_egress_filter',
    'steps': 'multi_step',
    'own': 'separate_verifier',
    'mcp': 'needs_mcp',
  }
  assert codes(got.faults) == {
    'both': 'bad_field',
    'toml': 'bad_toml',
    'gone': 'missing_file',
    'up': 'path_escape',
  }
  docker = formats.load(
    tmp_path, 'harbor', formats.Options(allow=('needs_docker',))
  )
  by_name = {t.metadata['stem']: t for t in docker.tasks}
  assert by_name['image'].metadata['image'] == 'x:1'
  assert by_name['apt'].metadata['build'].endswith('apt/environment')


def test_dockerfile_lines_are_joined():
  got = dockerfile.instructions('FROM a\nRUN x && \\\n  # no\n  y\n\nCMD z')
  assert got == [('FROM', 'a'), ('RUN', 'x && y'), ('CMD', 'z')]


def test_harbor_variables_have_defaults(tmp_path, monkeypatch):
  monkeypatch.setenv('CLAWJAX_A', 'set')
  toml = TOML.replace(
    '[agent]', 'env = {A = "${CLAWJAX_A}", B = "${CLAWJAX_B:-two}"}\n[agent]'
  )
  put(tmp_path, harbor_task('one', toml=toml))
  missing = TOML.replace('[agent]', 'env = {A = "${CLAWJAX_NO}"}\n[agent]')
  put(tmp_path, harbor_task('two', toml=missing))
  got = formats.load(tmp_path, 'harbor')
  assert got.tasks[0].metadata['verifier_env'] == {'A': 'set', 'B': 'two'}
  assert codes(got.unsupported) == {'two': 'needs_variable'}


# ---- native ----------------------------------------------------------------


def test_native_folders_round_trip(tmp_path):
  for index, task in enumerate(synth.tasks('train', count=9, difficulty=2)):
    native.write(task, tmp_path / str(index))
  odd = types.Task(
    'x/odd "name"',
    ('one\n\n"two" \\ three', 'second turn é'),
    {'sub/b.bin': bytes(range(256)), 'run.sh': b'true'},
    types.Verifier({'c.py': b'1'}, ('python3', 'c.py'), 'float_line', 3.0),
    7.5,
    {'domain': 'd', 'executable': ['run.sh'], 'deep': {'a': [1, None, 'ü']}},
  )
  native.write(odd, tmp_path / '9')
  got = formats.load(tmp_path, 'native')
  assert not got.faults
  back = {t.id: t for t in got.tasks}
  for task in [*synth.tasks('train', count=9, difficulty=2), odd]:
    again = back[task.id]
    assert again.turns == task.turns
    assert dict(again.files) == dict(task.files)
    assert again.verifier == task.verifier
    assert again.time_limit_s == task.time_limit_s
    assert {k: again.metadata[k] for k in task.metadata} == task.metadata
  with pytest.raises(errors.TaskError, match='exists'):
    native.write(odd, tmp_path / '9')


def test_native_folder_is_a_harbor_task(tmp_path):
  (task,) = synth.tasks('train', count=1, families=['sum'])
  native.write(task, tmp_path / 'one')
  (again,) = formats.load(tmp_path, 'harbor').tasks
  assert again.turns == task.turns
  assert dict(again.files) == dict(task.files)


def test_native_problems(tmp_path):
  (task,) = synth.tasks('train', count=1)
  for name in ('key', 'empty', 'output', 'none'):
    native.write(task, tmp_path / name, harbor=False)
  key = tmp_path / 'key/task.toml'
  key.write_text(key.read_text().replace('output =', 'outptu ='))
  out = tmp_path / 'output/task.toml'
  out.write_text(out.read_text().replace('json_line', 'xml'))
  (tmp_path / 'empty/instruction.md').write_text('\n')
  for file in (tmp_path / 'none/verifier').iterdir():
    file.unlink()
  (tmp_path / 'none/verifier').rmdir()
  got = formats.load(tmp_path, 'native')
  assert codes(got.faults) == {
    'key': 'misspelt_key',
    'output': 'bad_field',
    'empty': 'bad_field',
    'none': 'no_verifier',
  }


# ---- OfficeQA and JobBench -------------------------------------------------

SCORE_ANSWER = """
  import re
  def score_answer(ground_truth, predicted, tolerance=0.00):
    found = re.findall(r'<FINAL_ANSWER>(.*?)</FINAL_ANSWER>', predicted)
    got = float((found or [predicted])[-1])
    return 1.0 if abs(got - float(ground_truth)) <= tolerance * got else 0.0
"""


async def test_officeqa_uses_the_users_scorer(tmp_path, folder_backend):
  put(
    tmp_path,
    {
      'q.csv': 'uid,question,answer,source_docs,source_files,difficulty\n'
      'U1,"What, in all?",100,doc A,a.txt,hard\n'
      'U2,,3,,,easy\n'
      'U3,cut\n'
      'U4,x,4,,,easy\n'
      'U5,"open,5,,,easy\n',
      'reward.py': SCORE_ANSWER,
      'docs/a.txt': '100',
    },
  )
  options = formats.Options(corpus=str(tmp_path / 'docs'), tolerance=0.01)
  got = formats.load(tmp_path / 'q.csv', 'officeqa', options)
  assert codes(got.faults) == {
    'U2': 'bad_field',
    'q.csv, row 3': 'bad_csv',
    'q.csv, row 5': 'bad_csv',
  }
  task, other = got.tasks
  assert other.id == 'officeqa/U4'
  assert 'doc A' not in task.instruction and 'a.txt' not in task.instruction
  assert task.metadata['readonly'] == [[str(tmp_path / 'docs'), '/corpus']]

  async def score(text):
    run = [types.Message('assistant', text)]
    return await verifier.verify(task, {}, folder_backend, transcript=run)

  right = await score('so <FINAL_ANSWER>100.5</FINAL_ANSWER>')
  assert right.reward == 1.0
  assert (await score('<FINAL_ANSWER>90</FINAL_ANSWER>')).reward == 0.0
  with pytest.raises(errors.VerifierError):
    await score('no number')
  with pytest.raises(errors.TaskError, match='--corpus'):
    formats.load(tmp_path / 'q.csv', 'officeqa')


def test_jobbench_shows_only_the_task_folder(tmp_path):
  rubrics = {
    'rubrics': [
      {'rubric': 'R', 'weight': 2, 'criterion': ['a', 'b']},
      {'rubric': 'S', 'weight': 1, 'criterion': 'c'},
    ]
  }
  place = 'dataset_easy/clerk/task1'
  put(
    tmp_path,
    {
      f'{place}/task_folder/TASK_INSTRUCTIONS.txt': 'File it.',
      f'{place}/task_folder/in.csv': 'a',
      f'{place}/RUBRICS.json': json.dumps(rubrics),
      f'{place}/task_card.md': 'the answer',
      'dataset/clerk/task1/RUBRICS.json': json.dumps(rubrics),
      'dataset/clerk/task1/task_folder/TASK_INSTRUCTIONS.txt': 'File it.',
      'dataset/clerk/task1/files_required_to_search/x': '',
      'dataset/clerk/task2/RUBRICS.json': '{"rubrics": []}',
      'dataset/clerk/task2/task_folder/TASK_INSTRUCTIONS.txt': 'x',
      'dataset/clerk/task3/RUBRICS.json': json.dumps(
        {'rubrics': [{'rubric': 'R', 'weight': 0, 'criterion': 'c'}]}
      ),
      'dataset/clerk/task3/task_folder/TASK_INSTRUCTIONS.txt': 'x',
    },
  )
  got = formats.load(tmp_path, 'jobbench')
  (task,) = got.tasks
  assert task.id == 'jobbench/easy/clerk/task1'
  assert dict(task.files) == {'in.csv': b'a'}
  assert [r['criteria'] for r in task.metadata['judge']['rubrics']] == [
    ['a', 'b'],
    ['c'],
  ]
  assert codes(got.unsupported) == {'main/clerk/task1': 'needs_network'}
  assert codes(got.faults) == {
    'main/clerk/task2': 'bad_rubric',
    'main/clerk/task3': 'bad_rubric',
  }
  easy = formats.load(tmp_path, 'jobbench', formats.Options(split='easy'))
  assert not easy.faults and len(easy.tasks) == 1


def test_a_native_task_shows_no_file_of_the_user(tmp_path):
  (task,) = synth.tasks('train', count=1)
  shown = {'inside': tmp_path / 'inside' / 'docs', 'outside': tmp_path}
  for name, host in shown.items():
    mounts = {'readonly': [[str(host), '/docs']]}
    native.write(
      dataclasses.replace(task, id=f't/{name}', metadata=mounts),
      tmp_path / name,
      harbor=False,
    )
  native.write(
    dataclasses.replace(task, id='t/odd', metadata={'readonly': ['/etc']}),
    tmp_path / 'odd',
    harbor=False,
  )
  got = formats.load(tmp_path, 'native')
  assert [t.id for t in got.tasks] == ['t/inside']
  assert codes(got.faults) == {'outside': 'path_escape', 'odd': 'bad_field'}
  allowed = formats.Options(corpus=str(tmp_path))
  assert len(formats.load(tmp_path, 'native', allowed).tasks) == 2


# ---- all formats -----------------------------------------------------------


@pytest.mark.parametrize(
  'path',
  ['/a', '../a', 'a/../../b', '~/a', 'C:\\a', '', ' ', 'a\0b', None, '.'],
)
def test_paths_that_leave_are_refused(path):
  with pytest.raises(report.Broken):
    tree.plain(path)


def test_plain_paths_are_normal():
  assert tree.plain('./a//b.txt') == 'a/b.txt'
  assert tree.plain('a\\b') == 'a/b'


def test_nothing_found_and_bad_arguments(tmp_path):
  for name in formats.FORMATS:
    if name in ('officeqa', 'arrayrecord'):  # these say what they want
      continue
    with pytest.raises(errors.TaskError, match='no task of format'):
      formats.load(tmp_path, name)
  with pytest.raises(errors.TaskError, match='there are: native'):
    formats.load(tmp_path, 'tarball')
  with pytest.raises(errors.TaskError, match='no such file'):
    formats.load(tmp_path / 'none', 'native')
  with pytest.raises(errors.TaskError, match='cannot allow'):
    formats.load(tmp_path, 'native', formats.Options(allow=('magic',)))


def test_what_no_check_foresaw_is_a_fault_of_its_task(tmp_path):
  def read(warn):
    raise AttributeError('no attribute x')

  good = types.Task('t/1', ('x',))
  got = report.collect(
    [('odd', read), ('good', lambda warn: good)],
    path=tmp_path,
    format='native',
    options={},
  )
  assert got.tasks == (good,) and codes(got.faults) == {'odd': 'unexpected'}


def test_parts_of_a_set_follow_the_ids():
  tasks = [types.Task(f't/{n}', ('x',)) for n in range(200)]
  train, held = formats.split(tasks, 'train'), formats.split(tasks, 'eval')
  assert sorted(t.id for t in train + held) == sorted(t.id for t in tasks)
  # A quarter in the mean: 200 draws, five standard deviations are 31.
  assert abs(len(held) - 50) < 31
  # A task stays where it is, whatever else the set holds.
  assert (
    formats.split(tasks[:50], 'eval')
    == held[: len(formats.split(tasks[:50], 'eval'))]
  )


def test_only_keeps_ids_and_names_the_missing(tmp_path):
  put(tmp_path, clawgym_task('a') | clawgym_task('b'))
  got = formats.load(tmp_path, 'clawgym', formats.Options(only=('b',)))
  assert [t.id for t in got.tasks] == ['clawgym/b']
  with pytest.raises(errors.TaskError, match='zzz'):
    formats.load(tmp_path, 'clawgym', formats.Options(only=('zzz', 'b')))


def test_command_prints_counts_and_reasons(tmp_path, capsys):
  from clawjax.tasks.__main__ import main

  put(tmp_path, clawgym_task('good') | clawgym_task('bad', task_id='x'))
  assert main([str(tmp_path), '--format', 'clawgym', '--json']) == 1
  data = json.loads(capsys.readouterr().out)
  assert (data['loaded'], data['broken']) == (1, 1)
  assert data['reasons'] == {'id_mismatch': 1}
  assert main([str(tmp_path), '--format', 'clawgym']) == 1
  shown = capsys.readouterr().out
  assert '1 loaded' in shown and 'id_mismatch' in shown
  assert main([str(tmp_path / 'no'), '--format', 'clawgym']) == 2
  assert 'error:' in capsys.readouterr().err
