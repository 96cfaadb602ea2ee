"""Trains the tiny tokenizer: Qwen3's shape, a vocabulary of a few thousand.

Same pre-tokenisation, normalisation, byte-level alphabet and added tokens
(with the same special flags) as Qwen3, so that everything that holds for one
holds for the other; only the merges are few, so that embeddings stay small.

  python -m clawjax.chat.train_tiny OUT.json TEXT_FILE... [--size 4096]
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterable

# Qwen3's added tokens in id order; True: special (a control token).
ADDED = (
  ('<|endoftext|>', True),
  ('<|im_start|>', True),
  ('<|im_end|>', True),
  ('<|object_ref_start|>', True),
  ('<|object_ref_end|>', True),
  ('<|box_start|>', True),
  ('<|box_end|>', True),
  ('<|quad_start|>', True),
  ('<|quad_end|>', True),
  ('<|vision_start|>', True),
  ('<|vision_end|>', True),
  ('<|vision_pad|>', True),
  ('<|image_pad|>', True),
  ('<|video_pad|>', True),
  ('<tool_call>', False),
  ('</tool_call>', False),
  ('<|fim_prefix|>', False),
  ('<|fim_middle|>', False),
  ('<|fim_suffix|>', False),
  ('<|fim_pad|>', False),
  ('<|repo_name|>', False),
  ('<|file_sep|>', False),
  ('<tool_response>', False),
  ('</tool_response>', False),
  ('<think>', False),
  ('</think>', False),
)
# Contractions; a word with one leading sign; one digit; signs; line ends;
# white space.
_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


def train(texts: Iterable[str], vocab_size: int, path: pathlib.Path) -> int:
  """Trains on `texts` and writes `path`.

  Args:
    texts: training texts; control tokens in them teach nothing.
    vocab_size: entries wanted in all, added tokens included; fewer come out
      when the texts hold fewer pairs.
    path: where the `tokenizer.json` goes.

  Returns:
    The number of entries.
  """
  import tokenizers
  from tokenizers import (
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
  )

  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(_SPLIT), 'isolated'),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size - len(ADDED),
    min_frequency=2,
    show_progress=False,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
  )
  tags = [token for token, _ in ADDED]

  def without_tags(text: str) -> str:
    for tag in tags:
      text = text.replace(tag, '')
    return text

  tokenizer.train_from_iterator(map(without_tags, texts), trainer)
  tokenizer.add_tokens(
    [
      tokenizers.AddedToken(token, special=special, normalized=False)
      for token, special in ADDED
    ]
  )
  path.parent.mkdir(parents=True, exist_ok=True)
  tokenizer.save(str(path), pretty=False)
  return tokenizer.get_vocab_size()


def main() -> None:
  """Command line: see the top of the file."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('out', type=pathlib.Path)
  parser.add_argument('texts', type=pathlib.Path, nargs='+')
  parser.add_argument('--size', type=int, default=4096)
  args = parser.parse_args()
  texts = [p.read_text(encoding='utf-8') for p in args.texts]
  size = train(texts, args.size, args.out)
  print(f'{args.out}: {size} entries')


if __name__ == '__main__':
  main()
