"""Imports go down only: holds the layer table of the design, read with ast.

A module may import its own package and every package on a lower line; packages
on one line do not know each other. Three rules sit on top: the packages that a
rollout worker runs import no jax (nothing they import does either), the trie is
numpy only, and importing a module does nothing: no jax arrays, no files, no
processes.
"""

import ast
import functools
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

LAYERS = (
  # Line 0 of the design in two: records and errors are under everything.
  ('types', 'errors'),
  ('config', 'metrics'),
  ('chat', 'trie', 'kernels', 'sandbox'),
  ('models', 'losses', 'tasks'),
  ('proxy', 'harness', 'serving'),
  ('rollout',),
  ('eval',),
  ('train',),
  ('experiment',),
  ('launch', 'configs', 'main'),
)
LEVEL = {name: i for i, line in enumerate(LAYERS) for name in line}
NO_JAX = ('proxy', 'sandbox', 'harness', 'tasks', 'rollout', 'eval', 'chat')
JAX = {'jax', 'jaxlib', 'flax', 'optax', 'orbax', 'chex'}


def files() -> list[pathlib.Path]:
  """Every Python file of ours that is not a test."""
  found = []
  for folder in ('clawjax', 'launch', 'configs'):
    found += sorted((ROOT / folder).rglob('*.py'))
  return [f for f in found if 'data' not in f.relative_to(ROOT).parts]


def unit(module: str) -> str:
  """The name in the layer table: 'clawjax.trie.pack' -> 'trie'."""
  parts = module.split('.')
  if parts[0] != 'clawjax':
    return parts[0]
  return parts[1] if len(parts) > 1 else ''


def module_name(path: pathlib.Path) -> str:
  parts = list(path.relative_to(ROOT).with_suffix('').parts)
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imported(path: pathlib.Path) -> Iterator[tuple[str, int, bool]]:
  """Yields (module, line, at import time) of each import in a file.

  An import in a function counts for the layers, since it is a dependency all
  the same, but not for what importing the module does. `from clawjax import x`
  yields `clawjax.x`; blocks under `if TYPE_CHECKING` count for the layers only.
  """
  module = module_name(path)
  package = module if path.name == '__init__.py' else module.rpartition('.')[0]

  def walk(node: ast.AST, now: bool) -> Iterator[tuple[str, int, bool]]:
    for child in ast.iter_child_nodes(node):
      inner = now
      if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        inner = False
      if isinstance(child, ast.If) and 'TYPE_CHECKING' in ast.dump(child.test):
        inner = False
      if isinstance(child, ast.Import):
        for alias in child.names:
          yield alias.name, child.lineno, now
      elif isinstance(child, ast.ImportFrom):
        base = child.module or ''
        if child.level:
          up = package.split('.')
          up = up[: len(up) - child.level + 1]
          base = '.'.join([*up, base] if base else up)
        for alias in child.names:
          yield f'{base}.{alias.name}', child.lineno, now
      else:
        yield from walk(child, inner)

  yield from walk(ast.parse(path.read_text(), str(path)), True)


@functools.cache
def edges(now: bool) -> dict[str, set[str]]:
  """Module -> modules of ours (and top-level foreign ones) that it imports."""
  names = {module_name(f): f for f in files()}
  graph: dict[str, set[str]] = {}
  for module, path in names.items():
    out = graph.setdefault(module, set())
    for target, _, at_import in imported(path):
      if now and not at_import:
        continue
      if not target.startswith('clawjax'):
        out.add(target.split('.')[0])
        continue
      # `from clawjax.a import name`: name may be a module or not.
      while target not in names and '.' in target:
        target = target.rpartition('.')[0]
      out.add(target)
      # Importing a module runs its packages' __init__ files, too.
      while '.' in target:
        target = target.rpartition('.')[0]
        if target in names:
          out.add(target)
  return graph


def test_every_package_is_in_the_table():
  """A new package gets its line in the design, and here, before its code."""
  units = {unit(module_name(f)) for f in files()} - {'', '__main__'}
  assert units <= set(LEVEL), f'not in the layer table: {units - set(LEVEL)}'


def test_imports_go_down_only():
  wrong = []
  for path in files():
    here = unit(module_name(path))
    for target, line, _ in imported(path):
      if target.split('.')[0] not in ('clawjax', 'launch', 'configs'):
        continue
      there = unit(target)
      if not here or there in ('', here, '__version__'):
        continue
      if there not in LEVEL or LEVEL[there] >= LEVEL[here]:
        wrong.append(f'{path.relative_to(ROOT)}:{line}: {here} -> {there}')
  assert not wrong, 'imports that do not go down:\n' + '\n'.join(wrong)


def test_trie_is_numpy_only():
  wrong = []
  for path in sorted((ROOT / 'clawjax' / 'trie').rglob('*.py')):
    for target, line, _ in imported(path):
      top = target.split('.')[0]
      if top not in {*sys.stdlib_module_names, 'numpy', 'clawjax'}:
        wrong.append(f'{path.relative_to(ROOT)}:{line}: {target}')
  assert not wrong, 'not numpy or stdlib:\n' + '\n'.join(wrong)


@pytest.mark.parametrize('package', NO_JAX)
def test_package_does_not_import_jax(package):
  """Neither itself, anywhere, nor through what it imports at import time."""
  graph = edges(now=True)
  start = [m for m in graph if unit(m) == package]
  named = edges(now=False)
  direct = [f'{m} -> {j}' for m in start for j in named[m] & JAX]
  assert not direct, '\n'.join(direct)
  seen: dict[str, str] = dict.fromkeys(start, '')
  queue = list(start)
  while queue:
    module = queue.pop()
    for target in graph.get(module, ()):
      if target in JAX:
        chain = [target, module]
        while seen[chain[-1]]:
          chain.append(seen[chain[-1]])
        pytest.fail(' <- '.join(chain))
      if target in graph and target not in seen:
        seen[target] = module
        queue.append(target)


def test_importing_everything_without_jax_does_nothing(tmp_path):
  """All modules of the worker's packages, in one process, jax made absent.

  Afterwards: nothing was printed, no file was written, no thread runs and no
  child process was started.
  """
  modules = [
    m
    for m in edges(now=True)
    if unit(m) in (*NO_JAX, 'trie', 'types', 'errors', 'config', 'metrics')
    and not m.endswith('__main__')
  ]
  program = f"""
import importlib, os, subprocess, sys, threading
class Absent:
  def find_spec(self, name, path=None, target=None):
    if name.split('.')[0] in {sorted(JAX)!r}:
      raise ImportError('jax is absent here: ' + name)
sys.meta_path.insert(0, Absent())
started = []
sys.addaudithook(lambda event, args: started.append(args)
                 if event in ('subprocess.Popen', 'os.fork', 'os.exec') else None)
for name in {modules!r}:
  importlib.import_module(name)
assert not started, started
assert threading.active_count() == 1, threading.enumerate()
"""
  done = subprocess.run(
    [sys.executable, '-B', '-W', 'error', '-c', program],
    cwd=tmp_path,
    env={'PYTHONPATH': str(ROOT), 'PATH': '/usr/bin:/bin', 'HOME': '/nowhere'},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == done.stderr == ''
  assert list(tmp_path.iterdir()) == []
