"""Rows of a batch through a trunk, piece by piece: numbers read, gradients added.

A trunk turns slots into hidden states, a reader turns hidden states into numbers
or a loss over terms. Ordinary rows go through together, some at a time; all have
one shape. A tree that goes on over several rows (`TreeBatch.row_offset`) is
relayed: each row sees the keys and values of the rows before it, and a term may
read a hidden state of any of them. With P rows:

  forward    row 0, 1, ... P-1     keep keys, values and hidden states only
  backward   row P-1, ... 1, 0     run the row again, and hand what flows into
                                   older keys, values and states to their rows

Only one row's activations are alive at a time, and the result is that of one
row P times as long.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from clawjax.kernels.tree_attention import Impl, tree_attention
from clawjax.losses import diagnostics
from clawjax.models import qwen3
from clawjax.models.sharding import Sharding
from clawjax.trie import TreeBatch

Arrays = dict[str, jax.Array]
Sums = dict[str, jax.Array]
Read = Callable[[Any, jax.Array, Arrays], Any]
Loss = Callable[[Any, jax.Array, Arrays], tuple[jax.Array, Sums]]
_TRUNK = ('tokens', 'depth', 'routes')
_SLOTS = ('tokens', 'parent', 'depth', 'subtree_end')
# Slots per block of the Pallas kernels, as `tree_attention` takes them.
_PALLAS_BLOCK = 512


@dataclasses.dataclass(frozen=True)
class ForwardConfig:
  """How rows go through the model.

  Attributes:
    rows: rows of one microbatch.
    attention: implementation of `kernels.tree_attention`.
    pairs: most live pairs of blocks (of 512 slots) of a microbatch that the
      Pallas kernels get places for, to save scalar memory; a batch with more is
      refused. 0: every causal pair.
    chunk: terms whose logits exist at once, on each device.
    vocab_chunk: vocabulary entries of those logits at once; 0: all.
    temperature: the policy is softmax(logits / temperature), as sampled.
    streams: microbatches whose gradients are computed side by side, each stream
      with its own sum: a program keeps little more than one core of a CPU busy.
      On accelerators leave it at 1.
  """

  rows: int = 1
  attention: Impl = 'auto'
  pairs: int = 0
  chunk: int = 1024
  vocab_chunk: int = 0
  temperature: float = 1.0
  streams: int = 1

  def __post_init__(self):
    if min(self.rows, self.chunk, self.streams) < 1 or self.temperature <= 0:
      raise ValueError(
        'wanted rows, chunk and streams >= 1 and temperature > 0'
      )
    if self.pairs < 0 or self.vocab_chunk < 0:
      raise ValueError('wanted pairs >= 0 and vocab_chunk >= 0')


class Trunk(Protocol):
  """Hidden states [B, T, D] of slots, and the new layer states."""

  def __call__(
    self, params: Any, rows: Arrays, *, attend: qwen3.Attend, states: Any
  ) -> tuple[jax.Array, Any]: ...


@dataclasses.dataclass(frozen=True)
class Setting:
  """What rows are run with.

  Attributes:
    model: the trunk's shape.
    config: see `ForwardConfig`.
    sharding: mesh that rows and parameters are spread over (the caller places
      the parameters); None: one device.
  """

  model: qwen3.Config
  config: ForwardConfig
  sharding: Sharding | None = None

  def __post_init__(self):
    if self.sharding is None:
      return
    cuts = self.sharding.size(*self.sharding.axes('batch'))
    if self.config.rows % cuts:
      raise ValueError(
        f'forward.rows: wanted a multiple of the {cuts} devices that rows are'
        f' spread over, got {self.config.rows}'
      )


def through(
  trunk: Trunk, params: Any, rows: Arrays, setting: Setting
) -> jax.Array:
  """Hidden states of ordinary rows."""
  attention: Callable[..., jax.Array] = functools.partial(
    tree_attention,
    impl=setting.config.attention,
    pairs=setting.config.pairs or None,
  )
  if setting.sharding is not None:
    attention = setting.sharding.attend(attention, setting.model)

  def attend(state, q_BTHC, k_BTKC, v_BTKC):
    return attention(q_BTHC, k_BTKC, v_BTKC, rows['subtree_end']), state

  return trunk(params, rows, attend=attend, states=None)[0]


class Reader:
  """Compiled `read` over the rows of a batch."""

  def __init__(self, trunk: Trunk, read: Read, setting: Setting):
    self._setting = setting
    # Whole on every device: with several processes each reads all of them.
    whole = setting.sharding and setting.sharding.replicated
    self._run = jax.jit(
      lambda params, rows: read(
        params, through(trunk, params, rows, setting), rows
      ),
      out_shardings=whole,
    )
    self._relay = _Relay(trunk, setting)
    self._read = jax.jit(read)

  def __call__(self, params: Any, batch: TreeBatch) -> np.ndarray:
    """What `read` gives per term, float32 [B, E]."""
    out = np.zeros(batch.term_slot.shape, np.float32)
    for index, rows in microbatches(batch, self._setting):
      out[index] = np.asarray(self._run(params, rows))[: len(index)]
    for index, rows in relayed(batch, self._setting):
      pieces = _pieces(rows)
      hidden, _ = self._relay.forward(params, pieces)
      for row, (_, piece) in zip(index, pieces, strict=True):
        out[row] = np.asarray(self._read(params, hidden, piece))[0]
    return out


class Gradient:
  """Compiled gradient of a loss that is a sum over terms."""

  def __init__(self, trunk: Trunk, loss: Loss, setting: Setting):
    self._setting = setting

    def alone(params, rows):
      def whole(params):
        return loss(params, through(trunk, params, rows, setting), rows)

      (_, sums), grads = jax.value_and_grad(whole, has_aux=True)(params)
      return grads, sums

    def add(params, total, rows):
      grads, sums = alone(params, rows)
      return jax.tree.map(jnp.add, total, grads), sums

    self._alone = alone
    self._placed: Callable[..., tuple[Any, Sums]] | None = None
    self._add = jax.jit(add, donate_argnums=1)
    self._relay = _Relay(trunk, setting, loss)

  def __call__(self, params: Any, batch: TreeBatch) -> tuple[Any, Sums]:
    """Gradient and sums for metrics, over all rows."""
    total, sums = self._plain(params, batch)
    for _, rows in relayed(batch, self._setting):
      total, part = self._relay.gradient(params, total, _pieces(rows))
      sums = part if sums is None else diagnostics.add(sums, part)
    assert sums is not None, 'a batch has at least one row'
    return total, sums

  def of_one(self, params: Any) -> Callable[..., tuple[Any, Sums]]:
    """Compiled gradient of one microbatch, placed as `params` are."""
    if self._placed is None:
      places = jax.tree.map(lambda x: x.sharding, params)
      self._placed = jax.jit(self._alone, out_shardings=(places, None))
    return self._placed

  def _plain(self, params: Any, batch: TreeBatch) -> tuple[Any, Sums | None]:
    """The same of the ordinary rows alone."""
    pieces = [rows for _, rows in microbatches(batch, self._setting)]
    count = max(1, min(self._setting.config.streams, len(pieces)))
    if len(pieces) == 1 and self._setting.sharding is not None:
      # No sum to hold beside the gradient: 4 bytes per parameter less. (On one
      # device a second program is not worth its compilation.)
      return self.of_one(params)(params, pieces[0])

    def stream(mine: Sequence[Arrays]) -> tuple[Any, Sums | None]:
      total = jax.tree.map(jnp.zeros_like, params)
      sums: Sums | None = None
      for rows in mine:
        total, part = self._add(params, total, rows)
        sums = part if sums is None else diagnostics.add(sums, part)
      return (
        (total, sums) if count == 1 else jax.block_until_ready((total, sums))
      )

    if count == 1:
      return stream(pieces)
    # Which piece is in which stream is fixed, so the result does not depend on
    # who is done first.
    with futures.ThreadPoolExecutor(count) as pool:
      parts = list(pool.map(stream, [pieces[i::count] for i in range(count)]))
    total, sums = parts[0]
    for more, part in parts[1:]:
      total = jax.tree.map(jnp.add, total, more)
      assert sums is not None and part is not None
      sums = diagnostics.add(sums, part)
    return total, sums


# ---- which rows go together ------------------------------------------------


def microbatches(
  batch: TreeBatch, setting: Setting
) -> Iterator[tuple[np.ndarray, Arrays]]:
  """Ordinary rows in pieces of one shape; the last is filled with empty rows.

  Yields:
    Numbers of the rows, and their arrays.

  Raises:
    ValueError: a piece has more live pairs of blocks than `config.pairs`.
  """
  config, sharding = setting.config, setting.sharding
  arrays = batch.arrays()
  plain = np.flatnonzero(_lengths(batch) == 1)
  for start in range(0, len(plain), config.rows):
    index = plain[start : start + config.rows]
    missing = config.rows - len(index)
    piece = {k: v[index] for k, v in arrays.items()}
    if missing:
      piece = {
        k: np.concatenate([v, _empty_rows(k, v, missing)])
        for k, v in piece.items()
      }
    if config.pairs:
      # Imported here: a CPU-only install need not have Pallas' TPU half.
      from clawjax.kernels.pallas_tree import check_pairs

      check_pairs(piece['subtree_end'], block=_PALLAS_BLOCK, pairs=config.pairs)
    if sharding is None:
      yield index, {k: jnp.asarray(v) for k, v in piece.items()}
    else:
      yield (
        index,
        {
          k: jax.device_put(
            v, sharding.named(('batch', *(None,) * (v.ndim - 1)))
          )
          for k, v in piece.items()
        },
      )


def relayed(
  batch: TreeBatch, setting: Setting
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
  """Rows that belong to one tree: their numbers and their arrays."""
  lengths = _lengths(batch)
  arrays = batch.arrays()
  if setting.sharding is not None and (lengths > 1).any():
    raise ValueError(
      'a tree that goes on over several rows is run on one device; set'
      ' pack.relay to 1, or make rows longer and spread them over the context'
      ' axis'
    )
  for first in np.flatnonzero(lengths > 1):
    index = np.arange(first, first + lengths[first])
    yield index, {k: v[index] for k, v in arrays.items()}


def _lengths(batch: TreeBatch) -> np.ndarray:
  """Per row: rows of the tree that begins there; 0 where one goes on."""
  B = len(batch.tokens)
  if batch.row_offset is None:
    return np.ones(B, np.int64)
  first = np.flatnonzero(batch.row_offset == 0)
  out = np.zeros(B, np.int64)
  out[first] = np.diff(np.append(first, B))
  return out


def _empty_rows(name: str, like: np.ndarray, count: int) -> np.ndarray:
  """Rows of padding: each slot sees itself, each term weighs nothing."""
  shape = (count, *like.shape[1:])
  if name == 'subtree_end':
    return np.broadcast_to(np.arange(1, shape[1] + 1, dtype=like.dtype), shape)
  fill = (
    -1
    if name in ('parent', 'routes', 'term_rollout', 'term_call', 'term_version')
    else 0
  )
  return np.full(shape, fill, like.dtype)


def _pieces(rows: dict[str, np.ndarray]) -> list[tuple[Arrays, Arrays]]:
  """Per row: what the trunk takes, and what the reader takes.

  The reader sees the slots of the whole tree [1, P * T] and the row's terms.
  """
  P, T = rows['tokens'].shape
  whole = {k: jnp.asarray(rows[k].reshape(1, P * T)) for k in _SLOTS}
  found = []
  for row in range(P):
    here = {k: jnp.asarray(rows[k][row : row + 1]) for k in _TRUNK if k in rows}
    here['offset'] = jnp.asarray(row * T, jnp.int32)
    here['subtree_end'] = whole['subtree_end']
    terms = {
      k: jnp.asarray(v[row : row + 1])
      for k, v in rows.items()
      if k not in _SLOTS and k != 'routes'
    }
    found.append((here, whole | terms))
  return found


# ---- the relay -------------------------------------------------------------


class _Relay:
  """Compiled steps of one row of a relayed tree."""

  def __init__(self, trunk: Trunk, setting: Setting, loss: Loss | None = None):
    self._trunk, self._model = trunk, setting.model
    self._config = setting.config
    self._loss = loss
    self._forward = jax.jit(self._row, donate_argnums=(1, 2))
    self._backward = jax.jit(self._pull, donate_argnums=(1, 4, 5))

  def forward(
    self, params: Any, pieces: list[tuple[Arrays, Arrays]]
  ) -> tuple[jax.Array, Any]:
    """Hidden states [1, P * T, D], and keys and values, of the whole tree."""
    hidden, cache = self._empty(params, pieces[0])
    for here, _ in pieces:
      hidden, cache = self._forward(params, hidden, cache, here)
    return hidden, cache

  def gradient(
    self, params: Any, total: Any, pieces: list[tuple[Arrays, Arrays]]
  ) -> tuple[Any, Sums]:
    """Adds the gradient of the tree's loss to `total`."""
    hidden, cache = self.forward(params, pieces)
    d_hidden, d_cache = jax.tree.map(jnp.zeros_like, (hidden, cache))
    sums: Sums | None = None
    for here, terms in reversed(pieces):
      total, d_hidden, d_cache, part = self._backward(
        params, total, hidden, cache, d_hidden, d_cache, here, terms
      )
      sums = part if sums is None else diagnostics.add(sums, part)
    assert sums is not None
    return total, sums

  # ---- inside ----

  def _empty(self, params, piece):
    here, terms = piece
    model = self._model
    slots = terms['tokens'].shape[1]
    dtype = jnp.dtype(model.dtype)
    trunk = params.get('trunk', params)  # of a value model, or all
    shape = (1, slots, model.kv_heads, model.head_size)

    def layer(*lead):
      return tuple(jnp.zeros((*lead, *shape), dtype) for _ in range(2))

    if isinstance(trunk['layers'], dict):
      cache = layer(model.layers)
    else:
      cache = [layer() for _ in range(model.layers)]
    return jnp.zeros((1, slots, model.width), dtype), cache

  def _row(self, params, hidden, cache, here):
    """One row; returns `hidden` and `cache` with its part put in."""
    part, own = self._own(params, cache, here)
    offset = here['offset']
    cache = jax.tree.map(lambda x, y: _put(x, y, offset, axis=-3), cache, own)
    return _put(hidden, part, offset, axis=1), cache

  def _own(self, params, cache, here):
    """Hidden states, keys and values of one row alone."""
    T = here['tokens'].shape[1]
    offset, end = here['offset'], here['subtree_end']
    block = math.gcd(T, 128 if jax.default_backend() == 'cpu' else 512)
    starts = offset + jnp.arange(0, T, block, dtype=jnp.int32)[None]

    def attend(state, q_BTHC, k_BTKC, v_BTKC):
      keys, values = (
        _put(old, new.astype(old.dtype), offset, axis=1)
        for old, new in zip(state, (k_BTKC, v_BTKC), strict=True)
      )
      out = tree_attention(
        q_BTHC,
        keys,
        values,
        end,
        impl=self._config.attention,
        query_starts=starts,
      )
      return out, (k_BTKC, v_BTKC)

    return self._trunk(params, here, attend=attend, states=cache)

  def _pull(self, params, total, hidden, cache, d_hidden, d_cache, here, terms):
    """Backward through one row, given what later rows sent to it."""
    offset, T = here['offset'], here['tokens'].shape[1]

    def run(params, hidden, cache):
      part, own = self._own(params, cache, here)
      whole = _put(hidden, part, offset, axis=1)
      loss, sums = self._loss(params, whole, terms)
      return (loss, part, own), sums

    outputs, back, sums = jax.vjp(run, params, hidden, cache, has_aux=True)
    get = functools.partial(_get, offset=offset, size=T)
    d_own = jax.tree.map(
      lambda x, like: get(x, axis=-3).astype(like.dtype), d_cache, outputs[2]
    )
    d_params, d_old, d_past = back(
      (jnp.ones_like(outputs[0]), get(d_hidden, axis=1), d_own)
    )
    add = functools.partial(jax.tree.map, jnp.add)
    return (
      add(total, d_params), add(d_hidden, d_old), add(d_cache, d_past), sums
    )  # fmt: skip


def _put(whole, part, offset, *, axis):
  start = [0] * whole.ndim
  start[axis] = offset
  return jax.lax.dynamic_update_slice(whole, part.astype(whole.dtype), start)


def _get(whole, *, offset, size, axis):
  return jax.lax.dynamic_slice_in_dim(whole, offset, size, axis % whole.ndim)
