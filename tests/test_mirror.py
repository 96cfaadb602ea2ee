"""A run folder and its copy at an address: what is there comes back."""

import fsspec
import pytest

from clawjax import errors
from clawjax.experiment import folder
from tests.gcs import gcs

assert gcs


@pytest.fixture(params=['memory', pytest.param('gcs', marks=pytest.mark.slow)])
def place(request, tmp_path):
  """An address that nothing is at yet."""
  if request.param == 'gcs':
    yield f'{request.getfixturevalue("gcs")}/runs/one'
    return
  address = f'memory://{tmp_path.name}/runs/one'
  yield address
  files = fsspec.filesystem('memory')
  if files.exists(f'/{tmp_path.name}'):
    files.rm(f'/{tmp_path.name}', recursive=True)


HERE = {
  'config.json': b'{}',
  'metrics.jsonl': b'{"step": 0}\n',
  'rollouts/train/0/a.json': '"\u00fc"'.encode(),
  'empty.txt': b'',
}
NOT_SENT = {
  '.lock': b'',
  'checkpoints/0/state': b'large',
  'proxy/sessions/x.jsonl': b'of this host',
}


def fill(path, files):
  for name, content in files.items():
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(content)


def content(path):
  return {
    str(p.relative_to(path)): p.read_bytes()
    for p in path.rglob('*')
    if p.is_file()
  }


def sent(mirror, monkeypatch):
  """Names that the next pushes send, as they go."""
  names = []
  put = mirror._there.put_file

  def counting(source, to, **options):
    names.append(to.partition('runs/one/')[2])
    return put(source, to, **options)

  monkeypatch.setattr(mirror._there, 'put_file', counting)
  return names


@pytest.fixture
def run(tmp_path):
  path = tmp_path / 'run'
  path.mkdir()
  fill(path, HERE | NOT_SENT)
  return path


def test_what_was_pushed_comes_back(place, run, tmp_path):
  mirror = folder.Mirror(run, place)
  assert not mirror.pull()  # Nothing is there.
  mirror.push()
  other = tmp_path / 'other'
  other.mkdir()
  back = folder.Mirror(other, place + '/')
  assert back.pull()
  assert content(other) == HERE
  assert not back.pull()  # The run is here: nothing is overwritten.


def test_only_what_changed_is_sent(place, run, tmp_path, monkeypatch):
  mirror = folder.Mirror(run, place)
  names = sent(mirror, monkeypatch)
  mirror.push()
  assert sorted(names) == sorted(HERE)
  names.clear()
  mirror.push()
  assert names == []
  with (run / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 1}\n')
  fill(run, {'report.html': b'<p>'})
  mirror.push()
  assert sorted(names) == ['metrics.jsonl', 'report.html']
  # What was brought here need not be sent back, and no older file wins.
  other = tmp_path / 'other'
  other.mkdir()
  back = folder.Mirror(other, place)
  assert back.pull()
  names = sent(back, monkeypatch)
  back.push()
  assert names == []
  assert (other / 'metrics.jsonl').read_bytes().count(b'step') == 2


def test_a_run_that_is_here_stays_as_it_is(place, run, tmp_path):
  folder.Mirror(run, place).push()
  other = tmp_path / 'other'
  fill(other, {'config.json': b'{"mine": 1}'})
  assert not folder.Mirror(other, place).pull()
  assert content(other) == {'config.json': b'{"mine": 1}'}


def test_a_failure_to_write_says_where_the_run_is(place, run, monkeypatch):
  mirror = folder.Mirror(run, place)
  put, fail = mirror._there.put_file, True

  def flaky(source, to, **options):
    if fail and to.endswith('metrics.jsonl'):
      raise OSError('the line is down')
    return put(source, to, **options)

  monkeypatch.setattr(mirror._there, 'put_file', flaky)
  with pytest.raises(errors.ConfigError, match='the line is down') as caught:
    mirror.push()
  assert str(run) in str(caught.value) and place in str(caught.value)
  fail = False
  mirror.push()
  names = mirror._there.find(mirror._root)
  assert len(names) == len(HERE)


def test_addresses(place, run):
  mirror = folder.Mirror(run, place + '/')
  assert mirror.address('checkpoints') == f'{place}/checkpoints'
  with pytest.raises(errors.ConfigError, match='nonsense://x'):
    folder.Mirror(run, 'nonsense://x')


def test_a_pull_cut_short_is_done_again(run, tmp_path, monkeypatch):
  """The config comes last, since its presence means that all of it is here."""
  address = f'memory://{tmp_path.name}/cut'
  folder.Mirror(run, address).push()
  other = tmp_path / 'other'
  other.mkdir()
  cut = folder.Mirror(other, address)
  get, left = cut._there.get_file, [3]

  def breaking(*arguments, **options):
    left[0] -= 1
    if left[0] < 0:
      raise OSError('the network is gone')
    return get(*arguments, **options)

  with monkeypatch.context() as patch:
    patch.setattr(cut._there, 'get_file', breaking)
    with pytest.raises(OSError, match='network'):
      cut.pull()
  assert folder.Mirror(other, address).pull()
  assert content(other) == HERE
