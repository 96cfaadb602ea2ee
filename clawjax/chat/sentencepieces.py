"""SentencePiece models (`tokenizer.model`) behind the interface of `Tokenizer`.

Rendering is append-only, so a piece of text must give the same ids wherever it
stands: no space is put in front of it and none is taken away, whatever the
model's own settings say (transformers: `legacy=False, add_prefix_space=False`).

The control tokens that frame a turn must be pieces of the model. As *control*
pieces SentencePiece never makes them from text, which is what content wants; as
*user-defined* ones it always would, so such a model is refused: a file could
forge a turn with it.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from clawjax import errors
from clawjax.chat import tokenizers

_SPACE = '\u2581'  # how SentencePiece spells a space


class SentencePieceTokenizer(tokenizers.Tokenizer):
  """See `tokenizers.Tokenizer`; needs the package sentencepiece."""

  def __init__(self, path: str | os.PathLike[str], *, name: str):
    try:
      import sentencepiece
      from google.protobuf.message import DecodeError
      from sentencepiece import sentencepiece_model_pb2
    except ImportError as e:
      raise errors.TokenizerError(
        'reading a SentencePiece model needs the packages sentencepiece and '
        "protobuf (pip install 'clawjax[sentencepiece]')"
      ) from e
    proto = sentencepiece_model_pb2.ModelProto()
    self._model = sentencepiece.SentencePieceProcessor()
    try:
      proto.ParseFromString(pathlib.Path(path).read_bytes())
      proto.normalizer_spec.add_dummy_prefix = False
      proto.normalizer_spec.remove_extra_whitespaces = False
      self._model.LoadFromSerializedProto(proto.SerializeToString())
    except (OSError, RuntimeError, DecodeError) as e:
      raise errors.TokenizerError(
        f'wanted a SentencePiece model at {path}, got: {e}'
      ) from e
    self.name = name
    self.path = pathlib.Path(path)
    self.vocab_size = self._model.GetPieceSize()
    self._control_ids = {
      self._model.IdToPiece(i): i
      for i in range(self.vocab_size)
      if self._model.IsControl(i)
    }
    self._pattern = re.compile(
      '|'.join(
        re.escape(t) for t in sorted(self._control_ids, key=len, reverse=True)
      )
    )
    self.im_start = self._control(tokenizers.IM_START)
    self.im_end = self._control(tokenizers.IM_END)
    self.pad_id = self._control(tokenizers.ENDOFTEXT)
    self.eos_ids = (self.im_end, self.pad_id)

  def _control(self, token: str) -> int:
    if token not in self._control_ids:
      raise errors.TokenizerError(
        f'wanted the control piece {token} in {self.path}, got '
        f'{"a piece of another kind" if self.id_of(token) is not None else "none"}'
        '; train the model with control_symbols'
      )
    return self._control_ids[token]

  def id_of(self, token: str) -> int | None:
    """Id of one vocabulary entry (e.g. `<think>`), None if there is none."""
    found = self._model.PieceToId(token)
    return None if found == self._model.unk_id() else found

  def encode(self, text: str) -> list[int]:
    """Ids of content; control tokens in it stay spelled text."""
    return self._model.EncodeAsIds(tokenizers.clean(text)) if text else []

  def encode_markup(self, text: str) -> list[int]:
    """Ids of our own markup; control tokens become their ids."""
    out: list[int] = []
    at = 0
    for found in self._pattern.finditer(text):
      out += self.encode(text[at : found.start()])
      out.append(self._control_ids[found[0]])
      at = found.end()
    return out + self.encode(text[at:])

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of ids, control tokens shown; half a character gives U+FFFD."""
    model, out = self._model, bytearray()
    for i in map(int, ids):
      piece = model.IdToPiece(i)
      if model.IsByte(i):  # '<0x0A>'
        out.append(int(piece[1:-1], 16))
      elif model.IsControl(i) or model.IsUnknown(i):
        out += piece.encode()
      else:
        out += piece.replace(_SPACE, ' ').encode()
    return out.decode('utf-8', 'replace')
