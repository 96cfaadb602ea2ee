"""ArrayRecord data sets: what goes in comes out, by number and in order."""

import json
import math
import struct

import fsspec
import numpy as np
import pytest

from clawjax import errors, types
from clawjax.tasks import dataset, records, synth


def rollout(number, reward=0.5, outcome='ok'):
  sample = types.Sample(
    np.array([number, 2], np.int32), np.array([-0.5, -1], np.float32), 'stop'
  )
  call = types.Call('c0', f'r/{number}', 0, np.array([1], np.int32), sample)
  return types.Rollout(
    f'r/{number}', f't/{number}', 'pi', calls=(call,), reward=reward,
    outcome=outcome,
  )  # fmt: skip


TASK = types.Task(
  't/1',
  ('one', 'tw\u00f6'),
  {'a.txt': b'x\n', 'b.bin': b'\xff\x00'},
  types.Verifier({'c.py': b'1'}, ('python3', 'c.py'), 'float_line', 7.0),
  9.0,
  {'domain': 'd', 'readonly': [['a', 'b']]},
)


def test_tasks_and_rollouts_survive_a_record():
  assert records.decode(records.encode(TASK), 'tasks') == TASK
  bare = types.Task('t/2', ('x',))
  assert records.decode(records.encode(bare), 'tasks') == bare
  one = rollout(3, reward=0.1)
  back = records.decode(records.encode(one), 'rollouts')
  assert types.to_json(back) == types.to_json(one)
  fields = records.fields(records.encode(one))
  assert fields['id'] == b'r/3' and fields['harness'] == b'pi'
  # A float32 is kept beside the exact number in `json`.
  assert fields['reward'] == struct.unpack('<f', struct.pack('<f', 0.1))[0]
  lost = records.fields(records.encode(rollout(1, None, 'infra_error')))
  assert math.isnan(lost['reward'])


def test_the_wire_format_by_hand():
  """A record of one byte field, as the protocol buffer specification has it."""
  # Example{features: {feature: [{key: 'a', value: {bytes_list: ['x']}}]}}:
  # tag 0x0a = field 1, type 2; 0x12 = field 2, type 2; each with its length.
  entry = b'\x0a\x01a' + b'\x12\x05' + b'\x0a\x03' + b'\x0a\x01x'
  record = b'\x0a\x0c' + b'\x0a\x0a' + entry
  assert records.fields(record) == {'a': b'x'}
  for bad in (record[:-1], b'\x08\x01', b'\x0a'):
    with pytest.raises(ValueError, match='record of ours'):
      records.fields(bad)


@pytest.fixture
def array_record():
  pytest.importorskip('array_record')


@pytest.fixture
def folder(array_record, tmp_path):
  rollouts = [rollout(n, reward=n / 10) for n in range(10)]
  lost = rollout(10, None, 'infra_error')
  facts = {'tokenizer': 'tiny'}
  count = dataset.write(
    tmp_path / 'set', [*rollouts, lost], shards=3, facts=facts
  )
  assert count == 11
  return tmp_path / 'set'


def test_items_by_number(folder):
  source = dataset.open(folder)
  assert (source.kind, len(source)) == ('rollouts', 11)
  assert source.facts == {'tokenizer': 'tiny'}
  assert [source[i].rollout_id for i in (0, 1, 2, 3, 10, -1)] == [
    *('r/0', 'r/1', 'r/2', 'r/3', 'r/10', 'r/10')
  ]
  assert [r.rollout_id for r in source[2:6:2]] == ['r/2', 'r/4']
  with pytest.raises(IndexError):
    source[11]
  good = source.where(lambda f: f['reward'] >= 0.75)
  # NaN, the unknown one, is not at least 0.75.
  assert [r.rollout_id for r in good] == ['r/8', 'r/9']
  names = sorted(p.name for p in folder.glob('*array_record*'))
  assert names[0] == 'set_set-train.array_record-00000-of-00003'


def test_an_interrupted_write_leaves_no_set(array_record, tmp_path):
  def failing():
    yield TASK
    raise OSError('the disk is full')

  with pytest.raises(OSError):
    dataset.write(tmp_path / 'set', failing())
  assert not (tmp_path / 'set').exists()
  with pytest.raises(errors.TaskError, match='both'):
    dataset.write(tmp_path / 'set', [TASK, rollout(1)])
  with pytest.raises(errors.TaskError, match='at least one task'):
    dataset.write(tmp_path / 'set', [])
  dataset.write(tmp_path / 'set', [TASK])
  with pytest.raises(errors.TaskError, match='nothing is overwritten'):
    dataset.write(tmp_path / 'set', [TASK])
  with pytest.raises(errors.TaskError, match='wanted a data set'):
    dataset.open(tmp_path)


def test_over_a_url(array_record, tmp_path):
  """Any fsspec file system: gs:// in use, memory:// here."""
  dataset.write('memory://bucket/set', [TASK], facts={'a': 1})
  assert dataset.is_set('memory://bucket/set')
  assert not dataset.is_set('memory://bucket')
  source = dataset.open('memory://bucket/set', cache_dir=tmp_path)
  assert source[0] == TASK and source.facts == {'a': 1}
  with pytest.raises(errors.TaskError, match='overwritten'):
    dataset.write('memory://bucket/set', [TASK])
  with pytest.raises(errors.TaskError, match='no data set there'):
    dataset.open('memory://nowhere', cache_dir=tmp_path)
  # A write that was cut short left no set, and does not stand in the way.
  fsspec.filesystem('memory').rm(f'/bucket/set/{dataset.FACTS}')
  assert dataset.write('memory://bucket/set', [TASK, TASK]) == 2
  assert len(dataset.open('memory://bucket/set', cache_dir=tmp_path)) == 2


def test_a_loader_goes_on_in_the_middle_of_an_epoch(folder):
  pytest.importorskip('grain')
  source = dataset.open(folder)

  def ids(batch):
    return [r.rollout_id for r in batch]

  whole = dataset.loader(source, seed=7, batch=4)
  batches, states = [], []
  for _ in range(9):
    states.append(json.loads(json.dumps(whole.get_state())))
    batches.append(ids(next(whole)))
  flat = [i for batch in batches for i in batch]
  everything = sorted(r.rollout_id for r in source)
  # Each epoch is all of it, and no two epochs have one order.
  assert sorted(flat[:11]) == sorted(flat[11:22]) == everything
  assert flat[:11] != flat[11:22] and flat[:11] != everything
  for start in (1, 3, 6):
    again = dataset.loader(source, seed=7, batch=4)
    again.set_state(states[start])
    assert [ids(next(again)) for _ in batches[start:]] == batches[start:]
  other = dataset.loader(source, seed=8, batch=4)
  assert ids(next(other)) != batches[0]


def test_hosts_share_an_epoch(folder):
  pytest.importorskip('grain')
  source = dataset.open(folder)
  parts = [
    [
      r.rollout_id
      for batch in dataset.loader(
        source, seed=1, batch=1, epochs=1, shard=(host, 2)
      )
      for r in batch
    ]
    for host in (0, 1)
  ]
  assert len(parts[0]) == 6 and len(parts[1]) == 5
  assert sorted(parts[0] + parts[1]) == sorted(r.rollout_id for r in source)


def test_the_command_and_the_format(array_record, tmp_path, capsys):
  from clawjax.tasks import formats
  from clawjax.tasks.formats import native

  tasks = synth.tasks('train', count=3)
  for number, task in enumerate(tasks):
    native.write(task, tmp_path / 'native' / f'{number}', harbor=False)
  out = str(tmp_path / 'set')
  assert dataset.main([out, '--tasks', str(tmp_path / 'native')]) == 0
  assert '3 written' in capsys.readouterr().out
  report = formats.load(out, 'arrayrecord')
  assert [t.id for t in report.tasks] == [t.id for t in tasks]
  assert report.tasks[0].files == tasks[0].files
  assert report.tasks[0].verifier == tasks[0].verifier
  assert dataset.main([out, '--tasks', str(tmp_path / 'native')]) == 2
  assert 'overwritten' in capsys.readouterr().err


def test_rollouts_of_a_run(tmp_path):
  def put(path, item):
    path = tmp_path / 'run' / 'rollouts' / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(types.dumps(item))

  put('train/00001/a.json', rollout(1, 1.0))
  put('train/00002/b.json', rollout(2, 0.2))
  put('train/00002/c.json', rollout(3, None, 'infra_error'))
  put('eval/00002/d.json', rollout(4, 1.0))
  (tmp_path / 'run/rollouts/train/00001/torn.json').write_text('{"rollout_i')
  (tmp_path / 'run' / 'config.json').write_text('{"tokenizer": "tiny"}')

  def ids(folder, least=None):
    found = dataset.rollouts_below(tmp_path / folder, least_reward=least)
    return [r.rollout_id for r in found]

  # Not those of the evaluation, unless they are asked for.
  assert ids('run') == ['r/1', 'r/2']
  assert ids('run', 0.5) == ['r/1']
  assert ids('run/rollouts/eval') == ['r/4']
  assert dataset.tokenizer_of(tmp_path / 'run') == 'tiny'
  assert dataset.tokenizer_of(tmp_path / 'run/rollouts/train') == 'tiny'
