"""A tiny Qwen3-MoE learns file tasks through the real pi agent, on a CPU.

  launch/run.sh --config=configs/quickstart.py

Starts from the checkpoint that ships with us (`configs/tiny_cold_start.py`),
whose teacher was right about one time in three. GRPO with token TIS; the only
reward is what a verifier finds in the files.
"""

from clawjax import experiment


def get_config():
  """The whole loop, small enough for two cores and 4 GiB."""
  c = experiment.default_config('quickstart')
  c.thinking = 'off'
  c.engine.window = 1024
  c.harnesses.pi.options = {
    'tools': ('bash',),
    'system_prompt': 'Solve the task with bash, then say Done.',
    'lean': True,
    'context_window': 32768,
    'max_tokens': 128,
  }
  c.rollout.max_tokens = 128
  c.rollout.time_limit_s = 60.0
  c.tasks.train = 1024
  c.loop.steps = 10
  c.loop.minibatches = 2
  c.loop.epochs = 2
  c.loop.collect.tasks = 9
  c.loop.collect.group = 6
  c.loop.collect.groups_per_chunk = 2
  c.loop.evaluate.tasks = 45
  c.loop.evaluate.samples = 2
  c.loop.pack.row_tokens = 2048
  c.loop.pack.row_buckets = (2048,)
  c.loop.pack.term_multiple = 1024
  c.optim.learning_rate = 3e-4
  c.optim.warmup_steps = 2
  return c
