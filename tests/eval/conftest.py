"""Helpers to read a page back: a strict reader of our HTML, a run folder."""

import html.parser
import importlib.util
import pathlib
import sys

import pytest

_VOID = {'meta', 'link', 'br'}  # the rest closes itself with '/>'


class Page(html.parser.HTMLParser):
  """Parses a page and fails on a tag that is not closed in order.

  Attributes:
    tags: every (name, attributes) in order.
    text: visible text (no style, no script).
  """

  def __init__(self, source: str):
    super().__init__(convert_charrefs=True)
    self.tags = []
    self._open = []
    self._text = []
    self.feed(source)
    self.close()
    assert not self._open, f'unclosed: {self._open}'

  @property
  def text(self) -> str:
    return ''.join(self._text)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))
    if tag not in _VOID:
      self._open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))

  def handle_endtag(self, tag):
    assert self._open and self._open[-1] == tag, (
      f'</{tag}> closes {self._open[-3:]} at line {self.getpos()}'
    )
    self._open.pop()

  def handle_data(self, data):
    if not {'style', 'script'} & set(self._open):
      self._text.append(data)


@pytest.fixture
def parse():
  """Source of a page -> `Page`."""
  return Page


def _load(name):
  path = pathlib.Path(__file__).with_name(f'{name}.py')
  spec = importlib.util.spec_from_file_location(f'eval_{name}', path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module  # dataclasses look their module up
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope='session')
def synthetic():
  """The module that writes run folders."""
  return _load('synthetic')


@pytest.fixture(scope='session')
def run_dir(synthetic, tmp_path_factory):
  """A whole run folder; not to be changed by a test."""
  return synthetic.write(tmp_path_factory.mktemp('run'), steps=6, tasks=10)


@pytest.fixture(scope='session')
def talk():
  """The module that builds rollouts with known conversations."""
  return _load('talk')
