"""Extras that messages and documents tell the user to install."""

import pathlib
import re
import runpy
import sys
import types

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def extras(monkeypatch):
  silent = types.SimpleNamespace(
    setup=lambda **_: None, find_packages=lambda *_, **__: []
  )
  monkeypatch.setitem(sys.modules, 'setuptools', silent)
  return set(runpy.run_path(str(ROOT / 'setup.py'))['EXTRAS'])


def test_every_extra_that_is_named_exists(extras):
  named = {}
  texts = [ROOT / 'README.md', *ROOT.glob('clawjax/**/*.py')]
  texts += [*ROOT.glob('tests/**/*.py'), *ROOT.glob('launch/*')]
  for path in texts:
    if path.is_file():
      for found in re.findall(
        r'(?:clawjax|[\'" ]\.)\[([a-z_,]+)\]', path.read_text()
      ):
        named |= dict.fromkeys(found.split(','), path)
  assert {'tpu', 'ray', 'gguf'} <= set(named)
  assert {n: str(p) for n, p in named.items() if n not in extras} == {}
