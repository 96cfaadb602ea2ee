"""Google tunix's vanilla `Sampler`; run by ../engine.py.

It takes strings, so a tokenizer that holds the prompts stands behind it: the
string '3' is prompt number 3.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax.numpy as jnp
import numpy as np
from least import measure
from tunix.generate import sampler
from tunix.models.qwen3 import model as model_lib
from tunix.models.qwen3 import params as params_lib


class Prompts:
  """Ids by number."""

  def __init__(self, rows):
    self.rows = rows

  def encode(self, text, **kwargs):
    return self.rows[int(text)].tolist()

  def decode(self, ids, **kwargs):
    return ''

  def bos_id(self):
    return None

  def eos_id(self):
    return -1

  def pad_id(self):
    return 0


def main() -> None:
  job = json.loads(sys.argv[1])
  folder = job['folder']
  hf = json.loads((pathlib.Path(folder) / 'config.json').read_text())
  config = model_lib.ModelConfig(
    num_layers=hf['num_hidden_layers'],
    vocab_size=hf['vocab_size'],
    embed_dim=hf['hidden_size'],
    hidden_dim=hf['moe_intermediate_size'],
    num_heads=hf['num_attention_heads'],
    head_dim=hf['head_dim'],
    num_kv_heads=hf['num_key_value_heads'],
    rope_theta=hf['rope_theta'],
    norm_eps=hf['rms_norm_eps'],
    use_tied_embedding=hf['tie_word_embeddings'],
    num_experts=hf['num_experts'],
    num_experts_per_tok=hf['num_experts_per_tok'],
  )
  model = params_lib.create_model_from_safe_tensors(
    folder, config, dtype=jnp.float32
  )
  rng = np.random.default_rng(0)
  rows = rng.integers(
    10, hf['vocab_size'], (max(job['batches']), job['prompt'])
  )
  run = sampler.Sampler(
    model,
    Prompts(rows),
    sampler.CacheConfig(
      cache_size=job['prompt'] + job['answer'],
      num_layers=config.num_layers,
      num_kv_heads=config.num_kv_heads,
      head_dim=config.head_dim,
    ),
  )
  out = {}
  for batch in job['batches']:
    texts = [str(i) for i in range(batch)]

    def work(answer, texts=texts):
      found = run(
        texts,
        max_generation_steps=answer,
        max_prompt_length=job['prompt'],
        eos_tokens=[-1],
        temperature=1.0,
        top_p=1.0,
        seed=0,
      )
      assert all(len(t) == answer for t in found.tokens)

    out[batch] = measure(work, job['answer'], job['repeats'])
  print(json.dumps(out))


main()
