"""Does a harness keep every sampled token? One command, one table row.

  python -m clawjax.rollout.conformance --harness pi
  python -m clawjax.rollout.conformance --harness claude_code --option variant=bare
  python -m clawjax.rollout.conformance --harness codex --mcp stdio
  python -m clawjax.rollout.conformance --harness pi@1.7.0   (not the pinned one)

Runs the real program on this machine (no sandbox, empty HOME and workspace,
loopback only) against a scripted model, through some twenty calls with tool
use, thinking, text around calls, JSON spelled in odd ways, unicode, white space
and parallel calls. Printed: version, calls, breaks by cause, roles, and the
delivered-token fraction. Status 1 when the program did not get to the end of
the script, when a prompt claims to extend an answer and does not, or when
tokens are missing without a retry being the cause. With `--mcp stdio|http` the
harness is given our file server, the script calls its tool three times, and
status 0 needs the server's three answers in the prompts. With `--bodies DIR` every request body is kept, to see what a harness changed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from clawjax import errors, harness, types
from clawjax.chat import tokenizers
from clawjax.harness import install
from clawjax.harness import mcp as mcp_servers
from clawjax.proxy import accounting, app, scripted, serve
from clawjax.sandbox import base

# Tool that runs a shell command, the name of its argument, what else it wants.
SHELLS: dict[str, tuple[str, str, dict[str, Any]]] = {
  'pi': ('bash', 'command', {}),
  'claude_code': ('Bash', 'command', {'description': 'a step'}),
  'codex': ('exec_command', 'cmd', {}),
  'openclaw': ('exec', 'command', {}),
  'qwen_code': ('run_shell_command', 'command', {'is_background': False}),
  'opencode': ('bash', 'command', {'description': 'a step'}),
  'mini_swe': ('bash', 'command', {}),
}
# The server's tool, as a harness names it to the model.
MCP_TOOLS = {
  'pi': 'mcp__files__search_files',
  'claude_code': 'mcp__files__search_files',
  'codex': 'mcp__files__search_files',
  'openclaw': 'files__search_files',
  'qwen_code': 'mcp__files__search_files',
  'opencode': 'files_search_files',
}
MCP_FILES = {'notes.txt': 'walrus\n'}
MCP_ANSWER = 'notes.txt:1: walrus'
MCP_CALLS = 3
MCP_PORT = 8137
END = {'mini_swe': 'echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT'}
PROMPT = 'Count the lines of the files here and write the sum to out.txt.'


def script(name: str, *, mcp: bool = False) -> list[dict[str, Any]]:
  """Twenty answers with calls, and a last one without.

  Args:
    name: of the harness.
    mcp: whether some of the calls are for the MCP server.
  """
  tool, argument, rest = SHELLS[name]

  def call(command: str, style: int = 0) -> str:
    body: dict[str, Any] = {
      'name': tool,
      'arguments': {argument: command, **rest},
    }
    if style == 1:
      text = json.dumps(body, separators=(',', ':'), ensure_ascii=False)
    elif style == 2:
      body = {'arguments': body['arguments'], 'name': tool}
      text = json.dumps(body, indent=1)
    else:
      text = json.dumps(body, ensure_ascii=False)
    return f'<tool_call>\n{text}\n</tool_call>'

  turns = [
    call('ls'),
    '<think>\nI should look first.\n</think>\n\n' + call('pwd', 1),
    'Let me see.\n\n\n' + call('echo "你好 🦞"', 2),
    call("printf 'a\\tb\\n' > a.txt; cat a.txt"),
    '<think>\nTwo\n\nat once.\n</think>\n\nBoth:\n'
    + call('echo one', 1)
    + '\n'
    + call('echo two'),
    '  indented  \n\n' + call('wc -l a.txt | sed "s/ .*//" > out.txt', 1),
    call('echo " trailing "; echo; echo', 2),
  ]
  answers = (turns * 3)[:20]
  if mcp:
    search = {'name': MCP_TOOLS[name], 'arguments': {'query': 'walrus'}}
    block = f'<tool_call>\n{json.dumps(search)}\n</tool_call>'
    answers[2] = block
    answers[9] = '<think>\nAgain.\n</think>\n\nI search.\n\n' + block
    answers[13] = call('pwd') + '\n' + block
  answers.append(call(END[name]) if name in END else 'All done.')
  return [{'text': a} for a in answers]


@dataclasses.dataclass(frozen=True)
class Report:
  """One row of the table.

  Attributes:
    harness, version, dialect: what ran.
    ended: it came to the end of the script and ended by itself.
    returncode: its exit status.
    account: where the sampled tokens went.
    normalised: names of the rules that changed something.
    mcp: answers of the MCP server in the last prompt; None without one.
  """

  harness: str
  version: str
  dialect: str
  ended: bool
  returncode: int
  account: accounting.Account
  normalised: tuple[str, ...]
  mcp: int | None = None

  @property
  def ok(self) -> bool:
    """Whether it ended, with nothing missing but what a retry replaced."""
    lost = set(self.account.missing) - {'retry'}
    lost = {cause for cause in lost if not cause.startswith('role: ')}
    answered = self.mcp in (None, MCP_CALLS)
    return self.ended and answered and not self.account.inexact and not lost

  def json(self) -> dict[str, Any]:
    """For `--json`."""
    return {
      **dataclasses.asdict(self),
      'fraction': self.account.fraction,
      'ok': self.ok,
    }


def keeping(serve_app: Any, folder: pathlib.Path) -> Any:
  """An app that writes each request's body to NNN.json before serving it."""
  folder.mkdir(parents=True, exist_ok=True)
  count = 0

  async def kept(scope: Any, receive: Any, send: Any) -> None:
    nonlocal count
    path = folder / f'{count:03d}.json'
    count += 1

    async def read() -> Any:
      message = await receive()
      if body := message.get('body'):
        with path.open('ab') as file:
          file.write(body)
      return message

    await serve_app(scope, read, send)

  return kept


class Driven(NamedTuple):
  """What came of a harness's run.

  Attributes:
    calls: as recorded.
    returncode: of the last process; 124 when it was killed.
    ended: that status means that it ended by itself.
    refused: requests that were told that the window is full.
  """

  calls: tuple[types.Call, ...]
  returncode: int
  ended: bool
  refused: int


async def drive(
  made: Any,
  answers: Sequence[Any],
  turns: Sequence[str] = (PROMPT,),
  *,
  timeout_s: float = 300.0,
  bodies: str = '',
  files: Mapping[str, str] = MappingProxyType({}),
  token_budget: int | None = None,
) -> Driven:
  """Runs an installed harness against scripted answers.

  Args:
    made: the harness.
    answers: as in `proxy.scripted`.
    turns: user messages of one session, one process each.
    timeout_s: after which a process is killed.
    bodies: folder for the request bodies, '' for none.
    files: relative path -> text, in the workspace before it starts.
    token_budget: of the session, see `Proxy.open`.
  """
  tokenizer = tokenizers.load('tiny')
  client = scripted.ScriptedClient(answers, tokenizer, window=262144)
  proxy = app.Proxy(client, tokenizer)
  session = proxy.open(
    f'conformance/{made.name}',
    rules=tuple(made.rules),
    metadata={'instruction': turns[0]},
    token_budget=token_budget,
  )
  face = keeping(proxy.app, pathlib.Path(bodies)) if bodies else proxy.app
  with (
    tempfile.TemporaryDirectory() as home,
    tempfile.TemporaryDirectory() as workspace,
  ):
    for name, text in files.items():
      pathlib.Path(workspace, name).write_text(text)
    async with serve.serve(face) as url:
      plan = made.plan(turns, base_url=url + session.path)
      code = await _run_plan(plan, home, workspace, timeout_s)
      await proxy.settle(session.id)
  refused = proxy.stats(session.id).refused
  return Driven(proxy.calls(session.id), code, code in plan.ok_codes, refused)


async def run(
  name: str,
  options: dict[str, Any],
  *,
  timeout_s: float = 300.0,
  bodies: str = '',
  mcp: str = '',
) -> Report:
  """Drives a harness through the script.

  Args:
    name: of the harness.
    options: of its adapter.
    timeout_s, bodies: see `drive`.
    mcp: 'stdio' or 'http' for a run with an MCP server, '' for one without.

  Raises:
    HarnessError: it is unknown, not installed, or takes no MCP server.
  """
  made = harness.load(name, **options)
  if mcp:
    port = MCP_PORT if mcp == 'http' else None
    server = mcp_servers.shipped('files', base.WORKSPACE, port=port)
    made = mcp_servers.equip(name, [server], **options)
  if not made.installed():
    made.install()
  answers = script(name, mcp=bool(mcp))
  calls, code, ended, _ = await drive(
    made,
    answers,
    timeout_s=timeout_s,
    bodies=bodies,
    files=MCP_FILES if mcp else {},
  )
  found = None
  if mcp:
    last = calls[-1].prompt_ids if calls else ()
    found = tokenizers.load('tiny').decode(last).count(MCP_ANSWER)
  return Report(
    harness=made.name,
    version=made.version,
    dialect=made.dialect,
    ended=ended and len(calls) >= len(answers),
    returncode=code,
    account=accounting.account(calls),
    normalised=tuple(sorted({n for c in calls for n in c.normalised})),
    mcp=found,
  )


async def _run_plan(
  plan: Any, home: str, workspace: str, timeout_s: float
) -> int:
  inside = {
    base.WORKSPACE: workspace,
    base.HOME: home,
    **{mount: outside for outside, mount in plan.readonly},
  }

  def host(text: str) -> str:
    for mount, outside in inside.items():
      text = text.replace(mount, outside)
    return text

  for name, content in plan.files.items():
    path = pathlib.Path(home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(host(content.decode()))
  env = {k: host(v) for k, v in plan.env.items()}
  env.setdefault('PATH', '/usr/local/bin:/usr/bin:/bin')
  code = 0
  for turn, argv in enumerate(plan.argv):
    process = await asyncio.create_subprocess_exec(
      *map(host, argv),
      env={**env, 'HOME': home},
      cwd=workspace,
      stdin=asyncio.subprocess.PIPE,
      stdout=asyncio.subprocess.DEVNULL,
      start_new_session=True,
    )
    told = plan.stdin[turn] if plan.stdin else b''
    try:
      # (Nothing is printed to us: this writes, closes and waits.)
      await asyncio.wait_for(process.communicate(told), timeout_s)
      code = process.returncode or 0
    except TimeoutError:
      return 124
    finally:  # With all that it has started, OpenClaw's agent for one.
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      await process.wait()
  return code


def _option(text: str) -> tuple[str, Any]:
  name, _, value = text.partition('=')
  try:
    return name, json.loads(value)
  except ValueError:
    return name, value


def main() -> int:
  """Command line: see the top of the file."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--harness', required=True, help='NAME[@VERSION]')
  parser.add_argument('--option', action='append', default=[], help='K=V')
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--timeout', type=float, default=300.0, help='seconds')
  parser.add_argument('--bodies', default='', help='folder for request bodies')
  parser.add_argument('--mcp', default='', choices=('stdio', 'http'))
  args = parser.parse_args()
  name, _, version = args.harness.partition('@')
  try:
    if name not in SHELLS:
      raise errors.HarnessError(
        f'wanted a harness of {", ".join(SHELLS)}, got {name!r}'
      )
    if version:
      install.repin(name, version)
    options = dict(_option(o) for o in args.option)
    report = asyncio.run(
      run(
        name,
        options,
        timeout_s=args.timeout,
        bodies=args.bodies,
        mcp=args.mcp,
      )
    )
  except errors.ClawjaxError as e:
    print(f'conformance: {e}', file=sys.stderr)
    return 2
  if args.json:
    print(json.dumps(report.json()))
  else:
    a = report.account
    print(
      f'{report.harness} {report.version} ({report.dialect}): rc '
      f'{report.returncode}, {a.calls} calls, {a.sampled} tokens sampled, '
      f'delivered {a.fraction:.4f}, breaks {a.breaks or "none"}, missing '
      f'{a.missing or "none"}, inexact {a.inexact}, roles {a.roles}, '
      f'normalised {list(report.normalised)}'
      + ('' if report.mcp is None else f', MCP answers {report.mcp}')
      + f': {"ok" if report.ok else "NOT OK"}'
    )
  return 0 if report.ok else 1


if __name__ == '__main__':
  sys.exit(main())
