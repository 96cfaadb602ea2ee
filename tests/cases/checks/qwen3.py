"""Qwen3's own tokenizer, where this machine has its file."""

import functools
import os

from clawjax.chat import tokenizers
from clawjax.harness import install
from tests.bench import qwen3 as fetched


@functools.cache
def qwen3():
  """The tokenizer, or None; nothing is fetched for it."""
  folder = install.cache_folder() / f'tokenizer-qwen3-{fetched.VERSION}'
  place = os.environ.get('CLAWJAX_QWEN3_TOKENIZER', folder / 'tokenizer.json')
  return tokenizers.load(f'hf:{place}') if os.path.exists(place) else None


def both():
  """The tokenizers that a case runs with."""
  return [t for t in (tokenizers.load('tiny'), qwen3()) if t]
