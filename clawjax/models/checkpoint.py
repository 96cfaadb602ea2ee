"""Hugging Face safetensors folders <-> our parameters, tensor by tensor.

A folder holds `config.json` and either `model.safetensors` or several shards
with `model.safetensors.index.json`. `load_hf` walks the shards and places one
tensor at a time into the sharding it is meant for: each process reads only the
rows its devices need, and the host holds one tensor beside the result. `save_hf`
writes shards of bounded size and holds one of them. Folders are local or
anything fsspec knows (`gs://...`); a remote shard is fetched to a temporary file
that goes before the next one comes.

One table, `mapping(config)`, says which HF tensor is which of our parameters.
It is written in axis letters: HF stores a projection as 'hc d' (rows are heads
times head size), we keep 'd h c'. Every tensor is accounted for: what is
missing, surplus, cut short or of a wrong shape stops the load, by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from clawjax.errors import CheckpointError
from clawjax.models import qwen3
from clawjax.models.config import Config
from clawjax.models.qwen3 import Params

INDEX = 'model.safetensors.index.json'
SINGLE = 'model.safetensors'
_FLOATS = ('F64', 'F32', 'F16', 'BF16')

# HF name, our key, HF axes (letters of one dimension together), our axes.
_TOP = (
  ('model.embed_tokens.weight', 'embed', 'v d', 'v d'),
  ('model.norm.weight', 'final_norm', 'd', 'd'),
  ('lm_head.weight', 'head', 'v d', 'd v'),
)
_LAYER = (
  ('input_layernorm.weight', 'attention_norm', 'd', 'd'),
  ('self_attn.q_proj.weight', 'q', 'hc d', 'd h c'),
  ('self_attn.q_proj.bias', 'q_bias', 'hc', 'h c'),
  ('self_attn.k_proj.weight', 'k', 'kc d', 'd k c'),
  ('self_attn.k_proj.bias', 'k_bias', 'kc', 'k c'),
  ('self_attn.v_proj.weight', 'v', 'kc d', 'd k c'),
  ('self_attn.v_proj.bias', 'v_bias', 'kc', 'k c'),
  ('self_attn.q_norm.weight', 'q_norm', 'c', 'c'),
  ('self_attn.k_norm.weight', 'k_norm', 'c', 'c'),
  ('self_attn.o_proj.weight', 'o', 'd hc', 'h c d'),
  ('self_attn.o_proj.bias', 'o_bias', 'd', 'd'),
  ('post_attention_layernorm.weight', 'mlp_norm', 'd', 'd'),
)
_DENSE = (
  ('mlp.gate_proj.weight', 'gate', 'f d', 'd f'),
  ('mlp.up_proj.weight', 'up', 'f d', 'd f'),
  ('mlp.down_proj.weight', 'down', 'd f', 'f d'),
)
_ROUTER = (('mlp.gate.weight', 'router', 'x d', 'd x'),)
_EXPERT = (
  ('mlp.experts.{}.gate_proj.weight', 'gate', 'f d', 'd f'),
  ('mlp.experts.{}.up_proj.weight', 'up', 'f d', 'd f'),
  ('mlp.experts.{}.down_proj.weight', 'down', 'd f', 'f d'),
)


@dataclasses.dataclass(frozen=True)
class Source:
  """One HF tensor and its place among our parameters.

  Attributes:
    name: HF tensor name.
    key: our parameter's name.
    layer, expert: which part of it, or None.
    hf, ours: axis letters, e.g. ('hc', 'd') and ('d', 'h', 'c').
    sizes: letter -> size.
  """

  name: str
  key: str
  layer: int | None
  expert: int | None
  hf: tuple[str, ...]
  ours: tuple[str, ...]
  sizes: Mapping[str, int]

  @property
  def hf_shape(self) -> tuple[int, ...]:
    """Shape of the HF tensor."""
    return tuple(math.prod(self.sizes[a] for a in dim) for dim in self.hf)

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of our part: without layer and expert dimensions."""
    return tuple(self.sizes[a] for a in self.ours)

  def to_hf(self, part: np.ndarray) -> np.ndarray:
    """Our part as the HF tensor."""
    letters = ''.join(self.hf)
    turned = part.transpose([self.ours.index(a) for a in letters])
    return turned.reshape(self.hf_shape)

  def read(self, stored: Any, index: tuple[slice, ...]) -> np.ndarray:
    """Our part (a region of it), reading no more rows than it needs.

    Args:
      stored: safetensors' slice object of the HF tensor.
      index: a slice per dimension of ours.
    """
    region = {
      a: s.indices(self.sizes[a])[:2]
      for a, s in zip(self.ours, index, strict=True)
    }
    cuts, split = [], []
    for dim in self.hf:
      first, rest = dim[0], dim[1:]
      start, stop = region[first]
      inner = math.prod(self.sizes[a] for a in rest)
      cuts.append(slice(start * inner, stop * inner))
      split += [stop - start, *(self.sizes[a] for a in rest)]
    array = stored[tuple(cuts)].reshape(split)
    letters = ''.join(self.hf)
    array = array.transpose([letters.index(a) for a in self.ours])
    # The outer letter of each HF dimension is cut already; the inner is whole.
    outer = {dim[0] for dim in self.hf}
    return array[
      tuple(slice(None) if a in outer else slice(*region[a]) for a in self.ours)
    ]


def mapping(config: Config) -> list[Source]:
  """Every tensor of the HF model, layer by layer."""
  c = config
  listed = qwen3.table(c.replace(scan_layers=False))
  sizes = {
    'v': c.vocab,
    'd': c.width,
    'h': c.heads,
    'k': c.kv_heads,
    'c': c.head_size,
    'x': c.experts,
    'f': c.expert_width if c.experts else c.mlp_width,
  }

  def rows(table, stem='', layer=None, expert=None, known=listed):
    for name, key, hf, ours in table:
      if key in known:
        name = stem + name.format(expert)
        axes = tuple(hf.split()), tuple(ours.split())
        yield Source(name, key, layer, expert, *axes, sizes)

  out = list(rows(_TOP))
  for i, known in enumerate(listed['layers']):
    stem = f'model.layers.{i}.'
    out += rows(_LAYER, stem, i, known=known)
    if not c.experts:
      out += rows(_DENSE, stem, i, known=known)
      continue
    out += rows(_ROUTER, stem, i, known=known)
    for x in range(c.experts):
      out += rows(_EXPERT, stem, i, x, known=known)
  return out


# ---- folders ---------------------------------------------------------------


class Folder:
  """A checkpoint folder, local or remote; its files become local on demand."""

  def __init__(self, where: str | os.PathLike):
    self.where = str(where)
    self.remote = '://' in self.where

  def _system(self):
    import fsspec

    return fsspec.core.url_to_fs(self.where)

  def exists(self, name: str) -> bool:
    """Whether the folder holds a file of that name."""
    if not self.remote:
      return (Path(self.where) / name).exists()
    system, path = self._system()
    return system.exists(f'{path}/{name}')

  @contextlib.contextmanager
  def local(self, name: str) -> Iterator[Path]:
    """A local path to read a file at; a fetched copy is removed after."""
    if not self.remote:
      yield Path(self.where) / name
      return
    system, path = self._system()
    with tempfile.TemporaryDirectory() as folder:
      target = Path(folder) / Path(name).name
      system.get_file(f'{path}/{name}', str(target))
      yield target

  @contextlib.contextmanager
  def writing(self, name: str) -> Iterator[Path]:
    """A local path to write a file at; it appears whole or not at all."""
    if not self.remote:
      target = Path(self.where) / name
      target.parent.mkdir(parents=True, exist_ok=True)
      part = target.with_name(target.name + '.part')
      part.touch()
      mode = part.stat().st_mode
      yield part
      part.chmod(mode)  # safetensors closes its files to others
      os.replace(part, target)
      return
    system, path = self._system()
    with tempfile.TemporaryDirectory() as folder:
      part = Path(folder) / name
      yield part
      system.makedirs(path, exist_ok=True)
      system.put_file(str(part), f'{path}/{name}')

  def json(self, name: str) -> Any:
    """Content of a JSON file."""
    try:
      with self.local(name) as path:
        return json.loads(path.read_text())
    except json.JSONDecodeError as e:
      raise CheckpointError(
        f'{name} in {self.where} is not valid JSON: {e}'
      ) from e

  def write_json(self, name: str, value: Any) -> None:
    """Writes a JSON file."""
    with self.writing(name) as path:
      path.write_text(json.dumps(value, indent=2) + '\n')


def read_config(where: str | os.PathLike, **fields: Any) -> Config:
  """The `Config` of a HF folder; `fields` are set over it."""
  folder = Folder(where)
  if not folder.exists('config.json'):
    raise CheckpointError(
      f'no config.json in {where}; wanted a Hugging Face model folder'
    )
  return Config.from_hf(folder.json('config.json'), **fields)


# ---- loading ---------------------------------------------------------------


def load_hf(
  where: str | os.PathLike,
  *,
  config: Config | None = None,
  dtype: str | None = None,
  scan_layers: bool | None = None,
  shardings: Any = None,
) -> tuple[Params, Config]:
  """Reads a Hugging Face folder.

  Args:
    where: local folder or fsspec URL.
    config: what the weights must fit; None: the folder's config.json.
    dtype: 'float32' or 'bfloat16' of the parameters; None: `config`'s.
    scan_layers: layer layout; None: `config`'s.
    shardings: `jax.sharding.Sharding`s in the form of the parameters (see
      `sharding.Sharding.of`); None: the default device.

  Returns:
    (params, config).

  Raises:
    CheckpointError: files or tensors are missing, surplus, truncated or of a
      wrong shape; the text names them.
  """
  if config is None:
    config = read_config(where)
  if dtype is not None:
    config = config.replace(param_dtype=dtype)
  if scan_layers is not None:
    config = config.replace(scan_layers=scan_layers)
  folder = Folder(where)
  sources = {s.name: s for s in mapping(config)}
  if folder.exists(INDEX):
    weight_map = folder.json(INDEX)['weight_map']
    _check_names(sources, weight_map, config, folder.where)
    files = sorted(set(weight_map.values()))
  elif folder.exists(SINGLE):
    files = [SINGLE]
  else:
    raise CheckpointError(
      f'neither {INDEX} nor {SINGLE} in {where}; wanted safetensors weights '
      '(convert other formats with transformers first)'
    )
  lacking = [name for name in files if not folder.exists(name)]
  if lacking:
    raise CheckpointError(f'{where} lacks the shards {_some(lacking)}')
  placer = _Placer(config, shardings)
  placed: set[str] = set()
  for file in files:
    with folder.local(file) as path, _reader(path, file) as reader:
      names = list(reader.keys())
      if files == [SINGLE]:
        _check_names(sources, names, config, folder.where)
      for name in names:
        if name in sources:
          placer.put(sources[name], reader.get_slice(name), file)
          placed.add(name)
  if len(placed) < len(sources):
    lacking = sorted(set(sources) - placed)
    raise CheckpointError(
      f'{INDEX} of {where} names tensors that its shards lack: {_some(lacking)}'
    )
  return placer.params, config


@contextlib.contextmanager
def _reader(path: Path, name: str):
  import safetensors

  try:
    # pread: with mmap the pages of a whole shard would count as ours.
    opened = safetensors.safe_open(path, framework='numpy', backend='pread')
  except safetensors.SafetensorError as e:
    raise CheckpointError(f'{name} is damaged or cut short: {e}') from e
  with opened as reader:
    yield reader


def _check_names(
  sources: Mapping[str, Source],
  names: Iterable[str],
  config: Config,
  where: str,
) -> None:
  got = {n for n in names if not n.endswith('rotary_emb.inv_freq')}
  if config.tied:
    got.discard('lm_head.weight')  # a copy that some exports keep
  missing = sorted(set(sources) - got)
  surplus = sorted(got - set(sources))
  if missing or surplus:
    raise CheckpointError(
      f'{where} does not hold this model: missing {_some(missing)}; surplus '
      f'{_some(surplus)}'
    )


def _some(names: list[str]) -> str:
  if not names:
    return 'nothing'
  more = f' and {len(names) - 4} more' if len(names) > 4 else ''
  return ', '.join(names[:4]) + more


class _Placer:
  """Puts HF tensors where they belong, one after the other.

  A parameter made of many tensors (experts, stacked layers) begins as zeros in
  its final sharding and is filled in place.
  """

  def __init__(self, config: Config, shardings: Any):
    self.dtype = jnp.dtype(config.param_dtype)
    self.shapes = qwen3.abstract(config)
    self.params: Params = jax.tree.map(lambda _: None, self.shapes)
    self.shardings = shardings

  def put(self, source: Source, stored: Any, file: str) -> None:
    """Reads one tensor and stores it."""
    got = tuple(stored.get_shape())
    if got != source.hf_shape:
      raise CheckpointError(
        f'{source.name} in {file} has shape {list(got)}; this model wants '
        f'{list(source.hf_shape)}'
      )
    if stored.get_dtype() not in _FLOATS:
      raise CheckpointError(
        f'{source.name} in {file} is stored as {stored.get_dtype()}; wanted '
        f'one of {", ".join(_FLOATS)} (quantised weights are not supported)'
      )
    shapes, home, sharding = self.shapes, self.params, self.shardings
    lead = []
    if source.layer is not None:
      shapes, home = shapes['layers'], home['layers']
      sharding = sharding and sharding['layers']
      if isinstance(shapes, list):
        shapes, home = shapes[source.layer], home[source.layer]
        sharding = sharding and sharding[source.layer]
      else:
        lead.append(source.layer)
    if source.expert is not None:
      lead.append(source.expert)
    sharding = sharding and sharding[source.key]
    part = self._part(source, stored, sharding, len(lead))
    if not lead:
      home[source.key] = part
      return
    whole = home[source.key]
    if whole is None:
      make = jax.jit(
        functools.partial(jnp.zeros, shapes[source.key].shape, self.dtype),
        out_shardings=sharding,
      )
      whole = make()
    home[source.key] = _fill(whole, part, np.asarray(lead, np.int32))

  def _part(self, source: Source, stored, sharding, lead: int) -> jax.Array:
    def region(index):
      read = source.read(stored, index)
      return np.ascontiguousarray(read.astype(self.dtype))

    if sharding is None:
      return jnp.asarray(region((slice(None),) * len(source.shape)))
    if lead and isinstance(sharding, jax.sharding.NamedSharding):
      spec = jax.sharding.PartitionSpec(*sharding.spec[lead:])
      sharding = jax.sharding.NamedSharding(sharding.mesh, spec)
    return jax.make_array_from_callback(source.shape, sharding, region)


@functools.partial(jax.jit, donate_argnums=0)
def _fill(whole: jax.Array, part: jax.Array, lead: jax.Array) -> jax.Array:
  index = tuple(lead[i] for i in range(lead.shape[0]))
  return whole.at[index].set(part)


# ---- saving ----------------------------------------------------------------


def save_hf(
  params: Params,
  config: Config,
  where: str | os.PathLike,
  *,
  dtype: str | None = None,
  shard_bytes: int = 2 * 2**30,
) -> None:
  """Writes a folder that Hugging Face `transformers` loads.

  Args:
    params: nested dict, layers listed or stacked, any sharding.
    config: of these parameters.
    where: local folder or fsspec URL.
    dtype: 'float32' or 'bfloat16' on disk; None: `config.param_dtype`.
    shard_bytes: most bytes of one file (a larger tensor gets its own).
  """
  from safetensors.numpy import save_file

  dtype = dtype or config.param_dtype
  store = jnp.dtype(dtype)
  folder = Folder(where)
  shards: list[list[Source]] = [[]]
  size = 0
  for source in mapping(config):
    nbytes = math.prod(source.hf_shape) * store.itemsize
    if shards[-1] and size + nbytes > shard_bytes:
      shards.append([])
      size = 0
    shards[-1].append(source)
    size += nbytes
  count = len(shards)
  fetch = _Fetcher(params)
  writer = jax.process_index() == 0
  weight_map, total = {}, 0
  for i, shard in enumerate(shards):
    name = SINGLE
    if count > 1:
      name = f'model-{i + 1:05d}-of-{count:05d}.safetensors'
    tensors = {}
    for source in shard:
      part = fetch(source)
      if writer:
        hf = source.to_hf(part).astype(store)
        tensors[source.name] = np.ascontiguousarray(hf)
      weight_map[source.name] = name
      total += math.prod(source.hf_shape) * store.itemsize
    if writer:
      with folder.writing(name) as path:
        save_file(tensors, path, metadata={'format': 'pt'})
    del tensors
  if not writer:
    return
  if count > 1:
    folder.write_json(
      INDEX, {'metadata': {'total_size': total}, 'weight_map': weight_map}
    )
  hf = config.to_hf()
  hf['torch_dtype'] = dtype
  folder.write_json('config.json', hf)


class _Fetcher:
  """Brings parameters to the host, keeping the last one fetched.

  The experts of one layer come as one array and are cut there: one transfer
  instead of X.
  """

  def __init__(self, params: Params):
    self.params = params
    self.last: tuple[Any, np.ndarray | None] = (None, None)

  def __call__(self, source: Source) -> np.ndarray:
    where = (source.key, source.layer)
    if where != self.last[0]:
      self.last = (None, None)  # frees the old one first
      self.last = (where, self._host(source))
    whole = self.last[1]
    assert whole is not None
    return whole if source.expert is None else whole[source.expert]

  def _host(self, source: Source) -> np.ndarray:
    if source.layer is None:
      array = self.params[source.key]
    elif isinstance(self.params['layers'], dict):
      array = self.params['layers'][source.key][source.layer]
    else:
      array = self.params['layers'][source.layer][source.key]
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
      from jax.experimental import multihost_utils

      return multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)
