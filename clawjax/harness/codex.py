"""Codex, as shipped or trimmed.

It speaks OpenAI Responses. As shipped it sends some 10k tokens before the task;
`trimmed` replaces its instructions and switches off the features that its own
configuration can switch off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness.template import Template

_PROGRAM = (
  '{package}/node_modules/@openai/codex-{system}/vendor/{triple}/bin/codex'
)
_TRIPLES = {
  'linux-x64': 'x86_64-unknown-linux-musl',
  'linux-arm64': 'aarch64-unknown-linux-musl',
}
_INSTRUCTIONS = 'You are a coding agent. Use the tools to do the task.'
_PROVIDER = """
[model_providers.clawjax]
name = "clawjax"
base_url = "{base_url}/v1"
env_key = "CLAWJAX_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1

[analytics]
enabled = false
"""
_TRIM = """
[features]
multi_agent = false
goals = false

[skills.bundled]
enabled = false
"""


def make(
  *,
  variant: str = 'default',
  instructions: str | None = None,
  mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
  context_window: int = 200_000,
  max_tokens: int = 8192,
) -> Template:
  """Codex.

  Args:
    variant: 'default' or 'trimmed'.
    instructions: replaces its own, or None; `trimmed` has one line by default.
    mcp_servers: name -> keys of an `[mcp_servers.NAME]` table.
    context_window, max_tokens: of the model.
  """
  if variant not in ('default', 'trimmed'):
    raise HarnessError(
      f"codex: wanted variant 'default' or 'trimmed', got {variant!r}"
    )
  from clawjax.harness.install import system

  trimmed = variant == 'trimmed'
  if trimmed and instructions is None:
    instructions = _INSTRUCTIONS
  # Keys before the first table, then the tables.
  config = [
    'model = "{model}"',
    'model_provider = "clawjax"',
    'check_for_update_on_startup = false',
    'model_context_window = {context_window}',
  ]
  files = {}
  if instructions is not None:
    files['.codex/instructions.md'] = instructions
    config.append('model_instructions_file = "{home}/.codex/instructions.md"')
  if trimmed:
    config.append('web_search = "disabled"')
  config.append(_PROVIDER + (_TRIM if trimmed else ''))
  for name, entry in (mcp_servers or {}).items():
    config.append(_table(f'mcp_servers.{name}', {'required': True, **entry}))
  files['.codex/config.toml'] = '\n'.join(config)
  program = _PROGRAM.replace('{system}', system()).replace(
    '{triple}', _TRIPLES.get(system(), '')
  )
  common = ['--skip-git-repo-check']
  common += ['--dangerously-bypass-approvals-and-sandbox', '--json']
  common += ['--disable', 'plugins', '--disable', 'apps']
  return Template(
    name='codex' if variant == 'default' else f'codex_{variant}',
    dialect='responses',
    argv=(program, 'exec', *common, '--', '{prompt}'),
    next_argv=(
      *(program, 'exec', 'resume', '--last', *common),
      *('--', '{prompt}'),
    ),
    files=files,
    env={'CLAWJAX_KEY': 'none'},
    package='codex',
    context_window=context_window,
    max_tokens=max_tokens,
  )


def _table(name: str, entry: Mapping[str, Any]) -> str:
  """A TOML table; JSON strings, numbers, booleans and lists are TOML too."""
  lines = [f'[{name}]']
  tables = []
  for key, value in entry.items():
    if isinstance(value, Mapping):
      tables.append(_table(f'{name}.{key}', value))
    else:
      lines.append(f'{key} = {json.dumps(value)}')
  return '\n'.join([*lines, '', *tables])
