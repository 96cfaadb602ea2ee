"""Where arrays live: logical axis names, one table to the mesh, checks.

Parameters and activations name what their dimensions *are* ('heads', 'vocab',
see `qwen3.table`); `RULES` says which mesh axes each is cut along:

  data      whole copies of the model, other rows
  fsdp      other rows; every parameter is cut along D and gathered when used
  expert    other rows; each device keeps X / n experts, tokens travel to them;
            all other parameters are cut along D
  context   other slots of a row; queries travel to other heads (see `attend`);
            parameters are cut along D here too, else every one of its devices
            would hold the same copy of weights, gradients and moments
  tensor    heads, MLP width and vocabulary

One dimension may use several mesh axes; two dimensions of one array may not use
the same one. `Sharding` checks that, checks that sizes divide, and hands out
shardings of parameters (`of`) and of anything shaped like them, such as
gradients and optimiser moments (`like`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from clawjax.errors import ConfigError
from clawjax.models import qwen3
from clawjax.models.config import Config

MESH_AXES = ('data', 'fsdp', 'expert', 'context', 'tensor')
RULES: Mapping[str, tuple[str, ...]] = {
  'batch': ('data', 'fsdp', 'expert'),
  'length': ('context',),
  'embed': ('fsdp', 'context', 'expert'),
  'expert_embed': ('fsdp', 'context'),
  'heads': ('tensor',),
  'kv_heads': ('tensor',),
  'head_size': (),
  'mlp': ('tensor',),
  'vocab': ('tensor',),
  'expert': ('expert',),
  'expert_mlp': ('tensor',),
  'layer': (),
}


def make_mesh(
  devices: Sequence[Any] | None = None, **sizes: int
) -> jax.sharding.Mesh:
  """A mesh with all five axes; those not named have size 1.

  Args:
    devices: in the order of the mesh's axes; None: all of this program.
    **sizes: e.g. fsdp=4, tensor=2; one may be -1: what is left.
  """
  unknown = set(sizes) - set(MESH_AXES)
  if unknown:
    raise ConfigError(
      f'unknown mesh axes {sorted(unknown)}; known: {", ".join(MESH_AXES)}'
    )
  if devices is None:
    devices = jax.devices()
  shape = [sizes.get(name, 1) for name in MESH_AXES]
  if shape.count(-1) == 1:
    known = -math.prod(shape)
    shape[shape.index(-1)] = len(devices) // max(known, 1)
  if math.prod(shape) != len(devices):
    raise ConfigError(
      f'a mesh of {dict(zip(MESH_AXES, shape, strict=True))} wants '
      f'{math.prod(shape)} devices, got {len(devices)}'
    )
  grid = np.asarray(devices).reshape(shape)
  return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(shape))


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices of the trainer along each axis; see the top of the file.

  All 1 means the first device and no mesh. One may be -1: what is left.

  Attributes:
    data, fsdp, expert, context, tensor: sizes; their product is the number of
      devices of all processes.
  """

  data: int = 1
  fsdp: int = 1
  expert: int = 1
  context: int = 1
  tensor: int = 1

  def __post_init__(self):
    sizes = dataclasses.astuple(self)
    if any(n < 1 and n != -1 for n in sizes) or sizes.count(-1) > 1:
      raise ValueError(
        f'wanted sizes of at least 1, and -1 for at most one; got {sizes}'
      )

  def build(self) -> Sharding | None:
    """The mesh over all devices, or None for one device.

    Raises:
      ConfigError: the sizes do not fit the devices.
    """
    sizes = dataclasses.asdict(self)
    if jax.process_count() == 1 and set(sizes.values()) == {1}:
      return None
    return Sharding(make_mesh(**sizes))


def tensor_parallel(count: int) -> Sharding:
  """The first devices of this process, with heads cut along them (an engine).

  Raises:
    ConfigError: there are not so many.
  """
  devices = jax.local_devices()
  if not 1 <= count <= len(devices):
    raise ConfigError(
      f'tensor: wanted 1 to {len(devices)} devices, which this process has;'
      f' got {count}'
    )
  return Sharding(make_mesh(devices[:count], tensor=count))


@dataclasses.dataclass(frozen=True)
class Sharding:
  """A mesh and the table from logical axes to its axes.

  Attributes:
    mesh: named mesh.
    rules: logical axis -> mesh axes; axes of size 1 are dropped.
  """

  mesh: Mesh
  rules: Mapping[str, tuple[str, ...]] = dataclasses.field(
    default_factory=lambda: dict(RULES)
  )

  def __hash__(self):
    return hash((self.mesh, tuple(sorted(self.rules.items()))))

  def size(self, *axes: str) -> int:
    """Product of the sizes of mesh axes."""
    return math.prod(self.mesh.shape[a] for a in axes)

  def axes(self, logical: str | None) -> tuple[str, ...]:
    """Mesh axes, of more than one device, that a logical axis is cut along."""
    if logical is None:
      return ()
    if logical not in self.rules:
      raise ConfigError(
        f'unknown logical axis {logical!r}; known: {", ".join(self.rules)}'
      )
    return tuple(a for a in self.rules[logical] if self.mesh.shape[a] > 1)

  def spec(self, axes: tuple[str | None, ...]) -> PartitionSpec:
    """Logical axes of an array -> its `PartitionSpec`.

    Raises:
      ConfigError: two dimensions would be cut along one mesh axis.
    """
    parts = [self.axes(a) for a in axes]
    used: dict[str, str | None] = {}
    for logical, part in zip(axes, parts, strict=True):
      for mesh_axis in part:
        if mesh_axis in used:
          raise ConfigError(
            f'an array with axes {axes} clashes: {used[mesh_axis]!r} -> '
            f'{self.rules[used[mesh_axis]]} and {logical!r} -> '
            f'{self.rules[logical]} both use mesh axis {mesh_axis!r}'
          )
        used[mesh_axis] = logical
    short = {0: lambda p: None, 1: lambda p: p[0]}
    return PartitionSpec(*(short.get(len(p), tuple)(p) for p in parts))

  def named(self, axes: tuple[str | None, ...]) -> NamedSharding:
    """Logical axes of an array -> its sharding."""
    return NamedSharding(self.mesh, self.spec(axes))

  @property
  def replicated(self) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(self.mesh, PartitionSpec())

  def of(self, table: qwen3.Params) -> Any:
    """Shardings of parameters.

    Args:
      table: `qwen3.table(config)` or `value.table(config)`.

    Raises:
      ConfigError: a dimension is not divisible by its mesh axes.
    """

    def one(path, leaf):
      for size, logical in zip(leaf.shape, leaf.axes, strict=True):
        cuts = self.size(*self.axes(logical))
        if size % cuts:
          name = jax.tree_util.keystr(path, simple=True, separator='.')
          raise ConfigError(
            f'parameter {name} {list(leaf.shape)}: {logical!r} of size {size} '
            f'cannot be cut into {cuts} along {self.axes(logical)}; use another '
            f'mesh or set rules[{logical!r}] = ()'
          )
      return self.named(leaf.axes)

    return jax.tree_util.tree_map_with_path(
      one, table, is_leaf=lambda x: isinstance(x, qwen3.Leaf)
    )

  def like(self, tree: Any, params_shardings: Any) -> Any:
    """Shardings of a tree that holds copies of the parameters' tree.

    An optimiser state holds moments under the parameters' own names; whatever
    ends in the path of a parameter gets its sharding, all else is replicated.
    """
    flat = jax.tree_util.tree_flatten_with_path(params_shardings)[0]
    known = dict(flat)

    def one(path, leaf):
      for start in range(len(path)):
        sharding = known.get(tuple(path[start:]))
        if sharding is not None and len(sharding.spec) <= len(leaf.shape):
          return sharding
      return self.replicated

    return jax.tree_util.tree_map_with_path(one, tree)

  def constrain(self, x: jax.Array, axes: tuple[str | None, ...]) -> jax.Array:
    """Pins an array inside a jitted function by its logical axes."""
    return jax.lax.with_sharding_constraint(x, self.named(axes))

  # ---- parts that the partitioner is not left alone with --------------------

  def attend(
    self, attention: Callable[..., jax.Array], config: Config
  ) -> Callable[..., jax.Array]:
    """Runs `attention(q, k, v, *per_row)` on whole rows and some heads.

    Between attentions the slots of a row are spread over the context axis.
    Inside, each device needs all slots of some query heads and of their key
    heads, so queries, keys and values go through an all-to-all (slots for
    heads). Where devices outnumber key heads, each of these is first repeated,
    once per device that needs it: that still moves less than gathering all key
    heads everywhere would. Every device then has the same work whatever the
    tree, and any kernel serves.

    Args:
      attention: [B, T, H', C], [B, T, K', C] x 2, per-row arrays [B, T] ->
        [B, T, H', C], for any H' that is a multiple of K'.
      config: for the numbers of heads.

    Returns:
      A function with the same signature on global arrays.
    """
    rows = self.axes('batch')
    tensor, context = self.axes('heads'), self.axes('length')
    cuts = self.size(*tensor, *context)
    if config.heads % cuts:
      raise ConfigError(
        f'{config.heads} query heads cannot be spread over {tensor} and '
        f'{context}, {cuts} devices'
      )
    heads_here = config.heads // cuts
    group = config.heads // config.kv_heads
    if max(heads_here, group) % min(heads_here, group):
      raise ConfigError(
        f'{heads_here} query heads per device do not share whole key heads '
        f'({group} query heads per key head)'
      )
    repeats = max(1, group // heads_here)
    heads = PartitionSpec(rows, None, tensor + context, None)
    here = PartitionSpec(rows, context, self.axes('kv_heads'), None)

    def run(q, k, v, *per_row):
      if repeats > 1:
        # Repeated where it is, and only then sent.
        k, v = (
          jax.lax.with_sharding_constraint(
            jnp.repeat(x, repeats, axis=2), NamedSharding(self.mesh, here)
          )
          for x in (k, v)
        )
      row_spec = PartitionSpec(rows, None)
      return jax.shard_map(
        attention,
        mesh=self.mesh,
        in_specs=(heads, heads, heads, *(row_spec for _ in per_row)),
        out_specs=heads,
        check_vma=False,
      )(q, k, v, *per_row)

    return run

  def over_terms(self, read: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a reader of loss terms with the terms spread over all devices.

    Left to the partitioner, devices that share a row would each compute the
    logits of all its terms, or exchange partial ones at every chunk. Here each
    has its own terms, the row's hidden states and the output matrix, and gathers
    both itself: so on the way back their gradients are summed and cut at once.

    Args:
      read: (hidden [B, T, D], unembed [D, V], tokens [B, T], parent [B, T],
        term_slot [B, E]) -> pytree of [B, E].

    Returns:
      A function with the same signature on global arrays.
    """
    rows = self.axes('batch')
    length = self.axes('length')
    beside = (*length, *self.axes('heads'))
    row = PartitionSpec(rows, None)
    term = PartitionSpec(rows, beside)
    cuts = self.size(*beside)
    wide, vocab = self.axes('embed'), self.axes('vocab')

    def gathered(hidden, unembed, *rest):
      if length:
        hidden = jax.lax.all_gather(hidden, length, axis=1, tiled=True)
      for axis, names in enumerate((wide, vocab)):
        if names:
          unembed = jax.lax.all_gather(unembed, names, axis=axis, tiled=True)
      return read(hidden, unembed, *rest)

    def run(hidden, unembed, tokens, parent, term_slot):
      count = term_slot.shape[1]
      padded = jnp.pad(term_slot, ((0, 0), (0, -count % cuts)))
      out = jax.shard_map(
        gathered,
        mesh=self.mesh,
        in_specs=(
          PartitionSpec(rows, length, None),
          self.spec(('embed', 'vocab')),
          row,
          row,
          term,
        ),
        out_specs=term,
        check_vma=False,
      )(hidden, unembed, tokens, parent, padded)
      return jax.tree.map(lambda x: x[:, :count], out)

    return run
