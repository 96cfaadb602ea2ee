"""Guards: leaks, canaries, edited tests, and commits that must not be found."""

import dataclasses
import os
import subprocess

import pytest

from clawjax import sandbox, types
from clawjax.tasks import guards, synth


def test_hidden_text_in_the_workspace_is_a_leak():
  (task,) = synth.tasks('train', count=1, families=['sort'])
  assert guards.leaks(task) == []
  answer = task.verifier.files['checks.json']
  leaky = dataclasses.replace(task, files={**task.files, 'x': b'a' + answer})
  assert guards.leaks(leaky) == ['x holds the hidden checks.json']


def test_canary_is_seen_in_words_and_in_work():
  (task,) = synth.tasks('train', count=1)
  planted, canaries = guards.plant(task, 'secret')
  path, token = next(iter(canaries.tokens.items()))
  assert token.encode() in planted.files[path]
  assert len(set(canaries.tokens.values())) == len(guards.CANARY_PATHS)
  talk = [types.Message('assistant', 'Done.')]
  assert guards.read_canaries(canaries, talk, planted.files) == []
  read = [*talk, types.Message('tool', f'{{"key": "{token}"}}')]
  assert guards.read_canaries(canaries, read, planted.files) == [path]
  copied = {**planted.files, 'out.txt': token.encode()}
  assert guards.read_canaries(canaries, talk, copied) == [path]
  other, elsewhere = guards.plant(task, 'other secret')
  assert other.files != planted.files
  assert guards.read_canaries(elsewhere, read, copied) == []


def test_edited_and_removed_tests_are_named():
  files = {'tests/a.py': b'1', 'sub/test_b.py': b'2', 'src/c.py': b'3'}
  task = types.Task('t/1', ('x',), files)
  assert guards.edited_tests(task, files) == []
  work = {'tests/a.py': b'changed', 'src/c.py': b'changed', 'test_new.py': b''}
  assert guards.edited_tests(task, work) == ['sub/test_b.py', 'tests/a.py']
  allowed = dataclasses.replace(task, metadata={'may_edit': ['tests/*']})
  assert guards.edited_tests(allowed, work) == ['sub/test_b.py']


def git(folder, *args):
  env = {
    **os.environ,
    'GIT_CONFIG_GLOBAL': '/dev/null',
    **{
      f'GIT_{who}_{what}': 'a@b'
      for who in ('AUTHOR', 'COMMITTER')
      for what in ('NAME', 'EMAIL')
    },
  }
  done = subprocess.run(
    ['git', '-c', 'init.defaultBranch=main', *args],
    cwd=folder,
    env=env,
    capture_output=True,
    text=True,
    check=True,
  )
  return done.stdout.strip()


def read_all(folder):
  return {
    p.relative_to(folder).as_posix(): p.read_bytes()
    for p in folder.rglob('*')
    if p.is_file()
  }


async def test_commits_beyond_the_task_are_gone(tmp_path):
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  if not probe.ok:
    pytest.skip(probe.text)
  repo = tmp_path / 'repo'
  repo.mkdir()
  git(repo, 'init', '-q')
  (repo / 'a.py').write_text('bug\n')
  git(repo, 'add', '.')
  git(repo, 'commit', '-qm', 'one')
  (repo / 'a.py').write_text('fixed\n')
  git(repo, 'commit', '-qam', 'the fix')
  fix = git(repo, 'rev-parse', 'HEAD')
  git(repo, 'tag', 'v2')
  git(repo, 'reset', '-q', '--hard', 'HEAD~1')
  head = git(repo, 'rev-parse', 'HEAD')
  (repo / '.git/hooks/post-checkout').write_text('#!/bin/sh\ntouch /tmp/x\n')
  assert git(repo, 'cat-file', '-t', fix) == 'commit'
  before = read_all(repo)
  assert (await guards.clean_git({'a': b'b'}, backend)) == {'a': b'b'}
  after = await guards.clean_git(before, backend)
  clean = tmp_path / 'clean'
  for path, data in after.items():
    (clean / path).parent.mkdir(parents=True, exist_ok=True)
    (clean / path).write_bytes(data)
  for folder in ('refs/heads', 'refs/tags', 'objects'):  # empty ones are lost
    (clean / '.git' / folder).mkdir(parents=True, exist_ok=True)
  assert git(clean, 'rev-parse', 'HEAD') == head
  assert git(clean, 'show', 'HEAD:a.py') == 'bug'
  assert git(clean, 'tag') == '' and git(clean, 'status', '-s') == ''
  with pytest.raises(subprocess.CalledProcessError):
    git(clean, 'cat-file', '-t', fix)
  assert '.git/hooks/post-checkout' not in after
  assert b'the fix' not in b''.join(after.values())
