"""The same rollouts on a Ray cluster of two nodes on this machine.

Real nodes (a raylet and its workers each), real sandboxes on them, the engine
on this side. A node is killed in the middle of a step: no group is lost, nothing
is trained twice.
"""

import asyncio
import contextlib
import dataclasses
import socket
import time

import httpx
import numpy as np
import pytest

from clawjax import errors, harness, sandbox, types
from clawjax.chat import tokenizers
from clawjax.rollout import door, fleet, ray_runner, straggler, worker
from clawjax.serving import http_client
from clawjax.train import harvest
from clawjax.trie import FilterConfig, PackConfig

WRITE = (
  '<tool_call>\n{"name": "bash", "arguments": {"command": '
  '"printf hi > out.txt; sleep %s"}}\n</tool_call>'
)


class Policy:
  """Writes the file at the first call, is done at the second."""

  window = 4096
  policy_version = 3

  def __init__(self, sleep_s=0.0):
    self.tokenizer = tokenizers.load('tiny')
    self.sleep_s = sleep_s
    self.asked = []

  async def sample(self, prompt_ids, params, *, session_id, call_index):
    self.asked.append((session_id, call_index))
    sleep_s = self.sleep_s(session_id) if callable(self.sleep_s) else 0
    text = WRITE % sleep_s if call_index == 0 else 'Done.'
    ids = [*self.tokenizer.encode_markup(text), self.tokenizer.im_end]
    return types.Sample(
      np.asarray(ids, np.int32),
      np.full(len(ids), -0.5, np.float32),
      'stop',
      policy_version=self.policy_version,
    )

  async def close(self):
    pass


def request(task, name, size):
  loop = harness.load('agent_loop', tools=('bash',))
  task = dataclasses.replace(task, id=name)
  return fleet.GroupRequest(task, loop, size, f'train/1/{name}/agent_loop')


async def test_the_engines_door():
  """What a client samples is what the door gives, for those with the token."""
  policy = Policy()
  async with door.serve_client(policy, host='127.0.0.1', token='t') as url:
    http = httpx.AsyncClient(
      headers={'authorization': 'Bearer t'}, trust_env=False
    )
    client = await http_client.HttpClient.connect([url], http=http)
    assert (client.window, client.policy_version) == (4096, 3)
    params = types.SamplingParams(seed=5)
    sample = await client.sample(
      np.arange(4, dtype=np.int32), params, session_id='s', call_index=1
    )
    again = await policy.sample(None, params, session_id='s', call_index=1)
    assert sample.token_ids.tolist() == again.token_ids.tolist()
    assert policy.asked == [('s', 1)] * 2
    await client.close()
    for headers in ({}, {'authorization': 'Bearer x'}):
      async with httpx.AsyncClient(headers=headers, trust_env=False) as other:
        for path in ('/health', '/v1/sample'):
          assert (await other.post(url + path)).status_code == 403
    assert len(policy.asked) == 2


@pytest.fixture
def spec():
  return worker.WorkerSpec(
    tokenizer='tiny', harnesses=(harness.load('agent_loop', tools=('bash',)),)
  )


@pytest.fixture
async def bwrap_works():
  backend = sandbox.load('bwrap')
  probe = await backend.probe()
  await backend.close()
  if not probe.ok:
    pytest.skip(probe.text)


async def test_a_worker_alone(task, spec, bwrap_works, tmp_path):
  """All that a node does, in this process and without Ray."""
  policy = Policy()
  async with door.serve_client(policy, host='127.0.0.1', token='t') as url:
    one = worker.Worker(
      dataclasses.replace(spec, engine_url=url, engine_token='t')
    )
    facts = await one.start()
    assert facts.probe.ok and facts.memory_bytes > 0
    group = request(task, 'a', 1)
    job = fleet.Job(
      group.task, group.harness, 'r/0', 0, fleet.run.RolloutLimits(), 'b'
    )
    rollout, printed = await one.run(job)
    await one.stop()
  assert (rollout.outcome, rollout.reward) == ('ok', 1.0)
  assert [c.index for c in rollout.calls] == [0, 1]
  assert all(c.sample.policy_version == 3 for c in rollout.calls)
  assert b'Done.' in printed


async def test_a_worker_says_what_is_missing(spec):
  lacking = dataclasses.replace(
    spec, backend='fake', harnesses=(harness.load('template', name='no',
    dialect='chat', argv=('x',), fixed_version='7',
    readonly=(('/no/such', '/opt/no'),)),)
  )  # fmt: skip
  with pytest.raises(errors.HarnessError, match='no 7 is not installed'):
    await worker.Worker(lacking).start()


async def test_no_cluster_is_one_line(spec, monkeypatch, tmp_path):
  pytest.importorskip('ray', reason='no ray here: pip install clawjax[ray]')
  monkeypatch.delenv('RAY_ADDRESS', raising=False)
  monkeypatch.setenv('RAY_TMPDIR', str(tmp_path))  # where 'auto' looks
  runner = ray_runner.RayRunner(spec, Policy())
  with pytest.raises(errors.ConfigError, match='ray start --head'):
    await runner.start()


STORE = 80 * 2**20
# A raylet aborts when its dashboard agent, which nothing here needs, has not
# written its port within 20 s; on a busy machine its imports alone take 40 s.
# Ray has no option that leaves it out, so what stands in for it here only ends
# with the raylet, and the port that Ray does not pass on is passed on.
RAYLET = """\
#!/bin/sh
for a; do
  shift
  case "$a" in
    --dashboard_agent_command=*)
      port=${a#*--listen-port=} a=--dashboard_agent_command=/bin/cat;;
  esac
  set -- "$@" "$a"
done
exec PROGRAM --dashboard_agent_listen_port="${port%% *}" "$@"
"""


def node_options():
  """Small; with ports of its own, else it waits 20 s at most for helpers."""
  helpers = (
    'metrics_agent',
    'metrics_export',
    'runtime_env_agent',
    'dashboard_agent_listen',
  )
  with contextlib.ExitStack() as stack:
    sockets = [
      stack.enter_context(socket.create_server(('127.0.0.1', 0)))
      for _ in helpers
    ]
    ports = [s.getsockname()[1] for s in sockets]
  named = zip(helpers, ports, strict=True)
  return {f'{name}_port': port for name, port in named} | {
    'object_store_memory': STORE
  }


def add_node(cluster):
  return cluster.add_node(
    num_cpus=1, resources={'rollout': 1}, **node_options()
  )


@pytest.fixture
def cluster(monkeypatch, tmp_path):
  """A head without work, and two nodes with the resource 'rollout'."""
  pytest.importorskip('ray', reason='no ray here: pip install clawjax[ray]')
  from ray import cluster_utils
  from ray._private import services

  raylet = tmp_path / 'raylet'
  raylet.write_text(RAYLET.replace('PROGRAM', services.RAYLET_EXECUTABLE))
  raylet.chmod(0o755)
  monkeypatch.setattr(services, 'RAYLET_EXECUTABLE', str(raylet))
  monkeypatch.setenv('RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO', '0')
  monkeypatch.setenv('RAY_USAGE_STATS_ENABLED', '0')
  # Nodes of a busy machine are slow, not dead; one that was killed refuses
  # connections, which is seen at once.
  monkeypatch.setenv('RAY_gcs_server_request_timeout_seconds', '300')
  monkeypatch.setenv('RAY_health_check_timeout_ms', '60000')
  monkeypatch.setenv('RAY_agent_register_timeout_ms', '300000')
  made = cluster_utils.Cluster(
    initialize_head=True,
    head_node_args={
      'num_cpus': 0,
      'include_dashboard': False,
      **node_options(),
    },
  )
  made.nodes_of_rollouts = [add_node(made) for _ in range(2)]
  made.wait_for_nodes()
  yield made
  import ray

  ray.shutdown()
  made.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')  # Ray's own
async def test_a_node_killed_in_the_middle_of_a_step(
  task, spec, cluster, bwrap_works, tmp_path
):
  hold = {'on': True}
  policy = Policy(lambda session: 20 if hold['on'] else 0)
  runner = ray_runner.RayRunner(
    spec,
    policy,
    ray_runner.RayConfig(
      address=cluster.address, resource='rollout', slots=4, poll_s=0.5
    ),
    out_dir=tmp_path,
  )
  await runner.start()
  try:
    await lose_a_node(task, cluster, runner, policy, hold, tmp_path)
  finally:
    await runner.stop()
  import ray

  assert not ray.is_initialized()


async def lose_a_node(task, cluster, runner, policy, hold, tmp_path):
  """Two steps; in the first a node dies and another joins."""
  assert len(runner.hosts.all) == 2
  a_fleet = fleet.Fleet(runner)
  seen = []
  requests = [request(task, name, 4) for name in ('a', 'b')]
  groups = []

  async def step():
    async for group in a_fleet.run_groups(
      requests, concurrency=8, on_rollout=seen.append
    ):
      groups.append(group)

  job = asyncio.ensure_future(step())
  # All eight have got their first answer and sit in `sleep 20`.
  end = time.monotonic() + 120
  while len(policy.asked) < 8:
    assert time.monotonic() < end and not job.done()
    await asyncio.sleep(0.1)
  hold['on'] = False
  [victim, _] = runner.hosts.all
  [node] = [n for n in cluster.nodes_of_rollouts if n.node_id == victim.name]
  await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
  # A new node joins and is used.
  fresh = add_node(cluster)  # it wants the main thread
  await asyncio.wait_for(job, 180)

  assert sorted(g[0].task_id for g in groups) == ['a', 'b']
  final = [r for g in groups for r in g]
  for group in groups:
    assert [r.index for r in group] == [0, 1, 2, 3]
    assert all(r.outcome == 'ok' and r.reward == 1.0 for r in group)
  lost = [r for r in seen if r.extra.get('lost')]
  assert len(lost) == 4 == a_fleet.counts['lost']
  assert all(r.reward is None and not r.calls for r in lost)
  assert victim.name not in {r.extra['host'] for r in final}
  # Nothing is trained twice: eight rollouts, each call and each token once.
  assert len(seen) == 12 == len({r.rollout_id for r in seen})
  calls = [(c.rollout_id, c.call_id) for r in final for c in r.calls]
  assert len(calls) == 16 == len(set(calls))
  chunk = harvest.gather(
    [r for g in groups for r in g],
    filter_config=FilterConfig(),
    pack_config=PackConfig(row_tokens=4096),
  )
  assert len(chunk.rollouts) == 8 == len(set(chunk.batch.rollout_ids))
  sampled = sum(len(c.sample.token_ids) for r in final for c in r.calls)
  assert chunk.batch.stats['terms'] == sampled
  # What the harness printed has come over.
  for r in final:
    assert b'Done.' in (tmp_path / r.telemetry).read_bytes()

  # The next step starts clean, on the new node too; stragglers are cut there.
  end = time.monotonic() + 60
  while len(runner.hosts.all) < 2:
    assert time.monotonic() < end
    await asyncio.sleep(0.2)
  assert fresh.node_id in {h.name for h in runner.hosts.all}
  policy.sleep_s = lambda session: 60 if session.endswith('/7') else 0
  a_fleet.straggler = straggler.StragglerConfig('quantile', quantile=0.8)
  [group] = [
    g async for g in a_fleet.run_groups([request(task, 'c', 8)], concurrency=8)
  ]
  assert [r.outcome for r in group] == ['ok'] * 7 + ['timeout']
  assert {r.extra['host'] for r in group} == {h.name for h in runner.hosts.all}
  # Workers need no jax.
  for host in runner.hosts.all:
    actor = runner._actors[host.name]
    assert 'jax' not in await ray_runner._result(actor.loaded.remote())
