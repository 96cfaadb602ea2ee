"""The proxy's own speed, with an engine that answers at once.

  python tests/bench/proxy.py --json

32 sessions of 50 turns each, prompts growing to 20k tokens; then one session
of 128 turns, for the growth of the proxy's time per call. The proxy runs in a
process of its own, held to one core; clients (in this process) send bodies
made beforehand over HTTP and read the answers. Reported: turns per second, the
proxy's own time per call (from the whole body to the answer's bytes, engine
excluded), its growth from turn 8 to turn 128, and memory per session.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import pathlib
import random
import sys
import time
from typing import Any

import numpy as np

# Also from a checkout that is not installed; spawned processes read it again.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

SENTENCE = (
  'the file holds a list of names and each name has one number beside it so '
  'that we can count them all again and write the sum to the report before '
  'the next run of the script reads data from disk'
)
TOOLS = [
  {
    'type': 'function',
    'function': {
      'name': 'bash',
      'description': 'Runs a command.',
      'parameters': {
        'type': 'object',
        'properties': {'command': {'type': 'string'}},
        'required': ['command'],
      },
    },
  }
]


class InstantClient:
  """Answers each call with the same ids, at once."""

  def __init__(self, ids: list[int], window: int):
    self._ids = np.asarray(ids, np.int32)
    self._logprobs = np.full(len(ids), -0.5, np.float32)
    self.window = window
    self.policy_version = 0

  async def sample(self, prompt_ids, params, *, session_id='', call_index=0):
    from clawjax import types

    del prompt_ids, params, session_id, call_index
    return types.Sample(self._ids, self._logprobs, 'stop')

  async def close(self) -> None:
    pass


ANSWER = (
  '<think>\nThe next step is to look at the file.\n</think>\n\nI look.\n\n'
  '<tool_call>\n{"name":"bash","arguments":{"command":"cat notes.txt"}}\n'
  '</tool_call>'
)


def text(rng: random.Random, words: int) -> str:
  """Text of a number of words, with some numbers and line ends."""
  out = []
  vocabulary = SENTENCE.split()
  for i in range(words):
    out.append(rng.choice(vocabulary) if i % 9 else str(rng.randrange(1000)))
    out.append('\n' if i % 14 == 13 else ' ')
  return ''.join(out)


# ---- the server's process --------------------------------------------------


async def _serve(pipe: Any, options: dict[str, Any]) -> None:
  import psutil

  from clawjax.chat import tokenizers
  from clawjax.proxy import app, serve

  tokenizer = tokenizers.load(options['tokenizer'])
  ids = [*tokenizer.encode_markup(ANSWER), tokenizer.im_end]
  proxy = app.Proxy(
    InstantClient(ids, 1 << 20), tokenizer, record_dir=options['record_dir']
  )
  loop = asyncio.get_running_loop()
  process = psutil.Process()
  gc.collect()
  gc.freeze()  # As `python -m clawjax.proxy` does.
  async with serve.serve(proxy.app) as url:
    pipe.send(url)
    while True:
      order, value = await loop.run_in_executor(None, pipe.recv)
      if order == 'open':
        pipe.send([proxy.open(name).path for name in value])
      elif order == 'memory':
        pipe.send(process.memory_info().rss)
      elif order == 'cpu':
        pipe.send(sum(process.cpu_times()[:2]))
      elif order == 'times':
        pipe.send(
          {n: [s.own_s for s in proxy.session(n).served] for n in value}
        )
      elif order == 'prompts':
        pipe.send([len(proxy.calls(n)[-1].prompt_ids) for n in value])
      elif order == 'close':
        for name in value:
          proxy.close(name)
        pipe.send(None)
      else:
        return


def _server(pipe: Any, options: dict[str, Any]) -> None:
  if hasattr(os, 'sched_setaffinity'):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
  if options['uvloop']:
    import uvloop

    uvloop.run(_serve(pipe, options))
  else:
    asyncio.run(_serve(pipe, options))


# ---- the clients -----------------------------------------------------------


def bodies(rng: random.Random, turns: int, words: int) -> list[bytes]:
  """The requests of one conversation, as a harness would send them."""
  messages: list[dict[str, Any]] = [
    {'role': 'system', 'content': text(rng, 600)},
    {'role': 'user', 'content': text(rng, 60)},
  ]
  out = []
  for turn in range(turns):
    out.append(
      json.dumps(
        {
          'model': 'policy',
          'stream': True,
          'stream_options': {'include_usage': True},
          'messages': messages,
          'tools': TOOLS,
        }
      ).encode()
    )
    call_id = f'call_{rng.randrange(1 << 60):x}'
    messages += [
      {
        'role': 'assistant',
        'content': 'I look.',
        'reasoning_content': 'The next step is to look at the file.',
        'tool_calls': [
          {
            'id': call_id,
            'type': 'function',
            'function': {
              'name': 'bash',
              'arguments': '{"command": "cat notes.txt"}',
            },
          }
        ],
      },
      {
        'role': 'tool',
        'tool_call_id': call_id,
        'content': f'{turn}: ' + text(rng, words),
      },
    ]
  return out


async def _conversation(url: str, path: str, requests: list[bytes]) -> None:
  """Sends requests one after the other over one connection."""
  host, _, port = url.removeprefix('http://').partition(':')
  reader, writer = await asyncio.open_connection(host, int(port))
  for body in requests:
    head = (
      f'POST {path}/v1/chat/completions HTTP/1.1\r\nhost: {host}\r\n'
      f'content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n'
    )
    writer.write(head.encode() + body)
    await writer.drain()
    status = await reader.readline()
    if b' 200 ' not in status:
      raise RuntimeError(f'wanted a 200, got {status!r}')
    answer = await reader.readuntil(b'[DONE]\n\n')
    if b'cat notes.txt' not in answer:
      raise RuntimeError(f'wanted the answer, got {answer[-300:]!r}')
    await reader.readuntil(b'0\r\n\r\n')  # The last chunk.
  writer.close()


async def _run(pipe: Any, args: argparse.Namespace) -> dict[str, Any]:
  url = pipe.recv()

  def ask(order: str, value: Any = None) -> Any:
    pipe.send((order, value))
    return pipe.recv()

  rng = random.Random(0)
  warm = bodies(rng, 4, 50)
  await _conversation(url, ask('open', ['warm'])[0], warm)
  ask('close', ['warm'])

  names = [f's{i}' for i in range(args.sessions)]
  sent = [bodies(rng, args.turns, args.words) for _ in names]
  before = ask('memory')
  paths = ask('open', names)
  cpu = ask('cpu')
  begun = time.perf_counter()
  await asyncio.gather(
    *(_conversation(url, p, b) for p, b in zip(paths, sent, strict=True))
  )
  seconds = time.perf_counter() - begun
  cpu = ask('cpu') - cpu
  after = ask('memory')
  times = np.concatenate(list(ask('times', names).values()))
  lengths = ask('prompts', names)
  total = args.sessions * args.turns
  ask('close', names)

  growth = []
  for i in range(3):
    name = [f'long{i}']
    path = ask('open', name)[0]
    await _conversation(url, path, bodies(rng, 136, args.words))
    own = np.asarray(ask('times', name)[name[0]])
    growth.append((float(np.median(own[4:13])), float(np.median(own[124:133]))))
    ask('close', name)
  pipe.send(('stop', None))
  early, late = (
    np.median([g[0] for g in growth]),
    np.median([g[1] for g in growth]),
  )
  return {
    'benchmark': 'proxy',
    'tokenizer': args.tokenizer,
    'sessions': args.sessions,
    'turns': args.turns,
    'last_prompt_tokens': int(np.median(lengths)),
    'turns_per_s': round(total / seconds, 1),
    'turns_per_cpu_s': round(total / cpu, 1),
    'own_ms_p50': round(float(np.percentile(times, 50)) * 1e3, 3),
    'own_ms_p99': round(float(np.percentile(times, 99)) * 1e3, 3),
    'own_ms_turn_8': round(early * 1e3, 3),
    'own_ms_turn_128': round(late * 1e3, 3),
    'growth_8_to_128': round(float(late / early), 3),
    'memory_mb_per_session': round((after - before) / args.sessions / 2**20, 3),
    'cores': os.cpu_count(),
  }


def _qwen3() -> tuple[str, str]:
  """Qwen3's tokenizer, or the tiny one and the reason."""
  from clawjax.errors import HarnessError
  from tests.bench import qwen3

  try:
    return f'hf:{qwen3.path()}', ''
  except HarnessError as e:
    return 'tiny', str(e)


def main() -> None:
  """Command line: see the top of the file."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--json', action='store_true', help='one JSON object')
  parser.add_argument('--sessions', type=int, default=32)
  parser.add_argument('--turns', type=int, default=50)
  parser.add_argument(
    '--words', type=int, default=240, help='per tool result: 20k in the end'
  )
  parser.add_argument(
    '--tokenizer', default='qwen3', help='qwen3 (fetched once), tiny, hf:PATH'
  )
  parser.add_argument('--record-dir', default='', help="'': a temporary one")
  parser.add_argument('--uvloop', action='store_true')
  args = parser.parse_args()
  import tempfile

  with tempfile.TemporaryDirectory() as folder:
    context = multiprocessing.get_context('spawn')
    ours, theirs = context.Pipe()
    tokenizer, note = args.tokenizer, ''
    if tokenizer == 'qwen3':
      tokenizer, note = _qwen3()
    options = {
      'tokenizer': tokenizer,
      'record_dir': args.record_dir or folder,
      'uvloop': args.uvloop,
    }
    server = context.Process(target=_server, args=(theirs, options))
    server.start()
    try:
      result = asyncio.run(_run(ours, args))
    finally:
      server.join(5)
      if server.is_alive():
        server.terminate()
  if note:
    result |= {'tokenizer': 'tiny', 'note': note}
  if args.json:
    print(json.dumps(result))
  else:
    for key, value in result.items():
      print(f'{key:24} {value}')


if __name__ == '__main__':
  sys.exit(main())
