"""Ids equal those of `transformers`, recorded by ids_reference.py."""

import json
import os
import pathlib
import unicodedata

import pytest

from clawjax import errors
from clawjax.chat import tokenizers
from clawjax.harness import install

GOLDEN = pathlib.Path(__file__).parent / 'golden'
IDS = json.loads((GOLDEN / 'ids.json').read_text())


def load(name):
  if name == 'spm':
    pytest.importorskip('sentencepiece')
    return tokenizers.load(str(GOLDEN / 'spm.model'))
  if name == 'qwen3':
    place = os.environ.get('CLAWJAX_QWEN3_TOKENIZER') or (
      install.cache_folder() / 'tokenizer-qwen3-3.7.2' / 'tokenizer.json'
    )
    if not pathlib.Path(place).is_file():
      pytest.skip("no tokenizer.json of Qwen3 here ('tests/bench/qwen3.py')")
    return tokenizers.load(f'hf:{place}')
  return tokenizers.load(name)


@pytest.mark.parametrize('name', ['tiny', 'qwen3', 'spm'])
def test_ids_equal_transformers(name):
  tokenizer = load(name)
  for text, want in zip(IDS['corpus'], IDS[name], strict=True):
    assert tokenizer.encode(text) == want['content'], text
    assert tokenizer.encode_markup(text) == want['markup'], text
    for encode in (tokenizer.encode, tokenizer.encode_markup):
      back = text if name == 'spm' else unicodedata.normalize('NFC', text)
      assert tokenizer.decode(encode(text)) == back


def test_pieces_do_not_depend_on_what_stands_before():
  tokenizer = load('spm')
  assert tokenizer.decode(tokenizer.encode('fox')) == 'fox'
  assert tokenizer.decode(tokenizer.encode(' fox')) == ' fox'
  ids = tokenizer.encode_markup('<|im_start|>fox')
  assert ids == [tokenizer.im_start, *tokenizer.encode('fox')]
  assert tokenizer.eos_ids == (tokenizer.im_end, tokenizer.pad_id)
  assert tokenizer.encode('<think>') == [tokenizer.id_of('<think>')]
  assert tokenizer.id_of('no such piece') is None


def test_half_a_character_is_a_replacement_character():
  tokenizer = load('spm')
  ids = tokenizer.encode('\U0001f9a4')  # not in the corpus: four bytes
  assert len(ids) == 4
  assert tokenizer.decode(ids) == '\U0001f9a4'
  assert tokenizer.decode(ids[:-1]) == '\ufffd'


def test_a_folder_with_tokenizer_model_only(tmp_path):
  tokenizer = load('spm')
  (tmp_path / 'tokenizer.model').write_bytes(
    (GOLDEN / 'spm.model').read_bytes()
  )
  other = tokenizers.load.__wrapped__(f'hf:{tmp_path}')
  assert other.encode('fox') == tokenizer.encode('fox')


def test_models_that_could_forge_a_turn_are_refused(tmp_path):
  sentencepiece = pytest.importorskip('sentencepiece')
  text = tmp_path / 'text'
  text.write_text('the quick brown fox jumps over the lazy dog\n' * 20)
  for options, message in (
    ({}, 'got none'),
    (
      {'user_defined_symbols': ['<|im_start|>', '<|im_end|>', '<|endoftext|>']},
      'a piece of another kind',
    ),
  ):
    sentencepiece.SentencePieceTrainer.train(
      input=str(text),
      model_prefix=str(tmp_path / 'm'),
      model_type='bpe',
      vocab_size=60,
      minloglevel=2,
      **options,
    )
    with pytest.raises(errors.TokenizerError, match=message):
      tokenizers.load.__wrapped__(str(tmp_path / 'm.model'))
  (tmp_path / 'm.model').write_bytes(b'nothing')
  with pytest.raises(errors.TokenizerError, match='SentencePiece model at'):
    tokenizers.load.__wrapped__(str(tmp_path / 'm.model'))
