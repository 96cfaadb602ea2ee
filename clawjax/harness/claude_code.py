"""Claude Code, as shipped or bare.

It speaks Anthropic Messages, needs no configuration file, and as shipped sends
some 12k tokens before the task. `bare` is its own switch for a small prompt.
Two variables keep its prompts stable from call to call: no moving cache
breakpoints, no billing block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness.template import Template

_PROGRAM = '{package}/node_modules/@anthropic-ai/claude-code-{system}/claude'
_MCP = '.clawjax-mcp.json'


def make(
  *,
  variant: str = 'default',
  tools: Sequence[str] = (),
  system_prompt: str | None = None,
  mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
  context_window: int = 200_000,
  max_tokens: int = 8192,
) -> Template:
  """Claude Code.

  Args:
    variant: 'default' or 'bare'.
    tools: names of the built-in tools to offer, or () for all.
    system_prompt: replaces its own, or None.
    mcp_servers: name -> entry of an `mcpServers` object.
    context_window, max_tokens: of the model.
  """
  if variant not in ('default', 'bare'):
    raise HarnessError(
      f"claude_code: wanted variant 'default' or 'bare', got {variant!r}"
    )
  from clawjax.harness.install import system

  argv = [_PROGRAM.replace('{system}', system()), '-p']
  argv += ['--dangerously-skip-permissions', '--output-format', 'json']
  if variant == 'bare':
    argv += ['--bare']
  if tools:
    argv += ['--tools', ','.join(tools)]
  if system_prompt is not None:
    argv += ['--system-prompt', system_prompt]
  files = {}
  env = {
    'ANTHROPIC_BASE_URL': '{base_url}',
    'ANTHROPIC_API_KEY': 'none',
    'ANTHROPIC_MODEL': '{model}',
    'ANTHROPIC_SMALL_FAST_MODEL': '{model}',
    'ANTHROPIC_DEFAULT_HAIKU_MODEL': '{model}',
    'CLAUDE_CODE_MAX_OUTPUT_TOKENS': '{max_tokens}',
    'CLAUDE_CODE_MAX_RETRIES': '1',
    'CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC': '1',
    'CLAUDE_CODE_ATTRIBUTION_HEADER': '0',
    'DISABLE_PROMPT_CACHING': '1',
    'DISABLE_AUTOUPDATER': '1',
    'DISABLE_TELEMETRY': '1',
    'DISABLE_ERROR_REPORTING': '1',
    'IS_SANDBOX': '1',
  }
  if mcp_servers:
    files[_MCP] = json.dumps({'mcpServers': dict(mcp_servers)})
    argv += ['--mcp-config', '{home}/' + _MCP, '--strict-mcp-config']
    # Else the model sees only the names, behind a search tool.
    env['ENABLE_TOOL_SEARCH'] = 'false'
  return Template(
    name='claude_code' if variant == 'default' else f'claude_code_{variant}',
    dialect='messages',
    argv=(*argv, '--', '{prompt}'),
    next_argv=(*argv, '--continue', '--', '{prompt}'),
    files=files,
    env=env,
    rules=('billing',),
    package='claude_code',
    context_window=context_window,
    max_tokens=max_tokens,
  )
