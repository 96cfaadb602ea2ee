"""A harness given as data: command line, files and variables with holes.

Most adapters are one `Template`, and so is a harness that a user adds in a
config, without touching the library:

  harness.load('template', name='toy', dialect='chat', fixed_version='1',
               argv=('python3', '/opt/toy/toy.py', '{prompt}'),
               env={'OPENAI_BASE_URL': '{base_url}/v1'},
               readonly=(('~/toy', '/opt/toy'),))

Holes: {prompt}, {base_url} (without /v1), {model}, {context_window},
{max_tokens}, {home}, {workspace}, and {package}, {node} where there is a pinned
package or Node is asked for. Other braces stay as they are.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from clawjax.errors import HarnessError
from clawjax.harness import base, install, warm
from clawjax.sandbox import base as sandbox_base

DIALECTS = ('chat', 'messages', 'responses')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
  """A harness as data; strings may have holes.

  Attributes:
    name: as in configs and reports.
    dialect: 'chat', 'messages' or 'responses'.
    argv: command line for the first user message.
    next_argv: for the further ones of one session; () where there is no way.
    session_argv: instead of both, where one process takes several messages.
    session_stdin, turn_stdin: what that process reads, at first and for each
      message; {json} is the message as a JSON string.
    files: path (below HOME unless absolute) -> text.
    env: variables.
    readonly: (host path, inside path) pairs; '~' is the user's home.
    rules: names of the proxy's normalisation rules.
    ok_codes: exit codes of a harness that ended by itself.
    stdin: what it reads; may be '{prompt}'.
    package: folder below third_party/harnesses, or '' for none.
    needs_node: it is a Node program.
    compiled: it gains from a warm compile cache.
    fixed_version: of a harness without a pinned package.
    context_window, max_tokens: what it is told of the model.
  """

  name: str
  dialect: str
  argv: tuple[str, ...]
  next_argv: tuple[str, ...] = ()
  session_argv: tuple[str, ...] = ()
  session_stdin: str = ''
  turn_stdin: str = ''
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  readonly: tuple[tuple[str, str], ...] = ()
  rules: tuple[str, ...] = ()
  ok_codes: tuple[int, ...] = (0,)
  stdin: str = ''
  package: str = ''
  needs_node: bool = False
  compiled: bool = False
  fixed_version: str = ''
  context_window: int = 32768
  max_tokens: int = 8192

  def __post_init__(self):
    if self.dialect not in DIALECTS:
      raise HarnessError(
        f'harness {self.name}: wanted a dialect of {", ".join(DIALECTS)}, '
        f'got {self.dialect!r}'
      )
    if not self.argv:
      raise HarnessError(f'harness {self.name}: argv is empty')
    if not (self.package or self.fixed_version):
      raise HarnessError(
        f'harness {self.name}: give its version (fixed_version), which is '
        'recorded with every rollout'
      )

  @property
  def version(self) -> str:
    """Version of the program."""
    return self.fixed_version or install.package(self.package).version

  @property
  def multi_turn(self) -> bool:
    """Whether it can take several user messages in one session."""
    return bool(self.next_argv or self.session_argv)

  def installed(self) -> bool:
    """See `base.Harness`."""
    if self.package and not install.package(self.package).installed():
      return False
    return all(_host(h).exists() for h, _ in self.readonly)

  def install(self) -> None:
    """See `base.Harness`."""
    if self.package:
      install.install(self.package)
    if self.needs_node:
      install.node()

  async def prepare(self, backend: Any) -> None:
    """See `base.Harness`."""
    if self.compiled:
      await warm.compile_cache(self, backend)

  def plan(
    self, turns: Sequence[str], *, base_url: str, model: str = base.MODEL
  ) -> base.Plan:
    """See `base.Harness`."""
    if len(turns) > 1 and not self.multi_turn:
      raise HarnessError(
        f'{self.name} takes one user message a session, the task has '
        f'{len(turns)}: leave it out, or run it with another harness'
      )
    holes = {
      'base_url': base_url,
      'model': model,
      'context_window': str(self.context_window),
      'max_tokens': str(self.max_tokens),
      'home': sandbox_base.HOME,
      'workspace': sandbox_base.WORKSPACE,
    }
    readonly = [(str(_host(h)), i) for h, i in self.readonly]
    env = {'NO_PROXY': '127.0.0.1,localhost', 'NO_COLOR': '1'}
    path = ['/usr/local/bin', '/usr/bin', '/bin']
    if self.package:
      package = install.package(self.package)
      if not package.installed():
        raise HarnessError(f'{self.name} is not installed in {package.host}')
      holes['package'] = package.inside
      readonly.append((str(package.host), package.inside))
    if self.needs_node:
      node = install.node()
      holes['node'] = node.inside
      path.insert(0, str(pathlib.PurePosixPath(node.inside).parent))
      readonly += node.readonly
    if self.compiled:
      cache = warm.mount(self.package)
      env |= cache.env
      readonly += cache.readonly
    env['PATH'] = ':'.join(path)
    env |= {k: _fill(v, holes) for k, v in self.env.items()}
    lines, stdin = [], []
    if len(turns) > 1 and self.session_argv:
      lines.append(tuple(_fill(a, holes) for a in self.session_argv))
      told = [_fill(self.session_stdin, holes)]
      told += [_fill(self.turn_stdin, {'json': json.dumps(t)}) for t in turns]
      stdin.append(''.join(told).encode())
      turns = ()
    for i, turn in enumerate(turns):
      line = self.argv if i == 0 else self.next_argv
      lines.append(tuple(_fill(a, holes | {'prompt': turn}) for a in line))
      stdin.append(_fill(self.stdin, holes | {'prompt': turn}).encode())
    return base.Plan(
      files={p: _fill(t, holes).encode() for p, t in self.files.items()},
      argv=tuple(lines),
      env=env,
      readonly=tuple(readonly),
      ok_codes=self.ok_codes,
      stdin=tuple(stdin) if any(stdin) else (),
    )


def _host(path: str) -> pathlib.Path:
  return pathlib.Path(os.path.expanduser(path)).absolute()


def _fill(text: str, holes: Mapping[str, str]) -> str:
  """Fills the holes once; what a value contains is not looked at again."""
  parts, start = [], 0
  while (i := text.find('{', start)) >= 0:
    end = text.find('}', i)
    name = text[i + 1 : end] if end > 0 else ''
    if name in holes:
      parts += [text[start:i], holes[name]]
      start = end + 1
    else:
      parts.append(text[start : i + 1])
      start = i + 1
  return ''.join([*parts, text[start:]])
