"""Hugging Face generate with its key-value cache; run by ../engine.py."""

import json
import sys

import torch
import transformers
from least import measure


def main() -> None:
  job = json.loads(sys.argv[1])
  model = transformers.AutoModelForCausalLM.from_pretrained(
    job['folder'], dtype=torch.float32
  ).eval()
  out = {}
  for batch in job['batches']:
    torch.manual_seed(0)
    ids = torch.randint(10, model.config.vocab_size, (batch, job['prompt']))

    def work(answer, ids=ids):
      with torch.inference_mode():
        model.generate(
          ids,
          attention_mask=torch.ones_like(ids),
          do_sample=True,
          top_k=0,
          top_p=1.0,
          min_new_tokens=answer,
          max_new_tokens=answer,
          use_cache=True,
          pad_token_id=0,
        )

    out[batch] = measure(work, job['answer'], job['repeats'])
  print(json.dumps(out))


main()
