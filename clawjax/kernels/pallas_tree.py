"""Tree attention as Pallas TPU kernels over a list of live pairs of blocks.

The grid does not walk the square of blocks but a list of its live pairs, made
from subtree_end by plain jax inside the same jit (blocks.py): a new tree is new
data. Rows are laid end to end, so a batch is one long row whose trees do not
meet. Each pair has flags: partial or full, first and last of its output block.
The list has a fixed number of places; the tail repeats the last pair with no
flag set, which computes nothing and moves nothing. Where the queries are some of
the slots only, a key block that no query sees gets one pair that is first and
last but neither partial nor full: it writes zeros.

Scores stand transposed, [keys, queries]: the running maximum and sum of a query
are then rows of lanes, log-sum-exp is stored as [H, 1, slots] without padding,
and only subtree_end (one per key, shared by all heads) is a column.

  forward   grid (H, pairs by query block)     out, lse
  dq        grid (H, pairs by query block)     p again from lse
  dk, dv    grid (K, pairs by key block, G)    sums over the G heads of a group

Too few places for the pairs of a batch would lose attention silently, so the
default holds every causal pair; with fewer (`pairs`), a batch that does not fit
is an error where its tree is known, and nan where it is traced (`check_pairs` on
the host says so before).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from clawjax.kernels.blocks import DEAD, block_kinds

_MASKED = -1e30
_PARTIAL_BIT, _FULL_BIT, _FIRST_BIT, _LAST_BIT = 1, 2, 4, 8
_LIVE_BITS = _PARTIAL_BIT | _FULL_BIT
_UNSEEN = (
  3  # a kind beside DEAD, PARTIAL and FULL: visited, only to write zeros
)


class Pairs(NamedTuple):
  """Live pairs, sorted by output block.

  Attributes:
    row, column: int32 [P] numbers of the output block and of the other one.
    flags: int32 [P] bits as above.
    count: int32, how many are live.
  """

  row: jax.Array
  column: jax.Array
  flags: jax.Array
  count: jax.Array


def most_pairs(rows: int, slots: int, block: int) -> int:
  """Causal pairs of blocks in `rows` rows of `slots` slots."""
  n = -(-slots // block)
  return rows * n * (n + 1) // 2


def check_pairs(subtree_end: np.ndarray, *, block: int, pairs: int) -> int:
  """Live pairs of a batch, on the host.

  Raises:
    ValueError: there are more than `pairs`.
  """
  B, T = subtree_end.shape
  pad = -T % block
  own = np.arange(T + 1, T + pad + 1)
  end = np.concatenate([subtree_end, np.tile(own, (B, 1))], axis=1)
  last = end.reshape(B, -1, block).max(-1)
  start = np.arange(0, T + pad, block)
  live = (start <= start[:, None]) & (start[:, None] < last[:, None, :])
  count = int(live.sum())
  if count > pairs:
    raise ValueError(
      f'wanted at most {pairs} live pairs of blocks of {block}, got {count}: '
      'raise pairs (None holds every tree)'
    )
  return count


def pallas_attention(
  q: jax.Array,
  k: jax.Array,
  v: jax.Array,
  subtree_end: jax.Array,
  *,
  scale: float,
  block: int = 512,
  pairs: int | None = None,
  query_starts: jax.Array | None = None,
  live_fraction: float = 1.0,
  interpret: bool = False,
) -> jax.Array:
  """Tree attention on a TPU; see `tree_attention` for the arguments.

  Args:
    block: slots per block of queries and keys (a multiple of 128 on a TPU).
    pairs: places in the list of pairs; None: every causal pair.
    query_starts: as in `tree_attention`; `pairs` is not for these.
    live_fraction: live pairs / pairs, for the cost estimate that the compiler
      sees; changes nothing else (but is part of the program).
    interpret: run in plain jax, for tests without a TPU.

  Raises:
    ValueError: see `check_pairs`; only where `subtree_end` is known.
  """
  B, Q, H, C = q.shape
  T = k.shape[1]
  if pairs is not None:
    assert query_starts is None, 'pairs are of whole rows'
    if not isinstance(subtree_end, jax.core.Tracer):
      check_pairs(np.asarray(subtree_end), block=block, pairs=pairs)
  pad = -T % block
  if pad:

    def padded(x: jax.Array) -> jax.Array:
      return jnp.pad(x, ((0, 0), (0, pad), (0, 0), (0, 0)))

    k, v = padded(k), padded(v)
    if query_starts is None:
      q = padded(q)
    own = jnp.arange(T + 1, T + pad + 1, dtype=jnp.int32)
    subtree_end = jnp.concatenate(
      [subtree_end, jnp.broadcast_to(own, (B, pad))], axis=1
    )
  slots = T + pad
  kinds = block_kinds(subtree_end, block, block, query_starts)
  by_column = kinds.swapaxes(1, 2)
  if query_starts is None:
    places = most_pairs(B, slots, block) if pairs is None else pairs
    starts = jnp.arange(0, slots, block, dtype=jnp.int32)
    starts = jnp.broadcast_to(starts, (B, len(starts)))
  else:
    places, starts = kinds.size, query_starts
    unseen = (by_column == DEAD).all(2)
    by_column = by_column.at[:, :, 0].set(
      jnp.where(unseen, _UNSEEN, by_column[:, :, 0])
    )
  by_query = _pair_list(kinds, places)
  by_key = _pair_list(by_column, places)
  offset = jnp.arange(B, dtype=jnp.int32)[:, None] * slots
  ends = (subtree_end + offset).reshape(-1, 1)
  starts = (starts + offset).reshape(-1)
  options = _Options(scale, block, live_fraction, interpret)

  def heads_first(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[2], C).swapaxes(0, 1)

  out = _attention(
    *map(heads_first, (q, k, v)), ends, starts, by_query, by_key, options
  )
  out = jnp.where(by_query.count <= places, out, jnp.nan)
  return out.swapaxes(0, 1).reshape(B, -1, H, C)[:, :Q]


class _Options(NamedTuple):
  scale: float
  block: int
  live_fraction: float
  interpret: bool


def _pair_list(kinds: jax.Array, places: int) -> Pairs:
  """Compacts [B, n, m] kinds (output block, other block) into a list."""
  _, n, m = kinds.shape
  flat = kinds.reshape(-1)
  places_used = min(places, flat.shape[0])
  order = jnp.argsort(flat == DEAD, stable=True)[:places_used]
  order = jnp.pad(order, (0, places - places_used))
  count = (flat != DEAD).sum()
  place = jnp.arange(places)
  at = order[jnp.minimum(place, jnp.minimum(count, places) - 1)]
  row = at // m
  column = at // (n * m) * m + at % m
  new = jnp.concatenate([jnp.array([True]), row[1:] != row[:-1]])
  done = jnp.concatenate([new[1:], jnp.array([True])])
  live = place < count
  done |= place == count - 1
  bits = jnp.array([0, _PARTIAL_BIT, _FULL_BIT, 0])  # by kind
  kind = bits[flat[at]]
  flags = kind + jnp.where(new, _FIRST_BIT, 0) + jnp.where(done, _LAST_BIT, 0)
  flags = jnp.where(live, flags, 0)
  return Pairs(*(x.astype(jnp.int32) for x in (row, column, flags, count)))


# ---- kernels ---------------------------------------------------------------


def _scores(flag, start, k_block, q, k, ends, block):
  """[keys, queries] float32, masked where the pair is partial."""
  s = _dot(k, q, 1, 1)
  shape = (block, block)
  i = start + lax.broadcasted_iota(jnp.int32, shape, 1)
  j = k_block * block + lax.broadcasted_iota(jnp.int32, shape, 0)
  seen = (j <= i) & (i < ends)
  whole = (flag & _FULL_BIT) != 0
  return jnp.where(whole | seen, s, _MASKED)


def _dot(a, b, a_axis, b_axis):
  return lax.dot_general(
    a,
    b,
    (((a_axis,), (b_axis,)), ((), ())),
    preferred_element_type=jnp.float32,
  )


def _forward_kernel(
  row,
  column,
  flags,
  starts,
  q_ref,
  k_ref,
  v_ref,
  end_ref,
  out_ref,
  lse_ref,
  acc,
  top,
  mass,
  *,
  block,
):
  p = pl.program_id(1)
  flag = flags[p]

  @pl.when((flag & _FIRST_BIT) != 0)
  def _():
    acc[...] = jnp.zeros_like(acc)
    top[...] = jnp.full_like(top, _MASKED)
    mass[...] = jnp.zeros_like(mass)

  @pl.when((flag & _LIVE_BITS) != 0)
  def _():
    v = v_ref[0]
    s = _scores(
      flag, starts[row[p]], column[p], q_ref[0], k_ref[0], end_ref[...], block
    )
    old = top[...]
    new = jnp.maximum(old, s.max(0, keepdims=True))
    shrink = jnp.exp(old - new)
    weight = jnp.exp(s - new)
    mass[...] = mass[...] * shrink + weight.sum(0, keepdims=True)
    acc[...] = acc[...] * shrink + _dot(v, weight.astype(v.dtype), 0, 0)
    top[...] = new

  @pl.when((flag & _LAST_BIT) != 0)
  def _():
    out_ref[0] = (acc[...] / mass[...]).T.astype(out_ref.dtype)
    lse_ref[0] = top[...] + jnp.log(mass[...])


def _dq_kernel(
  row,
  column,
  flags,
  starts,
  q_ref,
  k_ref,
  v_ref,
  end_ref,
  do_ref,
  lse_ref,
  delta_ref,
  dq_ref,
  acc,
  *,
  block,
  scale,
):
  p = pl.program_id(1)
  flag = flags[p]

  @pl.when((flag & _FIRST_BIT) != 0)
  def _():
    acc[...] = jnp.zeros_like(acc)

  @pl.when((flag & _LIVE_BITS) != 0)
  def _():
    k = k_ref[0]
    s = _scores(
      flag, starts[row[p]], column[p], q_ref[0], k, end_ref[...], block
    )
    weight = jnp.exp(s - lse_ref[0])
    ds = weight * (_dot(v_ref[0], do_ref[0], 1, 1) - delta_ref[0])
    acc[...] += _dot(ds.astype(k.dtype), k, 0, 0)

  @pl.when((flag & _LAST_BIT) != 0)
  def _():
    dq_ref[0] = (acc[...] * scale).astype(dq_ref.dtype)


def _dkv_kernel(
  row,
  column,
  flags,
  starts,
  q_ref,
  k_ref,
  v_ref,
  end_ref,
  do_ref,
  lse_ref,
  delta_ref,
  dk_ref,
  dv_ref,
  dk_acc,
  dv_acc,
  *,
  block,
  groups,
):
  p, g = pl.program_id(1), pl.program_id(2)
  flag = flags[p]

  @pl.when(((flag & _FIRST_BIT) != 0) & (g == 0))
  def _():
    dk_acc[...] = jnp.zeros_like(dk_acc)
    dv_acc[...] = jnp.zeros_like(dv_acc)

  @pl.when((flag & _LIVE_BITS) != 0)
  def _():
    q, do = q_ref[0], do_ref[0]
    s = _scores(
      flag, starts[column[p]], row[p], q, k_ref[0], end_ref[...], block
    )
    weight = jnp.exp(s - lse_ref[0])
    ds = weight * (_dot(v_ref[0], do, 1, 1) - delta_ref[0])
    dv_acc[...] += _dot(weight.astype(do.dtype), do, 1, 0)
    dk_acc[...] += _dot(ds.astype(q.dtype), q, 1, 0)

  @pl.when(((flag & _LAST_BIT) != 0) & (g == groups - 1))
  def _():
    dk_ref[0] = dk_acc[...].astype(dk_ref.dtype)
    dv_ref[0] = dv_acc[...].astype(dv_ref.dtype)


# ---- calls -----------------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(7,))
def _attention(q, k, v, ends, starts, by_query, by_key, options):
  return _forward(q, k, v, ends, starts, by_query, by_key, options)[0]


def _forward(q, k, v, ends, starts, by_query, by_key, options):
  H, N, C = q.shape
  G, block = H // k.shape[0], options.block
  scaled = q * jnp.asarray(options.scale, q.dtype)
  q_spec, k_spec, end_spec, lse_spec = _query_major_specs(C, G, block)
  out, lse = _call(
    functools.partial(_forward_kernel, block=block),
    by_query,
    starts,
    grid=(H,),
    in_specs=[q_spec, k_spec, k_spec, end_spec],
    out_specs=[q_spec, lse_spec],
    out_shape=[
      jax.ShapeDtypeStruct(q.shape, q.dtype),
      jax.ShapeDtypeStruct((H, 1, N), jnp.float32),
    ],
    scratch=[(C, block), (1, block), (1, block)],
    inputs=(scaled, k, v, ends),
    matmuls=2,
    options=options,
  )
  out = checkpoint_name(out, 'attention_residuals')
  lse = checkpoint_name(lse, 'attention_residuals')
  return out, (q, k, v, ends, starts, by_query, by_key, out, lse)


def _backward(options, saved, d_out):
  q, k, v, ends, starts, by_query, by_key, out, lse = saved
  H, _, C = q.shape
  K, block = k.shape[0], options.block
  G = H // K
  scaled = q * jnp.asarray(options.scale, q.dtype)
  delta = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)
  delta = delta[:, None, :]
  inputs = (scaled, k, v, ends, d_out, lse, delta)
  q_spec, k_spec, end_spec, lse_spec = _query_major_specs(C, G, block)
  (dq,) = _call(
    functools.partial(_dq_kernel, block=block, scale=options.scale),
    by_query,
    starts,
    grid=(H,),
    in_specs=[
      q_spec,
      k_spec,
      k_spec,
      end_spec,
      q_spec,
      lse_spec,
      lse_spec,
    ],
    out_specs=[q_spec],
    out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype)],
    scratch=[(block, C)],
    inputs=inputs,
    matmuls=3,
    options=options,
  )
  # Here the output block (row) is of keys and the other one of queries.
  q_spec = pl.BlockSpec(
    (1, block, C), lambda h, p, g, row, column, *_: (h * G + g, column[p], 0)
  )
  k_spec = pl.BlockSpec((1, block, C), lambda h, p, g, row, *_: (h, row[p], 0))
  end_spec = pl.BlockSpec((block, 1), lambda h, p, g, row, *_: (row[p], 0))
  lse_spec = pl.BlockSpec(
    (1, 1, block), lambda h, p, g, row, column, *_: (h * G + g, 0, column[p])
  )
  dk, dv = _call(
    functools.partial(_dkv_kernel, block=block, groups=G),
    by_key,
    starts,
    grid=(K, G),
    in_specs=[
      q_spec,
      k_spec,
      k_spec,
      end_spec,
      q_spec,
      lse_spec,
      lse_spec,
    ],
    out_specs=[k_spec, k_spec],
    out_shape=[
      jax.ShapeDtypeStruct(k.shape, k.dtype),
      jax.ShapeDtypeStruct(v.shape, v.dtype),
    ],
    scratch=[(block, C), (block, C)],
    inputs=inputs,
    matmuls=4,
    options=options,
  )
  return dq, dk, dv, None, None, None, None


_attention.defvjp(_forward, _backward)


def _query_major_specs(C: int, G: int, block: int):
  # lax.div, not //: in an index map the latter asks for a TPU's generation,
  # which does not exist when compiling without one.
  q_spec = pl.BlockSpec((1, block, C), lambda h, p, row, *_: (h, row[p], 0))
  k_spec = pl.BlockSpec(
    (1, block, C),
    lambda h, p, row, column, *_: (lax.div(h, jnp.int32(G)), column[p], 0),
  )
  end_spec = pl.BlockSpec(
    (block, 1), lambda h, p, row, column, *_: (column[p], 0)
  )
  lse_spec = pl.BlockSpec((1, 1, block), lambda h, p, row, *_: (h, 0, row[p]))
  return q_spec, k_spec, end_spec, lse_spec


def _call(
  kernel,
  pairs,
  starts,
  *,
  grid,
  in_specs,
  out_specs,
  out_shape,
  scratch,
  inputs,
  matmuls,
  options,
):
  """A kernel over (heads, pairs[, groups]); pairs are prefetched scalars."""
  places = pairs.row.shape[0]
  heads, *rest = grid
  q = inputs[0]
  area = options.live_fraction * places * options.block**2
  estimate = pl.CostEstimate(
    flops=int(2 * matmuls * q.shape[0] * area * q.shape[2]),
    transcendentals=int(q.shape[0] * area),
    bytes_accessed=int(
      2
      * options.live_fraction
      * places
      * options.block
      * q.shape[2]
      * q.dtype.itemsize
      * q.shape[0]
    ),
  )
  return pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=4,
      grid=(heads, places, *rest),
      in_specs=in_specs,
      out_specs=out_specs,
      scratch_shapes=[pltpu.VMEM(s, jnp.float32) for s in scratch],
    ),
    out_shape=out_shape,
    cost_estimate=estimate,
    interpret=options.interpret,
  )(pairs.row, pairs.column, pairs.flags, starts, *inputs)
