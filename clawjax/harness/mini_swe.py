"""mini-swe-agent: one bash tool and a long user message.

A Python program (OpenAI Chat Completions, not streamed), run by the sandbox's
own python3. It ends when the model runs its "submit" command; its exit code
does not tell success. One user message per session.
"""

from __future__ import annotations

from clawjax.harness.template import Template


def make(*, context_window: int = 32768, max_tokens: int = 8192) -> Template:
  """mini-swe-agent.

  Args:
    context_window, max_tokens: of the model.
  """
  return Template(
    name='mini_swe',
    dialect='chat',
    argv=(
      *('python3', '-m', 'minisweagent.run.mini', '-y', '--exit-immediately'),
      *('-l', '0', '-m', 'openai/{model}', '-o', '{home}/trajectory.json'),
      *('-t', '{prompt}'),
    ),
    env={
      'PYTHONPATH': '{package}/site',
      'PYTHONDONTWRITEBYTECODE': '1',
      'OPENAI_API_KEY': 'none',
      'OPENAI_API_BASE': '{base_url}/v1',
      'OPENAI_BASE_URL': '{base_url}/v1',
      'MSWEA_CONFIGURED': 'true',
      'MSWEA_COST_TRACKING': 'ignore_errors',
      'MSWEA_SILENT_STARTUP': '1',
      'MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT': '1',
      'LITELLM_LOCAL_MODEL_COST_MAP': 'True',
    },
    package='mini_swe',
    context_window=context_window,
    max_tokens=max_tokens,
  )
