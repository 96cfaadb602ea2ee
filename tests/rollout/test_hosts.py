"""Places for rollouts: memory, order, hosts that come and go."""

import asyncio

import pytest

from clawjax.errors import SandboxError
from clawjax.rollout import hosts as hosts_lib
from clawjax.sandbox import cgroups

MIB = hosts_lib.MIB


async def take(hosts, need, order=()):
  return await asyncio.wait_for(hosts.acquire(need, order), 1)


async def waiting(hosts, need, order=()):
  """A request that is in the line and not served."""
  job = asyncio.ensure_future(hosts.acquire(need, order))
  await asyncio.sleep(0.01)
  assert not job.done()
  return job


async def test_memory_bounds_what_runs():
  host = hosts_lib.Host('a', memory_bytes=100)
  hosts = hosts_lib.Hosts([host], concurrency=99)
  for _ in range(3):
    assert await take(hosts, 30) is host
  fourth = await waiting(hosts, 30)  # 3 * 30 are in use, 10 are left
  hosts.release(host, 30)
  assert await fourth is host
  assert (host.live, host.used_bytes) == (3, 90)


async def test_larger_than_a_host_runs_alone():
  host = hosts_lib.Host('a', memory_bytes=100)
  hosts = hosts_lib.Hosts([host], concurrency=99)
  assert await take(hosts, 500) is host
  job = await waiting(hosts, 1)
  hosts.release(host, 500)
  assert await job is host


async def test_first_in_line_is_not_passed_by_a_smaller_one():
  host = hosts_lib.Host('a', memory_bytes=100)
  hosts = hosts_lib.Hosts([host], concurrency=99)
  await take(hosts, 80)
  small = await waiting(hosts, 30, (2,))
  large = await waiting(hosts, 90, (1,))  # came later, goes first
  hosts.release(host, 80)
  assert await large is host and not small.done()
  hosts.release(host, 90)
  assert await small is host


async def test_the_freest_host_is_taken_and_slots_hold():
  a = hosts_lib.Host('a', memory_bytes=100, slots=2)
  b = hosts_lib.Host('b', memory_bytes=400)
  hosts = hosts_lib.Hosts([a, b], concurrency=5)
  # Shares in use after each: a .5; b .125, .25, .375; then a is full at two.
  got = [(await take(hosts, 50)).name for _ in range(5)]
  assert sorted(got) == ['a', 'b', 'b', 'b', 'b']
  sixth = await waiting(hosts, 1)  # concurrency over all hosts
  hosts.release(a, 50)
  assert (await sixth).name == 'a'


async def test_who_stops_waiting_leaves_no_trace():
  host = hosts_lib.Host('a', memory_bytes=100)
  hosts = hosts_lib.Hosts([host], concurrency=1)
  await take(hosts, 10)
  gone = await waiting(hosts, 10)
  gone.cancel()
  with pytest.raises(asyncio.CancelledError):
    await gone
  hosts.release(host, 10)
  assert (host.live, host.used_bytes) == (0, 0)
  assert await take(hosts, 10) is host


async def test_a_new_host_serves_the_line_and_none_at_all_is_an_error():
  hosts = hosts_lib.Hosts(patience_s=0.05)
  with pytest.raises(SandboxError, match='no host for rollouts'):
    await hosts.acquire(1)
  hosts.patience_s = 5
  job = await waiting(hosts, 1)
  hosts.add(hosts_lib.Host('late'))
  assert (await job).name == 'late'


def test_footprints_start_with_a_guess_and_follow_what_is_seen():
  known = hosts_lib.Footprints(limit_bytes=1000 * MIB)
  assert known.expected('codex_trimmed') == known.expected('codex')
  assert known.expected('openclaw') == 1000 * MIB  # never more than allowed
  assert known.expected('pi') < known.expected('claude_code_bare')
  known.add('pi', 400 * MIB)
  assert known.expected('pi') == int(400 * 1.15 * MIB)
  known.add('pi', 100 * MIB)  # fades: 0.9 * 400
  assert known.expected('pi') == int(360 * 1.15 * MIB)
  known.add('pi', None)  # unknown is not zero
  assert known.expected('pi') == int(360 * 1.15 * MIB)


def test_memory_of_surrounding_groups(tmp_path, monkeypatch):
  """Version 2 by hand: 100 of 300 used below, 350 of 400 above."""
  (tmp_path / 'cgroup.controllers').touch()
  inner = tmp_path / 'up' / 'in'
  inner.mkdir(parents=True)
  for folder, limit, used in ((inner, 300, 100), (inner.parent, 400, 350)):
    (folder / 'memory.max').write_text(f'{limit}\n')
    (folder / 'memory.current').write_text(f'{used}\n')
  monkeypatch.setattr(cgroups, '_own', lambda lines: {'': '/up/in'})
  assert cgroups.free_memory(tmp_path) == [200, 50]
  (inner / 'memory.max').write_text('max\n')  # no limit of its own
  assert cgroups.free_memory(tmp_path) == [50]
  assert 0 < hosts_lib.available_bytes() < 1 << 50
