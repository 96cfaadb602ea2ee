"""On two devices, heads cut along the mesh, the numbers are the same."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
import jax
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 2)
import numpy as np
from clawjax.models import qwen3
from clawjax.models.sharding import Sharding, make_mesh
from clawjax.serving.engine import Engine
from clawjax.serving.scheduler import Scheduler
from clawjax.types import SamplingParams
import asyncio

config = qwen3.Config.tiny(vocab=96, width=32, layers=2, heads=4, kv_heads=2,
  head_size=8, experts=4, experts_per_token=2, expert_width=16)
params = qwen3.init(config, jax.random.key(0))
out = []
for sharding in (None, Sharding(make_mesh(tensor=2))):
  engine = Engine(config, params, slots=2, window=64, page_size=8, burst=4,
    max_chunk=32, sharding=sharding)
  running = Scheduler(engine).start()
  client = running.client()
  async def work():
    first = await client.sample(np.arange(20), SamplingParams(max_tokens=9))
    # New weights arrive on the trainer's layout: one device.
    await asyncio.to_thread(running.load_params, params, 1)
    return first, await client.sample(np.arange(5), SamplingParams(max_tokens=9))
  for s in asyncio.run(work()):
    out.append([s.token_ids.tolist(), s.logprobs.tolist(), s.policy_version])
  running.stop()
print(json.dumps(out))
"""


@pytest.mark.slow
def test_two_devices_agree_with_one():
  done = subprocess.run(
    [sys.executable, '-c', SCRIPT], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr[-2000:]
  first, second, first_2, second_2 = json.loads(done.stdout.splitlines()[-1])
  for one, two in ((first, first_2), (second, second_2)):
    assert one[0] == two[0] and one[2] == two[2]
    assert one[1] == pytest.approx(two[1], abs=1e-4)
