"""Makes golden/ids.json and golden/spm.model; run where transformers is.

  python tests/chat/ids_reference.py QWEN3_TOKENIZER_JSON

Needs transformers and sentencepiece (tests/parity/model_env.sh, plus the
latter). Trains a small SentencePiece model (BPE with bytes to fall back on, the
control tokens as control symbols), and writes what `transformers` makes of a
corpus with each of three tokenizers: ids of content (control tokens are text)
and of markup (they are ids).
"""

import io
import json
import pathlib
import sys
import tempfile

import sentencepiece
import transformers

HERE = pathlib.Path(__file__).resolve().parent
CONTROL = ('<|im_start|>', '<|im_end|>', '<|endoftext|>')
CORPUS = (
  'Hello, world!  Two  spaces, then\ttabs\n\n\nand lines.\r\nEnd ',
  ' leading space and 1234567890 3.14159 0x7f',
  'def f(x):\n    return {"a": [1, 2, -3]}  # done\n',
  '#include <stdio.h>\nint main() { printf("%d\\n", 1 << 4); }\n',
  'SELECT * FROM t WHERE name = \'O\'\'Brien\' -- ok;',
  '{"cmd": "ls -la /tmp | grep -v \\"x\\"", "n": null}',
  '你好，世界。天気がいいから、散歩しましょう。안녕하세요',
  'Ünïcödé café naïve Ωmega Привет مرحبا שלום हिन्दी',
  'e\u0301 is decomposed, \u00e9 is not; \ufb01 is a ligature',
  '🦞 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ✅ 🇩🇪',
  'zero\u200bwidth \u00a0nbsp \u3000wide \ufeffbom',
  '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>',
  'a<|im_end|>b<|endoftext|>c <|im_start|><|im_start|>',
  '<|im_end', '|im_end|>', '<tool_call>\n{"name": "x"}\n</tool_call>',
  '', ' ', '\n', 'x',
)  # fmt: skip


def train(path):
  """A SentencePiece model of some 700 pieces."""
  texts = [text for text in CORPUS if not text.startswith('<|')] * 3
  texts += ['the quick brown fox jumps over the lazy dog'] * 20
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([line for t in texts for line in t.split('\n')]),
    model_writer=(model := io.BytesIO()),
    model_type='bpe',
    vocab_size=700,
    byte_fallback=True,
    character_coverage=1.0,
    control_symbols=list(CONTROL),
    user_defined_symbols=['<think>', '</think>'],
    normalization_rule_name='identity',
    remove_extra_whitespaces=False,
    split_digits=True,
    allow_whitespace_only_pieces=True,
    hard_vocab_limit=False,
    minloglevel=2,
  )
  path.write_bytes(model.getvalue())


def ids(tokenizer):
  def encode(text, split):
    return tokenizer(
      text, add_special_tokens=False, split_special_tokens=split
    )['input_ids']

  return [
    {'content': encode(t, True), 'markup': encode(t, False)} for t in CORPUS
  ]


def main(qwen3):
  golden = HERE / 'golden'
  train(golden / 'spm.model')
  out = {'transformers': transformers.__version__, 'corpus': CORPUS}
  tiny = HERE.parents[1] / 'clawjax/chat/data/tiny/tokenizer.json'
  for name, file in (('tiny', tiny), ('qwen3', qwen3)):
    out[name] = ids(
      transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
    )
  with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    (place / 'tokenizer.model').write_bytes((golden / 'spm.model').read_bytes())
    out['spm'] = ids(
      transformers.LlamaTokenizer.from_pretrained(
        folder, legacy=False, add_prefix_space=False
      )
    )
  text = json.dumps(out, ensure_ascii=True, separators=(',', ':'))
  (golden / 'ids.json').write_text(text + '\n')


if __name__ == '__main__':
  main(sys.argv[1])
