"""The pi coding agent: small prompts and a fast start, so the quickstart's.

One provider is declared in `~/.pi/agent/models.json`, through any of three API
dialects. With the options at their defaults pi is as its users know it;
`lean` leaves the bash tool and a one-line system prompt, which is what a tiny
model can read.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness import base, install, warm

_API = {
  'chat': 'openai-completions',
  'responses': 'openai-responses',
  'messages': 'anthropic-messages',
}
_CLI = 'node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js'
_PROVIDER = 'clawjax'
# pi allocates some 100 MB while it loads; a larger nursery saves collections.
_FLAGS = ('--min-semi-space-size=16',)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pi:
  """The pi coding agent.

  Attributes:
    dialect: API that pi speaks to the proxy.
    context_window: tokens that pi believes the model has.
    max_tokens: most tokens of one answer that pi asks for.
    tools: names of the tools offered, or () for pi's own choice.
    system_prompt: replaces pi's own, or None.
    lean: no context files, skills, extensions, prompt templates or themes.
    reasoning: declare the model as one that thinks.
    mcp_servers: name -> entry of pi's mcp.json.
  """

  dialect: str = 'chat'
  context_window: int = 32768
  max_tokens: int = 8192
  tools: tuple[str, ...] = ()
  system_prompt: str | None = None
  lean: bool = False
  reasoning: bool = False
  mcp_servers: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )

  name = 'pi'
  rules = ()
  multi_turn = True

  def __post_init__(self):
    if self.dialect not in _API:
      raise HarnessError(
        f'pi: wanted a dialect of {", ".join(_API)}, got {self.dialect!r}'
      )

  @property
  def version(self) -> str:
    """Version of pi."""
    return install.package('pi').version

  def installed(self) -> bool:
    """See `base.Harness`."""
    return install.package('pi').installed()

  def install(self) -> None:
    """See `base.Harness`."""
    install.install('pi')
    install.node()

  async def prepare(self, backend: Any) -> None:
    """Warms Node's compile cache."""
    await warm.compile_cache(dataclasses.replace(self, mcp_servers={}), backend)

  def plan(
    self, turns: Sequence[str], *, base_url: str, model: str = base.MODEL
  ) -> base.Plan:
    """See `base.Harness`."""
    package, node = install.package('pi'), install.node()
    if not package.installed():
      raise HarnessError(f'pi is not installed in {package.host}')
    url = base_url if self.dialect == 'messages' else f'{base_url}/v1'
    entry = {
      'id': model,
      'name': model,
      'reasoning': self.reasoning,
      'input': ['text'],
      'contextWindow': self.context_window,
      'maxTokens': self.max_tokens,
      'cost': {'input': 0, 'output': 0, 'cacheRead': 0, 'cacheWrite': 0},
    }
    provider = {
      'baseUrl': url,
      'api': _API[self.dialect],
      'apiKey': 'none',
      'models': [entry],
    }
    settings = {
      'retry': {'maxRetries': 1, 'baseDelayMs': 500},
      # pi keeps 16k tokens free before it compacts: in a small window it
      # would do nothing else.
      'compaction': {'enabled': self.context_window > 32768},
      'quietStartup': True,
      'defaultProjectTrust': 'always',
    }
    files = {
      '.pi/agent/models.json': {'providers': {_PROVIDER: provider}},
      '.pi/agent/settings.json': settings,
    }
    if self.mcp_servers:
      files['.pi/agent/mcp.json'] = {'mcpServers': dict(self.mcp_servers)}
    cache = warm.mount('pi')
    return base.Plan(
      files={p: json.dumps(v).encode() for p, v in files.items()},
      argv=tuple(
        self._argv(node.inside, package.inside, model, turn, i, len(turns))
        for i, turn in enumerate(turns)
      ),
      env={
        'PI_OFFLINE': '1',
        'PI_TELEMETRY': '0',
        'PI_SKIP_VERSION_CHECK': '1',
        'NO_PROXY': '127.0.0.1,localhost',
        'PATH': f'{pathlib.PurePosixPath(node.inside).parent}:'
        '/usr/local/bin:/usr/bin:/bin',
        **cache.env,
      },
      readonly=(
        (str(package.host), package.inside),
        *node.readonly,
        *cache.readonly,
      ),
    )

  def _argv(self, node, inside, model, turn, i, count) -> tuple[str, ...]:
    argv = [node, *_FLAGS, f'{inside}/{_CLI}', '-p']
    argv += ['--provider', _PROVIDER, '--model', model]
    if count == 1:
      argv += ['--no-session']
    elif i > 0:
      argv += ['--continue']
    if self.tools:
      argv += ['--tools', ','.join(self.tools)]
    if self.system_prompt is not None:
      argv += ['--system-prompt', self.system_prompt]
    if self.lean:
      argv += ['--no-context-files', '--no-skills', '--no-extensions']
      argv += ['--no-prompt-templates', '--no-themes']
    if not self.mcp_servers:
      argv += ['--no-mcp']
    return (*argv, '--', turn)


def make(**options: Any) -> Pi:
  """pi with its options; see `Pi`."""
  return Pi(**options)
