"""One tiny policy learns through three agents at once, on a CPU.

  launch/run.sh --config=configs/quickstart_mix.py
  launch/run.sh --config=configs/quickstart_mix.py --name=mix-pi \\
    --config.train_on="('pi',)"

Each task runs through pi, Claude Code (bare) and Codex (trimmed) in the same
batch; advantages are taken within (task, harness). The second command trains
through one of them only and evaluates through all, at the same number of
rollouts per harness; with those of all three,

  python -m clawjax.eval.transfer runs/quickstart_mix runs/mix-pi \\
    runs/mix-claude runs/mix-codex

sets the policies beside each other. The shipped checkpoint has only ever seen
pi, in a window of 1,024 tokens, and Codex's first prompt alone has 2,344: this
config starts from what `configs/tiny_cold_start_mix.py` makes (the table of
prompts is there), which has to be run first and takes hours on two cores.
"""

from configs import quickstart, tiny_cold_start_mix


def get_config():
  """The quickstart through three harnesses."""
  c = quickstart.get_config()
  c.name = 'quickstart_mix'
  c.model.path = tiny_cold_start_mix.MODEL
  tiny_cold_start_mix.through_three(c)
  c.loop.collect.tasks = 3
  c.loop.collect.group = 6
  c.loop.collect.groups_per_chunk = 3
  c.loop.evaluate.tasks = 30
  return c
