"""OpenClaw, as shipped or lean.

The paper's harness. It speaks any of three dialects and takes seconds to start.
Its prompts carry a clock, a session id and a context message that it moves to
the end at every call; the proxy's rules deal with these. As shipped it also
writes its own files into the workspace; `lean` does not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness import base
from clawjax.harness.template import Template

_API = {
  'chat': 'openai-completions',
  'responses': 'openai-responses',
  'messages': 'anthropic-messages',
}


_CONFIG = '.openclaw/openclaw.json'


def without_bootstrap(plan: base.Plan) -> base.Plan:
  """The plan without the files that OpenClaw seeds a workspace with.

  Task sets made for OpenClaw remove them before the first message. Plans of
  other harnesses come back as they are.
  """
  if _CONFIG not in plan.files:
    return plan
  config = json.loads(plan.files[_CONFIG])
  config['agents']['defaults']['skipBootstrap'] = True
  files = {**plan.files, _CONFIG: json.dumps(config).encode()}
  return dataclasses.replace(plan, files=files)


def make(
  *,
  variant: str = 'default',
  dialect: str = 'chat',
  tools: Sequence[str] = (),
  mcp_servers: Mapping[str, Mapping[str, Any]] | None = None,
  context_window: int = 128_000,
  max_tokens: int = 8192,
) -> Template:
  """OpenClaw.

  Args:
    variant: 'default' or 'lean'.
    dialect: API that it speaks to the proxy.
    tools: names of the tools allowed; `lean` has four by default.
    mcp_servers: name -> entry of `mcp.servers`.
    context_window, max_tokens: of the model.
  """
  if variant not in ('default', 'lean'):
    raise HarnessError(
      f"openclaw: wanted variant 'default' or 'lean', got {variant!r}"
    )
  if dialect not in _API:
    raise HarnessError(
      f'openclaw: wanted a dialect of {", ".join(_API)}, got {dialect!r}'
    )
  lean = variant == 'lean'
  model = {
    'id': '{model}',
    'name': '{model}',
    'reasoning': False,
    'input': ['text'],
    'contextWindow': context_window,
    'maxTokens': max_tokens,
    'cost': {'input': 0, 'output': 0, 'cacheRead': 0, 'cacheWrite': 0},
  }
  provider = {
    'baseUrl': '{base_url}' if dialect == 'messages' else '{base_url}/v1',
    'apiKey': 'none',
    'api': _API[dialect],
    'models': [model],
  }
  defaults: dict[str, Any] = {
    'model': {'primary': 'clawjax/{model}'},
    'workspace': '{workspace}',
  }
  config: dict[str, Any] = {
    'models': {'mode': 'replace', 'providers': {'clawjax': provider}},
    'agents': {'defaults': defaults},
  }
  if lean:
    defaults |= {
      'skipBootstrap': True,
      'experimental': {'localModelLean': True},
    }
    tools = tools or ('exec', 'read', 'write', 'edit')
  if tools or mcp_servers:
    config['tools'] = {'toolSearch': False}
  if tools:
    config['tools']['allow'] = [
      *tools,
      *(f'{name}__*' for name in mcp_servers or ()),
    ]
  if mcp_servers:
    config['mcp'] = {'servers': dict(mcp_servers)}
  argv = ('{node}', '{package}/node_modules/openclaw/openclaw.mjs')
  argv += ('agent', '--local', '--agent', 'main', '--json')
  argv += ('--message', '{prompt}')
  return Template(
    name='openclaw' if variant == 'default' else f'openclaw_{variant}',
    dialect=dialect,
    argv=argv,
    next_argv=argv,
    files={_CONFIG: json.dumps(config)},
    env={
      'OPENCLAW_NO_UPDATE_CHECK': '1',
      'OPENCLAW_DISABLE_TELEMETRY': '1',
    },
    rules=(
      'openclaw_runtime',
      'openclaw_clock',
      'openclaw_context',
      'openclaw_queued',
      'tool_space',
    ),
    package='openclaw',
    needs_node=True,
    compiled=True,
    context_window=context_window,
    max_tokens=max_tokens,
  )
