"""Makes `builtin:tiny_mix`, where `quickstart_mix` starts: three agents.

  launch/run.sh --config=configs/tiny_cold_start_mix.py

As `tiny_cold_start`, with the tasks dealt out over pi, Claude Code (bare) and
Codex (trimmed), each in its own dialect, with its own shell tool. What their
prompts are in the tiny tokenizer, which was made for pi's lean prompt (one task
of one line; the second call is after one command):

                                              first call   second call
  pi 1.6.0, lean, bash alone                         265           303
  Claude Code 2.1.332, bare, Bash alone              902           950
  Claude Code 2.1.332, bare, all three tools       1,826         1,874
  Codex 0.171.0, trimmed                           2,344         2,450

So pi fits a window of 1,024, Claude Code wants 2,048 and Codex 4,096. Most of a
prompt is the same for all tasks of a harness: the engine's prefix cache reads
it once, a group's tree trains it once, and rows must be as long as a prompt.

Starts from `builtin:tiny`, which knows the tasks through pi alone. About 30
minutes on two cores: 5 of capture (630 trajectories, mean score 0.382), 24 of
training, 2 of evaluation. Pass@1 on 28 unseen tasks, two samples each, and
greedy: pi 0.318 and 0.576, Claude Code 0.392 and 0.496, Codex 0.359 and 0.468
(0.356 and 0.514 over all three).
"""

from configs import quickstart, tiny_cold_start

PROMPT = 'Solve the task with bash, then say Done.'


def through_three(c) -> None:
  """Sets the harnesses, and what their prompts ask of engine and rows."""
  c.harnesses.claude_code = {
    'name': 'claude_code',
    'options': {
      'variant': 'bare',
      'tools': ('Bash',),
      'system_prompt': PROMPT,
      'max_tokens': 128,
    },
  }
  c.harnesses.codex = {
    'name': 'codex',
    'options': {
      'variant': 'trimmed',
      'instructions': PROMPT,
      'max_tokens': 128,
    },
  }
  c.engine.window = 4096
  # Rows hold a whole Codex rollout.
  for pack in (c.loop.pack, c.sft.pack):
    pack.row_tokens = 4096
    pack.row_buckets = (4096,)


def get_config():
  """Cold start for three harnesses."""
  c = tiny_cold_start.get_config()
  c.name = 'tiny_cold_start_mix'
  c.export = 'runs/tiny_cold_start_mix/model'
  through_three(c)
  c.model.path = 'builtin:tiny'
  c.model.options = {}
  c.tasks.families = quickstart.FAMILIES
  c.expert.trajectories = 630
  c.sft.drill.steps = 0
  c.sft.steps = 600
  c.sft.batch = 45
  c.optim.learning_rate = 1e-2
  c.optim.decay_steps = 600
  c.loop.evaluate.tasks = 28
  return c
