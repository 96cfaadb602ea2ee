"""Serving on one CPU: tokens per second against peers, and what reuse saves.

  python tests/bench/engine.py --json [--hf PYTHON] [--tunix PYTHON] [--quick]

prints one JSON object. `--hf` and `--tunix` name interpreters that have
`transformers` with torch, or `google-tunix`: the peers run there, as processes
of their own, one after the other in the same run, on the same weights (written
once as a Hugging Face folder), the same prompts and the same forced lengths.

For each batch size, per peer, after a warm-up, by wall time and by CPU time of
the whole process (on a shared machine the second is the steadier one):

  tokens   answer tokens per second of whole requests, prefill and decode
  prefill  prompt tokens per second of requests for one token
  decode   tokens per second after the first: (answer - 1) over the difference
           of the two times

and ratios ours / theirs. `session`: one agent session of 40 turns that
grows to 16k tokens, with and without the prefix cache. `reuse`: the share of
the prompt tokens that could be reused which were, on several sessions at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from peers.least import measure

PROMPT, ANSWER = 256, 64


def model(**fields):
  """A random Qwen3-MoE of 9 M parameters."""
  import jax

  from clawjax.models import qwen3

  config = qwen3.Config.tiny(
    **{
      'vocab': 8192,
      'width': 256,
      'layers': 4,
      'heads': 8,
      'kv_heads': 2,
      'head_size': 32,
      'experts': 8,
      'experts_per_token': 2,
      'expert_width': 256,
    }
    | fields
  )
  return config, qwen3.init(config, jax.random.key(0))


def prompts(count, vocab, seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(10, vocab, (count, PROMPT)).astype(np.int32)


def serve(config, params, *, reuse=True, **options):
  from clawjax.serving.engine import Engine
  from clawjax.serving.scheduler import Scheduler, SchedulerConfig

  engine = Engine(config, params, **options)
  return Scheduler(engine, SchedulerConfig(reuse=reuse)).start()


def ours(config, params, batches, repeats):
  """Tokens per second of whole requests: prefill and decode, no reuse."""
  from clawjax.types import SamplingParams

  out = {}
  for batch in batches:
    running = serve(config, params, slots=batch, window=512, reuse=False)
    client = running.client()

    async def work(answer, batch=batch, client=client):
      await asyncio.gather(
        *[
          client.sample(p, SamplingParams(max_tokens=answer, seed=i))
          for i, p in enumerate(prompts(batch, config.vocab))
        ]
      )

    seconds = measure(
      lambda answer, work=work: asyncio.run(work(answer)), ANSWER, repeats
    )
    running.stop()
    out[batch] = rates(batch, seconds)
  return out


def rates(batch, seconds):
  """See the top of the file; `seconds` as `peers.least.measure` gives them."""
  out = {}
  for clock, one, whole in zip(('wall', 'cpu'), *seconds, strict=True):
    out |= {
      f'tokens_per_{clock}_s': batch * ANSWER / whole,
      f'prefill_tokens_per_{clock}_s': batch * PROMPT / one,
      f'decode_tokens_per_{clock}_s': batch * (ANSWER - 1) / (whole - one),
    }
  return out


PEERS = {'hf': 'hf.py', 'tunix': 'tunix_sampler.py'}


def peer(name, python, folder, batches, repeats):
  script = pathlib.Path(__file__).parent / 'peers' / PEERS[name]
  job = {
    'folder': str(folder),
    'batches': batches,
    'prompt': PROMPT,
    'answer': ANSWER,
    'repeats': repeats,
  }
  done = subprocess.run(
    [python, str(script), json.dumps(job)],
    capture_output=True,
    text=True,
    check=False,
  )
  if done.returncode:
    return {'error': done.stderr[-500:]}
  seconds = json.loads(done.stdout.splitlines()[-1])
  return {int(b): rates(int(b), pair) for b, pair in seconds.items()}


def session(config, params, *, turns, final):
  """Seconds of one growing session, with and without the prefix cache."""
  from clawjax.serving.engine import Engine
  from clawjax.serving.scheduler import Scheduler, SchedulerConfig
  from clawjax.types import SamplingParams

  new = final // turns - 16
  engine = Engine(config, params, slots=2, window=final + 256, page_size=16)

  def run(seed, count, reuse):
    running = Scheduler(engine, SchedulerConfig(reuse=reuse)).start()
    client = running.client()

    async def work():
      rng = np.random.default_rng(seed)
      ids = rng.integers(10, config.vocab, new).astype(np.int32)
      for turn in range(count):
        sample = await client.sample(
          ids, SamplingParams(max_tokens=16, seed=turn), session_id='s'
        )
        more = rng.integers(10, config.vocab, new)
        ids = np.concatenate([ids, sample.token_ids, more]).astype(np.int32)

    a, b = time.perf_counter(), time.process_time()
    asyncio.run(work())
    took = {
      'wall_s': time.perf_counter() - a,
      'cpu_s': time.process_time() - b,
    }
    running.stop()
    stats = running.stats()
    names = ('prefilled_tokens', 'prefill_s', 'decode_s')
    return took | {k: stats[k] for k in names}

  # Compiles: every context with reuse, every chunk without.
  run(0, turns, True)
  run(0, 3, False)
  out = {'reuse': run(1, turns, True), 'whole': run(1, turns, False)}
  out['times_faster_wall'] = out['whole']['wall_s'] / out['reuse']['wall_s']
  out['times_faster_cpu'] = out['whole']['cpu_s'] / out['reuse']['cpu_s']
  out['turns'], out['tokens'] = turns, final
  return out


def reuse(config, params, *, sessions, turns):
  """Reused / reusable prompt tokens over groups of sibling sessions.

  Reusable: the longest common prefix with anything this server has been given
  or has said before this call was sent, but the prompt's last token.
  """
  from clawjax.types import SamplingParams

  running = serve(config, params, slots=8, window=2048)
  client = running.client()
  seen: list[np.ndarray] = []
  totals = {'could': 0, 'did': 0, 'prompt': 0}

  def common(a, b):
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size

  async def run(i):
    rng = np.random.default_rng(i)
    stem = np.random.default_rng(1000 + i // 4).integers(10, config.vocab, 300)
    ids = stem.astype(np.int32)
    for turn in range(turns):
      could = max((common(ids[:-1], s) for s in seen), default=0)
      sample = await client.sample(
        ids, SamplingParams(max_tokens=24, seed=100 * i + turn)
      )
      totals['could'] += could
      totals['did'] += min(could, sample.reused_tokens)
      totals['prompt'] += len(ids)
      ids = np.concatenate([ids, sample.token_ids])
      seen.append(ids[:-1])
      more = rng.integers(10, config.vocab, rng.integers(20, 120))
      ids = np.concatenate([ids, more]).astype(np.int32)

  async def all_of_them():
    await asyncio.gather(*[run(i) for i in range(sessions)])

  asyncio.run(all_of_them())
  running.stop()
  return {
    'share_of_reusable': totals['did'] / max(1, totals['could']),
    'share_of_prompts': totals['did'] / totals['prompt'],
  }


def load_time(config, params, repeats=5):
  """Seconds of a weight update while eight sequences decode.

  `pause`: no token is drawn. In process the parameters are at hand; through
  Orbax they are written to a shared folder and read from it first, while the
  old ones go on serving.
  """
  from clawjax.serving import weights
  from clawjax.types import SamplingParams

  running = serve(config, params, slots=8, window=512)
  client = running.client()
  took = {'pause': [], 'orbax_pause': [], 'orbax_write': [], 'orbax_read': []}

  async def work(through):
    tasks = [
      asyncio.create_task(
        client.sample(p, SamplingParams(max_tokens=4 * ANSWER, seed=i))
      )
      for i, p in enumerate(prompts(8, config.vocab))
    ]
    while not running.stats()['decoding']:
      await asyncio.sleep(0.01)
    version, new = running.engine.version + 1, params
    if through is not None:
      a = time.perf_counter()
      where = await asyncio.to_thread(weights.publish, params, through, version)
      b = time.perf_counter()
      new = await asyncio.to_thread(weights.read, where, config)
      took['orbax_write'].append(b - a)
      took['orbax_read'].append(time.perf_counter() - b)
    before = running.stats()['load_s']
    await asyncio.to_thread(running.load_params, new, version)
    took['pause' if through is None else 'orbax_pause'].append(
      running.stats()['load_s'] - before
    )
    samples = await asyncio.gather(*tasks)
    return sum(
      s.token_versions is not None and s.token_versions[-1] == version
      for s in samples
    )

  mixed = 0
  for _ in range(repeats):
    mixed += asyncio.run(work(None))
  with tempfile.TemporaryDirectory() as folder:
    for _ in range(repeats):
      mixed += asyncio.run(work(folder))
  running.stop()
  return {
    **{f'{k}_s_median': float(np.median(v)) for k, v in took.items()},
    'samples_of_two_versions': int(mixed),
    'MiB': config.total_params * 4 / 2**20,
  }


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--json', action='store_true', help='(always)')
  parser.add_argument('--hf', help='interpreter with transformers and torch')
  parser.add_argument('--tunix', help='interpreter with google-tunix')
  parser.add_argument('--quick', action='store_true', help='small sizes')
  parser.add_argument('--only', help='ours, session, reuse or load')
  args = parser.parse_args()
  batches = [1, 8] if args.quick else [1, 8, 32]
  repeats = 1 if args.quick else 3
  config, params = model()
  out = {'parameters': config.total_params, 'prompt': PROMPT, 'answer': ANSWER}

  def wanted(name):
    return args.only in (None, name)

  if wanted('ours'):
    out['ours'] = ours(config, params, batches, repeats)
    first, last = out['ours'][batches[0]], out['ours'][batches[-1]]
    out[f'batch_{batches[-1]}_over_1'] = (
      last['tokens_per_wall_s'] / first['tokens_per_wall_s']
    )
    with tempfile.TemporaryDirectory() as folder:
      from clawjax.models import checkpoint

      checkpoint.save_hf(params, config, folder)
      for name, python in (('hf', args.hf), ('tunix', args.tunix)):
        if not python:
          continue
        theirs = out[name] = peer(name, python, folder, batches, repeats)
        if 'error' not in theirs:
          out[f'ours_over_{name}'] = {
            b: {k: out['ours'][b][k] / theirs[b][k] for k in theirs[b]}
            for b in batches
          }
  tiny, tiny_params = model(vocab=2048, width=160, heads=4, kv_heads=1,
                            expert_width=128)  # fmt: skip
  if wanted('session'):
    turns, final = (10, 2048) if args.quick else (40, 16384)
    out['session'] = session(tiny, tiny_params, turns=turns, final=final)
  if wanted('reuse'):
    out['reuse'] = reuse(tiny, tiny_params, sessions=8, turns=10)
  if wanted('load'):
    out['load'] = load_time(config, params)
  print(json.dumps(out, indent=2))
  return 0


if __name__ == '__main__':
  sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
  sys.exit(main())
