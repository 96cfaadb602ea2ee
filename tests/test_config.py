"""Strictness of config sections: each fault is one line naming the key."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import ml_collections
import pytest

from clawjax import config, errors


@dataclasses.dataclass(frozen=True)
class Inner:
  rate: float = 0.1
  kind: Literal['a', 'b'] = 'a'
  names: tuple[str, ...] = ()

  def __post_init__(self):
    if self.rate < 0:
      raise ValueError(f'rate: wanted at least 0; got {self.rate}')


@dataclasses.dataclass(frozen=True)
class Outer:
  steps: int
  inner: Inner = Inner()
  limit: float | None = None
  flag: bool = False
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def test_builds_nested_values_and_defaults():
  section = ml_collections.ConfigDict(
    {'steps': 3, 'inner': {'rate': 1, 'names': ['x', 'y']}, 'extra': {'k': [1]}}
  )
  built = config.build(Outer, section)
  assert built == Outer(3, Inner(1.0, 'a', ('x', 'y')), extra={'k': [1]})
  assert isinstance(built.inner.rate, float)


@pytest.mark.parametrize(
  ('section', 'words'),
  [
    ({'steps': 1, 'stepz': 2}, ["'stepz'", "did you mean 'steps'"]),
    ({'steps': 1, 'inner': {'ratee': 2}}, ["'inner.ratee'", "'inner.rate'"]),
    ({'steps': 'x'}, ["'steps'", 'wanted int', "'x'"]),
    ({'steps': True}, ["'steps'", 'wanted int', 'bool']),
    ({'steps': 1.0}, ["'steps'", 'wanted int', 'float']),
    ({'steps': 1, 'flag': 1}, ["'flag'", 'wanted bool']),
    ({'steps': 1, 'inner': {'kind': 'c'}}, ["'inner.kind'", "'a', 'b'"]),
    ({'steps': 1, 'inner': {'names': 'abc'}}, ["'inner.names'", 'a list']),
    ({'steps': 1, 'inner': 4}, ["'inner'", 'a section']),
    ({'steps': 1, 'inner': {'rate': -1}}, ['inner', 'at least 0']),
    ({'steps': 1, 'limit': 'no'}, ["'limit'", 'wanted float']),
    ({}, ["'steps'", 'missing']),
  ],
)
def test_each_fault_names_the_key(section, words):
  with pytest.raises(errors.ConfigError) as caught:
    config.build(Outer, section)
  text = str(caught.value)
  assert '\n' not in text
  for word in words:
    assert word in text


def test_none_is_allowed_only_where_said():
  assert config.build(Outer, {'steps': 1, 'limit': None}).limit is None
  with pytest.raises(errors.ConfigError):
    config.build(Outer, {'steps': None})


def test_saves_and_loads(tmp_path):
  original = Outer(2, Inner(names=('q',)), limit=1.5)
  path = tmp_path / 'config.json'
  config.save(original, path)
  assert config.load(Outer, path) == original
  path.write_text('{"steps": ')
  with pytest.raises(errors.ConfigError, match='cannot read config'):
    config.load(Outer, path)


def test_flatten_gives_dotted_keys():
  flat = config.flatten(Outer(2))
  assert flat['inner.rate'] == 0.1
  assert flat['steps'] == 2


def test_template_holds_every_key_and_builds_the_defaults():
  section = config.template(Outer, steps=4)
  assert config.build(Outer, section) == Outer(4)
  section.limit = 2.5  # typed by its placeholder
  section.inner.rate = 0.25
  built = config.build(Outer, section)
  assert built.limit == 2.5 and built.inner.rate == 0.25
  with pytest.raises(TypeError):
    section.limit = 'much'
