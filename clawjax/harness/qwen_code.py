"""qwen-code, as shipped or bare; OpenAI Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness.template import Template

# Several messages go to one process: taken up again, it would drop the date
# that it had put before the first one, and no later prompt would extend it. The
# request before them keeps them in order while it starts.
_READY = {
  'type': 'control_request',
  'request_id': 'start',
  'request': {'subtype': 'initialize'},
}
_MESSAGE = (
  '{"type": "user", "session_id": "", "parent_tool_use_id": null, '
  '"message": {"role": "user", "content": {json}}}\n'
)


def make(
  *,
  variant: str = 'default',
  system_prompt: str | None = None,
  mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
  context_window: int = 128_000,
  max_tokens: int = 8192,
) -> Template:
  """qwen-code.

  Args:
    variant: 'default' or 'bare' (its own switch for fewer tools).
    system_prompt: replaces its own, or None.
    mcp_servers: name -> entry of `mcpServers` (`httpUrl` for HTTP).
    context_window, max_tokens: of the model.
  """
  if variant not in ('default', 'bare'):
    raise HarnessError(
      f"qwen_code: wanted variant 'default' or 'bare', got {variant!r}"
    )
  settings: dict[str, Any] = {
    'privacy': {'usageStatisticsEnabled': False},
    'general': {'enableAutoUpdate': False, 'disableAutoUpdate': True},
    'telemetry': {'enabled': False},
    # Agents of its own that look back at a finished task; HOME is fresh.
    'memory': {
      'enableManagedAutoMemory': False,
      'enableManagedAutoDream': False,
      'enableAutoSkill': False,
    },
    'security': {'auth': {'selectedType': 'openai'}},
    'model': {
      'generationConfig': {
        'maxRetries': 1,
        'contextWindowSize': context_window,
        'samplingParams': {'max_tokens': max_tokens},
      }
    },
  }
  if mcp_servers:
    settings['mcpServers'] = dict(mcp_servers)
    settings['tools'] = {'toolSearch': {'enabled': False}}
  argv = ['{node}', '{package}/node_modules/@qwen-code/qwen-code/cli.js', '-y']
  argv += ['--auth-type', 'openai']
  if variant == 'bare':
    argv.append('--bare')
  if system_prompt is not None:
    argv += ['--system-prompt', system_prompt]
  return Template(
    name='qwen_code' if variant == 'default' else f'qwen_code_{variant}',
    dialect='chat',
    argv=(*argv, '-o', 'json', '-p', '{prompt}'),
    session_argv=(
      *(*argv, '--input-format', 'stream-json'),
      *('--output-format', 'stream-json'),
    ),
    session_stdin=json.dumps(_READY) + '\n',
    turn_stdin=_MESSAGE,
    files={'.qwen/settings.json': json.dumps(settings)},
    env={
      'OPENAI_API_KEY': 'none',
      'OPENAI_BASE_URL': '{base_url}/v1',
      'OPENAI_MODEL': '{model}',
    },
    package='qwen_code',
    needs_node=True,
    compiled=True,
    context_window=context_window,
    max_tokens=max_tokens,
  )
