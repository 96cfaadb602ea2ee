"""Makes the tiny model's cold-start checkpoint again, from nothing.

  launch/run.sh --config=configs/tiny_cold_start.py

A scripted expert, right about one time in three, plays generated tasks through
the real pi agent in its sandbox; the proxy captures the trajectories as it would
a teacher model's. A fresh 2.0 M-parameter Qwen3-MoE learns to copy names in
drills, is fitted to the captured model tokens, then evaluated on tasks not
seen, sampled and greedy. The expert errs at its decision points (wrong file,
wrong order, wrong column, stopping early), so the model starts out knowing the
moves but not which are right.

About 12 minutes of capture and 27 of training on two busy cores; Pass@1 0.288
sampled, 0.526 greedy. With Muon the drills reach a loss of 0.03 in 400 steps;
AdamW at 3e-3 had 1.2 after 700.
"""

from clawjax import experiment


def get_config():
  """Cold start of `builtin:tiny`."""
  c = experiment.default_config('tiny_cold_start')
  c.kind = 'sft'
  c.thinking = 'off'
  c.export = 'runs/tiny_cold_start/model'
  c.model.path = 'random:tiny'
  c.model.options = {'width': 128, 'heads': 4, 'kv_heads': 2}
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
  c.tasks.seed = 1
  c.expert.trajectories = 945
  c.expert.skill = 0.5
  c.expert.rename = True
  c.sft.drill.steps = 400
  c.sft.drill.batch = 120
  c.sft.drill.shortest = 6
  c.sft.steps = 900
  c.sft.batch = 46
  c.sft.pack.row_tokens = 2048
  c.sft.pack.row_buckets = (2048,)
  c.sft.pack.term_multiple = 1024
  c.forward.streams = 2
  c.optim.optimizer = 'muon'
  c.optim.learning_rate = 0.02
  c.optim.schedule = 'cosine'
  c.optim.warmup_steps = 20
  c.optim.decay_steps = 1300
  c.optim.final_fraction = 0.05
  c.optim.weight_decay = 0.01
  c.loop.evaluate.tasks = 72
  c.loop.evaluate.samples = 2
  return c
