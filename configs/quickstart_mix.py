"""One tiny policy learns through three agents at once, on a CPU.

  export CLAWJAX_TOOLS='claude_code codex'
  launch/run.sh --config=configs/quickstart_mix.py
  launch/run.sh --config=configs/quickstart_mix.py --name=mix-pi \\
    --config.train_on="('pi',)"

Each task runs through pi, Claude Code (bare) and Codex (trimmed) in the same
batch; advantages are taken within (task, harness). The second command trains
through one of them only and evaluates through all, at the same number of
rollouts per harness; with those of all three,

  python -m clawjax.eval.transfer runs/quickstart_mix runs/mix-pi \\
    runs/mix-claude runs/mix-codex

sets the policies beside each other. `builtin:tiny` has only ever seen pi, in a
window of 1,024 tokens, and Codex's first prompt alone has 2,344: this config
starts from `builtin:tiny_mix`, which ships with us too and which
`configs/tiny_cold_start_mix.py` makes (the table of prompts is there).

Before training, Pass@1 on 30 unseen tasks, two samples each: pi 0.395, Claude
Code 0.389, Codex 0.354. A step of 72 rollouts took a minute on two cores and up
to seven beside other work. What training adds, and how the mixed policy stands
beside the single-harness ones, has not been measured to the end.
"""

from configs import quickstart, tiny_cold_start_mix


def get_config():
  """The quickstart through three harnesses."""
  c = quickstart.get_config()
  c.name = 'quickstart_mix'
  c.model.path = 'builtin:tiny_mix'
  tiny_cold_start_mix.through_three(c)
  # Three agents on two cores: on a busy machine 60 s were not enough.
  c.rollout.time_limit_s = 300.0
  c.loop.steps = 10
  c.loop.collect.tasks = 4
  c.loop.collect.group = 6
  c.loop.collect.groups_per_chunk = 3
  # One minibatch: a single-harness step may have one chunk alone to train on,
  # and the runs would then differ in optimiser steps.
  c.loop.minibatches = 1
  c.loop.epochs = 4
  c.loop.evaluate.tasks = 30
  c.loop.evaluate.samples = 2
  c.loop.evaluate.greedy = False
  c.optim.decay_steps = 40
  return c
