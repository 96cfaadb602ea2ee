"""Supervised training on trajectories that were captured before.

  launch/run.sh --config=configs/sft.py --config.sft.data=FOLDER

`sft.data` is the folder of a run or an evaluation (its rollouts), an ArrayRecord
data set (`python -m clawjax.tasks.dataset`, a folder or a gs:// URL), or a .jsonl
file of conversations, as `python -m clawjax.eval --export chat` writes it for a
hosted teacher. What scored less than `sft.min_reward` is left out; only tokens
that the model sampled are trained, and what the trajectories of a step share is
computed once. The same command goes on where a run was cut short.

Beside training rollouts those of a run's evaluations are left out. What to expect
is what the data holds: the model learns to do as the trajectories do. Evaluation
afterwards is on generated tasks through pi; set `tasks.path` for a set of your
own, or `loop.evaluate.tasks` to 0.
"""

from clawjax import experiment


def get_config():
  """Fits `builtin:tiny` to trajectories of pi; every key can be set."""
  c = experiment.default_config('sft')
  c.kind = 'sft'
  c.thinking = 'off'
  c.export = 'runs/sft/model'
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
  c.sft.data = 'runs/quickstart'
  c.sft.min_reward = 1.0
  c.sft.steps = 200
  c.sft.batch = 32
  c.sft.save_every = 50
  c.sft.pack.row_tokens = 2048
  c.sft.pack.row_buckets = (2048,)
  c.sft.pack.term_multiple = 1024
  c.optim.learning_rate = 3e-4
  c.optim.schedule = 'cosine'
  c.optim.warmup_steps = 10
  c.optim.decay_steps = 200
  c.optim.final_fraction = 0.1
  c.optim.weight_decay = 0.01
  c.loop.evaluate.tasks = 64
  return c
