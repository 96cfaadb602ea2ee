"""Another version of a harness than the pinned one, for one process."""

import json

import pytest

from clawjax.errors import HarnessError
from clawjax.harness import install


@pytest.fixture
def resolver(monkeypatch, tmp_path):
  """What npm and pip are asked; nothing is fetched."""
  monkeypatch.setattr(install, 'cache_folder', lambda: tmp_path)
  monkeypatch.setattr(install, '_OTHER_PINS', {})
  node = install.Node('v1', '/x/node', ('npm',), '/x/node', ())
  monkeypatch.setattr(install, 'node', lambda: node)
  asked = []

  def run(argv, wanted, *, cwd, env):
    del env
    asked.append(argv)
    if '--package-lock-only' in argv:
      manifest = json.loads((cwd / 'package.json').read_text())
      (cwd / 'package-lock.json').write_text(json.dumps(manifest))
    else:
      found = [('zlib-ng', '1'), ('Mini_SWE-agent', wanted.version)]
      items = [{'metadata': {'name': n, 'version': v}} for n, v in found]
      (cwd / 'report.json').write_text(json.dumps({'install': items}))

  monkeypatch.setattr(install, '_run', run)
  return asked


@pytest.mark.parametrize('name', ['pi', 'mini_swe'])
def test_another_version_stands_beside_the_pinned_one(resolver, name):
  ours = install.package(name)
  install.repin(name, '9.8.7')
  other = install.package(name)
  assert (other.version, other.kind) == ('9.8.7', ours.kind)
  assert other.host != ours.host and other.pins != ours.pins
  install.repin(name, '9.8.7')
  assert len(resolver) == 1  # Kept in the cache.
  install.repin(name, ours.version)
  assert install.package(name) == ours


def test_what_a_version_may_be(resolver):
  with pytest.raises(HarnessError, match='wanted a version'):
    install.repin('pi', '../1')
  with pytest.raises(HarnessError, match='no pins'):
    install.repin('nobody', '1')
  assert resolver == []
