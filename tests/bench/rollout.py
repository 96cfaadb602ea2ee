"""Where the time of a rollout goes: sandbox, harness, proxy, verifier.

  python tests/bench/rollout.py --json [--harness pi] [--rollouts 24]
      [--at-once 1]

Whole rollouts (real harness, real bubblewrap sandbox, real proxy, a verifier in
its own sandbox) against an engine that answers at once, so all that is left is
the cost of the machinery. Each makes three calls: look, write, done. Wall
seconds are medians by stage. CPU seconds are of all processes together: those
of harness and verifier by their control groups (bwrap and relay included), the
proxy's by its own clock, and the rest of this process (fleet, sandboxes being
made and removed). One JSON object; shares of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time

import numpy as np

# Also from a checkout that is not installed.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from clawjax import harness, sandbox, types
from clawjax.chat import tokenizers
from clawjax.proxy import serve
from clawjax.proxy.app import Proxy
from clawjax.rollout import fleet as fleet_lib
from clawjax.sandbox import base
from tests.rollout import hi

# Name -> adapter, options, shell tool, its argument, what else it wants.
HARNESSES = {
  'agent_loop': ('agent_loop', {'tools': ('bash',)}, 'bash', 'command', {}),
  'pi': (
    'pi',
    {'tools': ('bash',), 'system_prompt': 'Use bash.', 'lean': True},
    'bash',
    'command',
    {},
  ),
  'claude_code': (
    'claude_code',
    {'variant': 'bare'},
    'Bash',
    'command',
    {'description': 'a step'},
  ),
  'codex': ('codex', {'variant': 'trimmed'}, 'exec_command', 'cmd', {}),
}
COMMANDS = ('ls -l', 'printf hi > out.txt')


class Instant:
  """Looks, writes, is done; at once."""

  window = 1 << 18
  policy_version = 0

  def __init__(self, tokenizer, tool, argument, rest):
    texts = [
      json.dumps({'name': tool, 'arguments': {argument: c, **rest}})
      for c in COMMANDS
    ]
    texts = [f'<tool_call>\n{t}\n</tool_call>' for t in texts] + ['Done.']
    self.samples = []
    for text in texts:
      ids = [*tokenizer.encode_markup(text), tokenizer.im_end]
      logprobs = np.full(len(ids), -0.5, np.float32)
      self.samples.append(
        types.Sample(np.asarray(ids, np.int32), logprobs, 'stop')
      )

  async def sample(self, prompt_ids, params, *, session_id='', call_index=0):
    return self.samples[min(call_index, len(self.samples) - 1)]

  async def close(self):
    pass


class Clocked(Proxy):
  """Adds up the proxy's own seconds when sessions end."""

  own_s = 0.0

  def close(self, rollout_id):
    self.own_s += self.stats(rollout_id).own_s
    super().close(rollout_id)


class Weighed:
  """A backend that adds up what the commands of graders take."""

  def __init__(self, inner):
    self.inner, self.name, self.grader_s = inner, inner.name, 0.0

  def __getattr__(self, name):
    return getattr(self.inner, name)

  async def create(self, spec):
    box = await self.inner.create(spec)
    if spec.label.startswith('verify '):
      run = box.exec

      async def exec(*argv, **options):
        result = await run(*argv, **options)
        self.grader_s += result.cpu_seconds or 0.0
        return result

      box.exec = exec
    return box


def cpu() -> float:
  """CPU seconds of this process so far."""
  own = resource.getrusage(resource.RUSAGE_SELF)
  return own.ru_utime + own.ru_stime


async def bench(options) -> dict:
  """Runs the rollouts; the JSON object."""
  name, extra, tool, argument, rest = HARNESSES[options.harness]
  made = harness.load(name, **extra)
  if not made.installed():
    return {'skipped': f'{name} is not installed'}
  backend = Weighed(sandbox.load('bwrap'))
  probe = await backend.probe()
  if not probe.ok:
    return {'skipped': probe.text}
  await made.prepare(backend)
  tokenizer = tokenizers.load('tiny')
  proxy = Clocked(Instant(tokenizer, tool, argument, rest), tokenizer)
  with tempfile.TemporaryDirectory(prefix='cjb') as folder:
    os.chmod(folder, 0o711)
    place = pathlib.Path(folder)
    fleet = fleet_lib.LocalFleet(
      backend=backend, proxy=proxy, socket_dir=place, out_dir=place
    )
    rollouts: list[types.Rollout] = []

    async def step(count, prefix):
      request = fleet_lib.GroupRequest(hi.make_task(), made, count, prefix)
      async for group in fleet.run_groups(
        [request], concurrency=options.at_once
      ):
        rollouts.extend(group)

    async with serve.serve(proxy.app, uds=place / base.SOCKET_NAME):
      await step(2, 'warm')
      rollouts.clear()
      proxy.own_s = backend.grader_s = 0.0
      own, start = cpu(), time.perf_counter()
      await step(options.rollouts, 'bench')
      wall = time.perf_counter() - start
      used = {
        'harness': sum(r.extra.get('cpu_seconds') or 0.0 for r in rollouts),
        'verifier': backend.grader_s,
        'proxy': proxy.own_s,
        'sandbox and fleet': cpu() - own - proxy.own_s,
      }
  await backend.close()
  bad = [r.reason for r in rollouts if r.reward != 1.0]
  assert not bad, bad[0]
  return _report(options, made, rollouts, wall, used)


def _report(options, made, rollouts, wall, used) -> dict:
  count = len(rollouts)

  def median(stage):
    return statistics.median(r.timings.get(stage, 0.0) for r in rollouts)

  proxy_wall = used['proxy'] / count
  stages = {
    'sandbox': median('create') + median('destroy'),
    'harness': median('harness') - proxy_wall,
    'proxy': proxy_wall + median('settle'),
    'verifier': median('verify'),
  }
  return {
    'harness': f'{made.name} {made.version}',
    'rollouts': count,
    'at_once': options.at_once,
    'cores': os.cpu_count(),
    'load': round(os.getloadavg()[0], 1),
    'calls_each': len(rollouts[0].calls),
    'rollouts_per_minute': round(60 * count / wall, 1),
    'total_s': round(median('total'), 3),
    'wall_s': {k: round(v, 4) for k, v in stages.items()},
    'wall_share': _shares(stages),
    'cpu_s': {k: round(v / count, 4) for k, v in used.items()},
    'cpu_share': _shares(used),
    'peak_memory_mib': round(
      max(r.extra.get('peak_memory_bytes') or 0 for r in rollouts) / base.MIB
    ),
  }


def _shares(parts: dict[str, float]) -> dict[str, float]:
  total = sum(parts.values())
  return {k: round(v / total, 3) for k, v in parts.items()}


def main() -> None:
  """Command line: see the top of the file."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--harness', choices=sorted(HARNESSES), default='pi')
  parser.add_argument('--rollouts', type=int, default=24)
  parser.add_argument('--at-once', type=int, default=1)
  options = parser.parse_args()
  result = asyncio.run(bench(options))
  print(json.dumps(result, indent=None if options.json else 2))


if __name__ == '__main__':
  main()
