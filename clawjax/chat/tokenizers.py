"""Tokenizers: text to ids in two ways, ids to text in one.

What a user, a tool or a file says is *content*: `encode` leaves control
tokens such as `<|im_end|>` as spelled text, so that nobody can forge a turn.
What our own templates say is *markup*: `encode_markup` recognises them. The
tags that Qwen3 registers as not special (`<think>`, `<tool_call>`, ...) become
their single id in both, as the stock tokenizer does; proxy, trainer and
counting all come through here, so the rule is the same everywhere.

`load('tiny')` ships with us (a small byte-level BPE with Qwen3's added tokens
and pre-tokenisation, made by `train_tiny.py`); `load('qwen3')` reads the file
that the user names in `CLAWJAX_QWEN3_TOKENIZER`, and `load('hf:PATH')` reads
`tokenizer.json` of a Hugging Face folder, or its `tokenizer.model` where it has
only that (see `sentencepieces.py`). Sizes come from the file.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from clawjax import errors

IM_START = '<|im_start|>'
IM_END = '<|im_end|>'
ENDOFTEXT = '<|endoftext|>'
_DATA = pathlib.Path(__file__).parent / 'data'
_QWEN3_VARIABLE = 'CLAWJAX_QWEN3_TOKENIZER'


def clean(text: str) -> str:
  """Joins surrogate pairs and turns lone surrogates into U+FFFD."""
  try:
    text.encode()
    return text
  except UnicodeEncodeError:
    raw = text.encode('utf-16-le', 'surrogatepass')
    return raw.decode('utf-16-le', 'replace')


def _ids(tokenizer: Any, text: str) -> list[int]:
  # The batch call without offsets takes some 0.6 of the plain one's time.
  batch = [clean(text)]
  return tokenizer.encode_batch_fast(batch, add_special_tokens=False)[0].ids


class Tokenizer:
  """A byte-level BPE with Qwen3's control tokens.

  Attributes:
    name: how it was loaded.
    vocab_size: one more than the largest id.
    eos_ids: ids that end a turn: `<|im_end|>`, `<|endoftext|>`.
    pad_id: `<|endoftext|>`.
    im_start, im_end: the control ids that frame a turn.
  """

  def __init__(self, path: str | os.PathLike[str], *, name: str):
    import tokenizers

    try:
      self._markup = tokenizers.Tokenizer.from_file(os.fspath(path))
      self._content = tokenizers.Tokenizer.from_file(os.fspath(path))
    except Exception as e:  # The library raises bare Exception.
      raise errors.TokenizerError(
        f'wanted a tokenizer.json at {path}, got: {e}'
      ) from e
    self._content.encode_special_tokens = True
    for tokenizer in (self._markup, self._content):
      tokenizer.no_padding()
      tokenizer.no_truncation()
    self.name = name
    self.path = pathlib.Path(path)
    self.vocab_size = max(self._markup.get_vocab().values(), default=-1) + 1
    self.im_start = self._control(IM_START)
    self.im_end = self._control(IM_END)
    self.pad_id = self._control(ENDOFTEXT)
    self.eos_ids = (self.im_end, self.pad_id)

  def _control(self, token: str) -> int:
    token_id = self._markup.token_to_id(token)
    if token_id is None:
      raise errors.TokenizerError(
        f'wanted the control token {token} in {self.path}, got none; '
        'only tokenizers of the Qwen family fit our templates'
      )
    return token_id

  def id_of(self, token: str) -> int | None:
    """Id of one vocabulary entry (e.g. `<think>`), None if there is none."""
    return self._markup.token_to_id(token)

  def encode(self, text: str) -> list[int]:
    """Ids of content; control tokens in it stay spelled text."""
    if not text:
      return []
    return _ids(self._content, text)

  def encode_markup(self, text: str) -> list[int]:
    """Ids of our own markup; control tokens become their ids."""
    if not text:
      return []
    return _ids(self._markup, text)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of ids, control tokens shown; half a character gives U+FFFD."""
    plain = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    return self._markup.decode(plain, skip_special_tokens=False)


@functools.lru_cache(maxsize=8)
def load(name: str) -> Tokenizer:
  """Loads a tokenizer by name.

  Args:
    name: 'tiny', 'qwen3', 'hf:PATH', or the path of a folder, of a
      `tokenizer.json` or of a SentencePiece model (`*.model`).

  Raises:
    TokenizerError: there is no such file, or it does not fit.
  """
  if name == 'tiny':
    return Tokenizer(_DATA / 'tiny' / 'tokenizer.json', name=name)
  if name == 'qwen3':
    place = os.environ.get(_QWEN3_VARIABLE, '')
    if not place:
      raise errors.TokenizerError(
        f"wanted the path of Qwen3's tokenizer.json in ${_QWEN3_VARIABLE}, "
        'got nothing; or use hf:PATH, or tiny'
      )
  else:
    place = name.removeprefix('hf:')
  path = pathlib.Path(place).expanduser()
  if path.is_dir():
    pieces = path / 'tokenizer.model'
    path = path / 'tokenizer.json'
    if pieces.is_file() and not path.is_file():
      path = pieces
  if not path.is_file():
    raise errors.TokenizerError(
      f'wanted a tokenizer named {name!r}, got no file at {path}; '
      'known names are tiny, qwen3 and hf:PATH'
    )
  if path.suffix == '.model':
    # Imported here: that module needs this one.
    from clawjax.chat.sentencepieces import SentencePieceTokenizer

    return SentencePieceTokenizer(path, name=name)
  return Tokenizer(path, name=name)
