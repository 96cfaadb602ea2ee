"""Small stdlib programs that run graders of other formats in a sandbox."""

import pathlib


def source(name: str) -> bytes:
  """Text of a driver, to be put among the hidden files."""
  return pathlib.Path(__file__).with_name(f'{name}.py').read_bytes()
