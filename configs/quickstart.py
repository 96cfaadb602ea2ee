"""A tiny Qwen3-MoE learns file tasks through the real pi agent, on a CPU.

  launch/run.sh --config=configs/quickstart.py
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """The whole loop of clawjax, small."""
  c = ml_collections.ConfigDict()
  c.name = 'quickstart'
  c.kind = 'rl'
  c.seed = 0
  c.tokenizer = 'tiny'
  c.thinking = 'off'
  c.model = ml_collections.ConfigDict({'path': 'builtin:tiny', 'options': {}})
  c.engine = ml_collections.ConfigDict({'slots': 8, 'window': 1024})
  c.harnesses = ml_collections.ConfigDict()
  return c
