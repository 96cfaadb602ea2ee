"""The white-box baseline: our own agent loop as one more harness.

It runs in the same sandbox, talks to the same endpoint and is captured and
scored the same way as a harness that we did not write; only its inside is ours
(`inside/loop.py`): prompt, tools, observations and context are all options.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from clawjax.harness.template import Template

_FOLDER = pathlib.Path(__file__).resolve().parent / 'inside'
_INSIDE = '/opt/agent_loop'


def make(
  *,
  tools: Sequence[str] = (),
  prompt: str | None = None,
  observation_chars: int = 8000,
  max_turns: int = 50,
  corpus: str | None = None,
  context_window: int = 32768,
  max_tokens: int = 2048,
) -> AgentLoop:
  """The agent loop.

  Args:
    tools: names out of bash, search, fetch, python, read, write, edit, list;
      () for all.
    prompt: system prompt; '{cwd}' is the workspace.
    observation_chars: longest observation; longer ones lose their middle.
    max_turns: most calls of the model per user message.
    corpus: host folder that `fetch` reads from, mounted at /corpus.
    context_window, max_tokens: of the model.
  """
  argv = ['python3', '-I', f'{_INSIDE}/loop.py', '--base-url', '{base_url}']
  argv += ['--model', '{model}', '--max-tokens', '{max_tokens}']
  argv += ['--observation', str(observation_chars)]
  argv += ['--max-turns', str(max_turns)]
  if tools:
    argv += ['--tools', ','.join(tools)]
  if prompt is not None:
    argv += ['--prompt', prompt]
  readonly = [(str(_FOLDER), _INSIDE)]
  if corpus is not None:
    readonly.append((corpus, '/corpus'))
  return AgentLoop(
    name='agent_loop',
    dialect='chat',
    argv=(*argv, '--'),
    readonly=tuple(readonly),
    fixed_version='1',
    context_window=context_window,
    max_tokens=max_tokens,
  )


class AgentLoop(Template):
  """All user messages go into one run of the loop."""

  multi_turn = True

  def plan(self, turns, *, base_url, model='policy'):
    """See `base.Harness`."""
    import dataclasses

    plan = Template.plan(self, turns[:1], base_url=base_url, model=model)
    return dataclasses.replace(plan, argv=((*plan.argv[0], *turns),))
