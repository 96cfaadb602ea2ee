"""opencode, through any of three dialects (its AI SDK packages)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness.template import Template

_SDK = {
  'chat': '@ai-sdk/openai-compatible',
  'responses': '@ai-sdk/openai',
  'messages': '@ai-sdk/anthropic',
}


def make(
  *,
  dialect: str = 'chat',
  mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
  context_window: int = 128_000,
  max_tokens: int = 8192,
) -> Template:
  """opencode.

  Args:
    dialect: API that it speaks to the proxy.
    mcp_servers: name -> entry of `mcp`.
    context_window, max_tokens: of the model.
  """
  if dialect not in _SDK:
    raise HarnessError(
      f'opencode: wanted a dialect of {", ".join(_SDK)}, got {dialect!r}'
    )
  from clawjax.harness.install import system

  limit = {'context': context_window, 'output': max_tokens}
  provider = {
    'npm': _SDK[dialect],
    'name': 'clawjax',
    'options': {'baseURL': '{base_url}/v1', 'apiKey': 'none'},
    'models': {'{model}': {'name': '{model}', 'limit': limit}},
  }
  config: dict[str, Any] = {
    'autoupdate': False,
    'share': 'disabled',
    'model': 'clawjax/{model}',
    'permission': 'allow',
    'provider': {'clawjax': provider},
  }
  if mcp_servers:
    config['mcp'] = {n: {'enabled': True, **e} for n, e in mcp_servers.items()}
  program = f'{{package}}/node_modules/opencode-{system()}/bin/opencode'
  argv = (program, 'run', '--format', 'json', '-m', 'clawjax/{model}')
  return Template(
    name='opencode',
    dialect=dialect,
    # A title of its own saves the call that would make one.
    argv=(*argv, '--title', 'task', '--', '{prompt}'),
    next_argv=(*argv, '--continue', '--', '{prompt}'),
    files={'.config/opencode/opencode.json': json.dumps(config)},
    env={
      'OPENCODE_DISABLE_AUTOUPDATE': '1',
      'OPENCODE_DISABLE_MODELS_FETCH': '1',
      'OPENCODE_DISABLE_LSP_DOWNLOAD': '1',
      'OPENCODE_DISABLE_DEFAULT_PLUGINS': '1',
    },
    package='opencode',
    context_window=context_window,
    max_tokens=max_tokens,
  )
