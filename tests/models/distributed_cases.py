"""One process of several; process 0 prints one JSON line.

  distributed_cases.py PROCESSES PROCESS PORT FOLDER

Each process has 4 / PROCESSES CPU devices; together they are one mesh of four,
fsdp 2 x expert 2. On it: a Hugging Face folder loaded into the mesh, log-probs,
one step of the policy (two microbatches), and the new weights saved.
"""

import json
import os
import sys

os.environ['JAX_PLATFORMS'] = 'cpu'

import jax
import numpy as np

from clawjax import trie
from clawjax.models import checkpoint, qwen3
from clawjax.models.config import Config
from clawjax.models.sharding import Sharding, make_mesh
from clawjax.train import state, step
from clawjax.types import Call, Sample

CONFIG = Config.tiny(
  vocab=64, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
  experts=4, experts_per_token=2, expert_width=16,
)  # fmt: skip


def batch():
  """Eight rows, each a prompt of 8 with two answers of 6 of one rollout."""
  rng = np.random.default_rng(0)

  def call(row, index, prompt):
    sample = Sample(
      rng.integers(0, 64, 6).astype(np.int32),
      rng.normal(-4, 0.1, 6).astype(np.float32),
      'stop',
    )
    return Call(f'c{index}', f'r{row}', index, prompt, sample)

  tries = []
  for row in range(8):
    prompt = rng.integers(0, 64, 8).astype(np.int32)
    tries.append(trie.build([call(row, i, prompt) for i in range(2)]))
  rows = trie.pack(tries, row_tokens=24, row_buckets=(24,))
  shape = rows.term_slot.shape
  return rows.replace(
    advantage=rng.normal(size=shape).astype(np.float32),
    weight=np.where(rows.mask, 1 / rows.mask.sum(), 0).astype(np.float32),
    old_logprob=rows.rollout_logprob,
  )


def main(processes, process, port, folder):
  jax.config.update('jax_num_cpu_devices', 4 // processes)
  if processes > 1:
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(f'localhost:{port}', processes, process)
  assert len(jax.devices()) == 4
  sharding = Sharding(make_mesh(fsdp=2, expert=2))
  places = sharding.of(qwen3.table(CONFIG))
  params, _ = checkpoint.load_hf(f'{folder}/start', shardings=places)
  optimizer = state.make_optimizer(
    state.OptimConfig(learning_rate=0.01, max_grad_norm=0.01)
  )
  learner = step.Learner(
    CONFIG,
    optimizer,
    forward=step.ForwardConfig(rows=4, chunk=32),
    sharding=sharding,
  )
  rows = batch()
  logp = learner.score(params, rows)
  begin = jax.jit(
    lambda p: state.init(p, optimizer),
    out_shardings=sharding.like(
      jax.eval_shape(lambda p: state.init(p, optimizer), params),
      places,
    ),
  )
  after, metrics = learner.update(begin(params), rows)
  checkpoint.save_hf(after.params, CONFIG, f'{folder}/end{processes}')
  if process == 0:
    print(
      json.dumps(
        {
          'processes': jax.process_count(),
          'rows': len(rows.tokens),
          'logp': logp[rows.mask].tolist(),
          'metrics': metrics,
        }
      ),
      flush=True,
    )


if __name__ == '__main__':
  main(*map(int, sys.argv[1:4]), sys.argv[4])
