"""Supervised training on captured trajectories, for tests that kill it.

  python sft_run.py RUN_DIR DATA STEPS [KILL_AFTER_STEP]

Model, learner, data and checkpoints are real, and very small. With
KILL_AFTER_STEP the process kills itself with SIGKILL once that step is done;
checkpoints are written every second step. Writes the final parameters' digest
to RUN_DIR/digest.
"""

import hashlib
import os
import pathlib
import signal
import sys

import jax
import numpy as np

from clawjax.chat import tokenizers
from clawjax.models import qwen3
from clawjax.train import captured, progress, sft, state, step
from clawjax.trie import PackConfig

TINY = tokenizers.load('tiny')


class Display(progress.Display):
  """Ends the process after the line of a step."""

  kill_after = 0

  def say(self, text):
    super().say(text)
    if self.kill_after and text.startswith(f'sft {self.kill_after}/'):
      os.kill(os.getpid(), signal.SIGKILL)


def learner():
  model = qwen3.Config.tiny(
    vocab=TINY.vocab_size, width=16, layers=1, heads=2, kv_heads=1,
    head_size=8, experts=0, mlp_width=16,
  )  # fmt: skip
  optimizer = state.make_optimizer(state.OptimConfig(learning_rate=1e-2))
  made = step.Learner(model, optimizer, forward=step.ForwardConfig(chunk=64))
  return made, state.init(qwen3.init(model, jax.random.key(0)), optimizer)


def config(steps):
  return sft.SftConfig(
    steps=steps,
    batch=2,
    log_every=1,
    save_every=2,
    seed=5,
    pack=PackConfig(row_tokens=64, row_buckets=(64,), term_multiple=64),
  )


def fit(run_dir, rollouts, steps, display):
  made, start = learner()
  return sft.fit(
    made, start, rollouts, config(steps), run_dir=run_dir, display=display
  )


def digest(tree):
  found = hashlib.blake2b(digest_size=16)
  for leaf in jax.tree.leaves(tree):
    found.update(np.asarray(leaf).tobytes())
  return found.hexdigest()


def main(run_dir, data, steps, kill_after='0'):
  run_dir = pathlib.Path(run_dir)
  rollouts = captured.load(data, TINY, min_reward=0.5, thinking='off')
  display = Display()
  display.kill_after = int(kill_after)
  final = fit(run_dir, rollouts, int(steps), display)
  (run_dir / 'digest').write_text(digest(final))


if __name__ == '__main__':
  main(*sys.argv[1:])
