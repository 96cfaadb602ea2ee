"""Task sets and captured trajectories as ArrayRecord data sets.

  write(path, items)        tasks or rollouts -> a folder of shards
  open(path) -> Source      random access, item by item, nothing held in memory
  loader(source, ...)       a `grain` iterator: shuffled, batched, and resumed
                            in the middle of an epoch from its state

  python -m clawjax.tasks.dataset OUT --tasks PATH --format NAME
  python -m clawjax.tasks.dataset OUT --run FOLDER [--least-reward 0.5]

The folder is one that `tensorflow-datasets` reads too (`builder_from_directory`,
`as_data_source`; see `records` for what is in it). Paths may be URLs of fsspec
(gs://): shards are written here and sent, fetched once and read here. Needs the
extra `data` (array_record, grain).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.tasks import records

FACTS = 'clawjax.json'
VERSION = '1.0.0'
_SPLIT = 'train'

# ---- writing ---------------------------------------------------------------


def write(
  path: str | os.PathLike[str],
  items: Iterable[records.Item],
  *,
  shards: int = 1,
  facts: Mapping[str, Any] | None = None,
) -> int:
  """Writes a data set; returns the number of items.

  Args:
    path: folder or URL; must not exist yet. It is there once it is whole.
    items: tasks or rollouts, not both.
    shards: files to deal the items out to.
    facts: JSON values kept with it (tokenizer, where it came from).

  Raises:
    TaskError: it exists, there is no item, or `array_record` is missing.
  """
  if shards < 1:
    raise errors.TaskError(f'wanted at least one shard, got {shards}')
  target = os.fspath(path).removeprefix('file://')
  files = _files_at(target)
  # At a URL, shards without facts are what an interrupted write has left.
  if files.exists(target) if _is_local(target) else is_set(target):
    raise errors.TaskError(f'{target}: exists already; nothing is overwritten')
  with tempfile.TemporaryDirectory(prefix='clawjax-records-') as folder:
    place = pathlib.Path(folder) / 'set'
    place.mkdir()
    name = re.sub(r'\W+', '_', target.rstrip('/').rsplit('/', 1)[-1]).lower()
    count = _write_here(place, items, shards, f'set_{name}', facts or {})
    if _is_local(target):
      pathlib.Path(target).absolute().parent.mkdir(parents=True, exist_ok=True)
      partial = f'{target.rstrip("/")}.partial'
      shutil.rmtree(partial, ignore_errors=True)
      shutil.copytree(place, partial)
      os.rename(partial, target)
    else:
      # The facts go last: a set without them is not whole.
      for file in sorted(place.iterdir(), key=lambda f: f.name == FACTS):
        files.put_file(str(file), f'{target.rstrip("/")}/{file.name}')
  return count


def _write_here(
  place: pathlib.Path,
  items: Iterable[records.Item],
  shards: int,
  name: str,
  facts: Mapping[str, Any],
) -> int:
  module = _array_record()
  paths = [
    place / f'{name}-{_SPLIT}.array_record-{i:05d}-of-{shards:05d}'
    for i in range(shards)
  ]
  # One record a group: items are read one by one, in any order.
  writers = [module.ArrayRecordWriter(str(p), 'group_size:1') for p in paths]
  state, kind, count, sizes = hashlib.blake2b(digest_size=16), '', 0, 0
  lengths = [0] * shards
  try:
    for item in items:
      own = 'tasks' if isinstance(item, types.Task) else 'rollouts'
      if kind and own != kind:
        raise errors.TaskError('wanted tasks or rollouts, got both')
      kind = own
      record = records.encode(item)
      state.update(len(record).to_bytes(8, 'little') + record)
      writers[count % shards].write(record)
      lengths[count % shards] += 1
      count, sizes = count + 1, sizes + len(record)
  finally:
    for writer in writers:
      writer.close()
  if not count:
    raise errors.TaskError('wanted at least one task or rollout to write')
  known = {
    'kind': kind,
    'count': count,
    'digest': state.hexdigest(),
    'shards': [p.name for p in paths],
    'facts': dict(facts),
  }
  (place / FACTS).write_text(json.dumps(known, indent=1) + '\n')
  info, features = _tfds(name, kind, lengths, sizes)  # type: ignore[arg-type]
  (place / 'dataset_info.json').write_text(json.dumps(info, indent=1) + '\n')
  (place / 'features.json').write_text(json.dumps(features, indent=1) + '\n')
  return count


def _tfds(
  name: str, kind: records.Kind, lengths: Sequence[int], size: int
) -> tuple[dict[str, Any], dict[str, Any]]:
  """What `tensorflow-datasets` wants to know of a folder."""
  features = {}
  for field in records.FIELDS[kind]:
    if field in records.NUMBERS:
      features[field] = {
        'pythonClassName': 'tensorflow_datasets.core.features.scalar.Scalar',
        'tensor': {'shape': {}, 'dtype': 'float32', 'encoding': 'none'},
      }
    else:
      features[field] = {
        'pythonClassName': 'tensorflow_datasets.core.features.text_feature.Text',
        'text': {},
      }
  info = {
    'name': name,
    'version': VERSION,
    'description': f'{kind} of clawjax',
    'fileFormat': 'array_record',
    'releaseNotes': {VERSION: 'As written.'},
    'splits': [
      {
        'name': _SPLIT,
        'filepathTemplate': '{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}',
        'shardLengths': [str(n) for n in lengths],
        'numBytes': str(size),
      }
    ],
  }
  return info, {
    'pythonClassName': 'tensorflow_datasets.core.features.features_dict.FeaturesDict',
    'featuresDict': {'features': features},
  }


# ---- reading ---------------------------------------------------------------


class Source(Sequence):
  """Items of a data set, by number; what `grain` calls a data source.

  Attributes:
    kind: 'tasks' or 'rollouts'.
    facts: what was kept with it.
    digest: over all records.
  """

  def __init__(self, folder: pathlib.Path, index: Sequence[int] | None = None):
    try:
      known = json.loads((folder / FACTS).read_text())
      self.kind: records.Kind = known['kind']
      self.digest, self.facts = known['digest'], known['facts']
      self._paths = [str(folder / name) for name in known['shards']]
      count = known['count']
    except (OSError, ValueError, KeyError, TypeError) as error:
      raise errors.TaskError(
        f'{folder}: wanted a data set as `clawjax.tasks.dataset` writes it: '
        f'{error}'
      ) from None
    self._folder = folder
    self._index = range(count) if index is None else index
    self._readers: list[Any] | None = None

  def __len__(self) -> int:
    return len(self._index)

  def __repr__(self) -> str:  # part of grain's checkpoints
    return f'Source({self.digest}, {len(self)} {self.kind})'

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_readers': None}

  def record(self, number: int) -> bytes:
    """The bytes of item `number`."""
    if self._readers is None:
      module = _array_record()
      self._readers = [module.ArrayRecordReader(p) for p in self._paths]
    if not -len(self) <= number < len(self):
      raise IndexError(f'item {number} of {len(self)}')
    place = self._index[number]
    shard, row = place % len(self._paths), place // len(self._paths)
    (record,) = self._readers[shard].read([row])
    return record

  def __getitem__(self, number: Any) -> Any:
    if isinstance(number, slice):
      return Source(self._folder, self._index[number])
    return records.decode(self.record(int(number)), self.kind)

  def fields(self, number: int) -> dict[str, bytes | float]:
    """What one filters by, without decoding the item."""
    return records.fields(self.record(number))

  def where(self, keep: Any) -> Source:
    """The items whose `fields` pass `keep`."""
    chosen = [self._index[i] for i in range(len(self)) if keep(self.fields(i))]
    return Source(self._folder, chosen)


def open(
  path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] = ''
) -> Source:
  """Opens a data set; see `fetch`.

  Raises:
    TaskError: there is none.
  """
  return Source(fetch(path, cache_dir=cache_dir))


def fetch(
  path: str | os.PathLike[str], *, cache_dir: str | os.PathLike[str] = ''
) -> pathlib.Path:
  """The folder of a data set; that of a URL is brought here, once.

  Args:
    path: folder or URL.
    cache_dir: where the shards of a URL are kept; default: below the user's
      cache folder.

  Raises:
    TaskError: there is no data set at a URL.
  """
  target = os.fspath(path).removeprefix('file://')
  if _is_local(target):
    return pathlib.Path(target).expanduser()
  files, root = _files_at(target), target.rstrip('/')
  try:
    known = json.loads(files.cat_file(f'{root}/{FACTS}'))
    names = [*known['shards'], FACTS]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.TaskError(f'{target}: no data set there: {error}') from None
  home = pathlib.Path(cache_dir or '~/.cache/clawjax/records').expanduser()
  folder = home / known['digest']
  folder.mkdir(parents=True, exist_ok=True)
  for name in names:
    if not (folder / name).exists():
      partial = folder / f'.{name}.{os.getpid()}'
      files.get_file(f'{root}/{name}', str(partial))
      partial.replace(folder / name)
  return folder


def is_set(path: str | os.PathLike[str]) -> bool:
  """Whether there is a data set at a path or URL."""
  target = os.fspath(path).removeprefix('file://')
  return bool(_files_at(target).exists(f'{target.rstrip("/")}/{FACTS}'))


def loader(
  source: Sequence[Any],
  *,
  seed: int,
  batch: int,
  epochs: int | None = None,
  shard: tuple[int, int] = (0, 1),
  threads: int = 2,
) -> Any:
  """A `grain` iterator over lists of items, shuffled anew in each epoch.

  Its `get_state()` is JSON-ready; after `set_state` it goes on with the very
  next batch, also in the middle of an epoch. A batch may reach from one epoch
  into the next; a last one that would not be full is left out.

  Args:
    source: a `Source` or any sequence.
    seed: of the order.
    batch: items of a list.
    epochs: times through the source; None: without end.
    shard: (number, count): every count-th item, for one of several hosts.
    threads: that read ahead; order does not depend on it.

  Raises:
    TaskError: `grain` is missing.
  """
  try:
    import grain
  except ImportError as error:
    raise errors.TaskError(
      "a data set's loader needs grain: pip install 'clawjax[data]'"
    ) from error
  number, count = shard
  data = grain.MapDataset.source(source)[number::count].seed(seed)
  data = data.shuffle().repeat(epochs)
  data = data.batch(batch, drop_remainder=True, batch_fn=list)
  options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
  return iter(data.to_iter_dataset(options))


# ---- places ----------------------------------------------------------------


def _array_record() -> Any:
  try:
    from array_record.python import array_record_module
  except ImportError as error:
    raise errors.TaskError(
      "ArrayRecord data sets need array_record: pip install 'clawjax[data]'"
    ) from error
  return array_record_module


def _is_local(path: str) -> bool:
  return '://' not in path


def _files_at(path: str) -> Any:
  import fsspec

  try:
    return fsspec.core.url_to_fs(path)[0]
  except (ImportError, ValueError) as error:
    raise errors.TaskError(f'{path}: {error}') from error


# ---- the command -----------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
  """Writes a data set of a task set or of the rollouts of a run."""
  from clawjax.tasks import __main__ as command
  from clawjax.tasks import formats

  parser = argparse.ArgumentParser(
    prog='python -m clawjax.tasks.dataset', description=__doc__.split('\n')[0]
  )
  parser.add_argument('out', help='folder or URL to write')
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument('--tasks', help='task set to write')
  source.add_argument('--run', help='folder with rollouts below it')
  parser.add_argument('--format', default='native', choices=[*formats.FORMATS])
  parser.add_argument('--least-reward', type=float, help='of --run')
  parser.add_argument('--shards', type=int, default=1)
  command.add_options(parser)
  args = parser.parse_args(argv)
  try:
    facts: dict[str, Any] = {}
    items: Iterable[records.Item]
    if args.tasks:
      report = formats.load(args.tasks, args.format, command.options_of(args))
      print(report.counts(), file=sys.stderr)
      items = report.tasks
      facts = dataclasses.asdict(report.provenance) if report.provenance else {}
    else:
      facts = {'run': args.run, 'tokenizer': tokenizer_of(args.run)}
      items = rollouts_below(args.run, least_reward=args.least_reward)
    count = write(args.out, items, shards=args.shards, facts=facts)
  except errors.ClawjaxError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(f'{args.out}: {count} written')
  return 0


def rollouts_below(
  folder: str | os.PathLike[str], *, least_reward: float | None = None
) -> Iterator[types.Rollout]:
  """Valid rollouts in the JSON files below a folder, in order of their paths.

  Beside rollouts of training those of its evaluations are left out, so that
  nobody trains on the tasks that he evaluates on without saying so.

  Args:
    folder: of a run or an evaluation, or any folder below it.
    least_reward: leave out what scored less.
  """
  phases: dict[str, list[pathlib.Path]] = {}
  for path in sorted(pathlib.Path(folder).expanduser().rglob('*.json')):
    parts = path.absolute().parts[:-1]
    if 'rollouts' in parts:
      after = parts[len(parts) - parts[::-1].index('rollouts') :]
      phases.setdefault(after[0] if after else '', []).append(path)
  if len(phases) > 1:
    phases.pop('eval', None)
  for path in (p for phase in phases.values() for p in phase):
    try:
      rollout = types.rollout_from_json(json.loads(path.read_text('utf-8')))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
      continue  # a torn file
    if rollout.valid and (
      least_reward is None or (rollout.reward or 0.0) >= least_reward
    ):
      yield rollout


def tokenizer_of(folder: str | os.PathLike[str]) -> str:
  """Name of the tokenizer that a run's rollouts were made with, or ''."""
  place = pathlib.Path(folder).expanduser().absolute()
  for parent in (place, *place.parents):
    for file in (parent / 'config.json', *sorted(parent.glob('cells/*.json'))):
      try:
        found = json.loads(file.read_text('utf-8')).get('tokenizer')
      except (OSError, ValueError, AttributeError):
        continue
      if isinstance(found, str):
        return found
    if (parent / 'rollouts').is_dir():
      break
  return ''


if __name__ == '__main__':
  sys.exit(main())
