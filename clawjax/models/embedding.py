"""Rows of the embedding table for tokens, on a mesh.

The table is cut along D over the axes of 'embed' and along V over those of
'vocab'; tokens are cut along rows and slots. Left to the partitioner, the hidden
states of a whole batch are gathered on every device on the way back. Here only
ids are gathered (4 bytes a token): each device looks its part of D up for all
tokens of its group, and two all-to-alls trade parts of D for tokens. The same
two bring the gradient back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

if TYPE_CHECKING:
  from clawjax.models.sharding import Sharding


def look_up(
  table_VD: jax.Array,
  tokens_BT: jax.Array,
  dtype: Any,
  sharding: Sharding | None = None,
) -> jax.Array:
  """Embeddings [B, T, D] in `dtype`.

  Args:
    table_VD: the table.
    tokens_BT: int32 ids, in range by construction.
    dtype: of the result; what travels is in it.
    sharding: the mesh that both are spread over; None: one device.
  """

  def take(table_VD, tokens_BT):
    # mode='clip': the default fills NaN for ids out of range.
    return jnp.take(table_VD, tokens_BT, axis=0, mode='clip').astype(dtype)

  if sharding is None:
    return take(table_VD, tokens_BT)
  rows, slots = sharding.axes('batch'), sharding.axes('length')
  parts, vocab = sharding.axes('embed'), sharding.axes('vocab')
  # The dimension of the tokens that each axis of D is traded for.
  place = {a: 0 for a in parts if a in rows} | {
    a: 1 for a in parts if a in slots
  }

  def run(table_vd, tokens_bt):
    for axis, dimension in place.items():
      tokens_bt = jax.lax.all_gather(
        tokens_bt, axis, axis=dimension, tiled=True
      )
    if vocab:
      size = table_vd.shape[0]
      here_bt = tokens_bt - size * jax.lax.axis_index(vocab)
      mine_bt = (here_bt >= 0) & (here_bt < size)
      x_btd = take(table_vd, here_bt)
      x_btd = jnp.where(mine_bt[..., None], x_btd, jnp.zeros((), dtype))
    else:
      x_btd = take(table_vd, tokens_bt)
    # D is cut by the first axis first, so it is put together from the last.
    for axis in reversed(parts):
      if axis in place:
        x_btd = jax.lax.all_to_all(
          x_btd, axis, split_axis=place[axis], concat_axis=2, tiled=True
        )
      else:
        x_btd = jax.lax.all_gather(x_btd, axis, axis=2, tiled=True)
    return jax.lax.psum(x_btd, vocab) if vocab else x_btd

  def spec(*axes: tuple[str, ...]) -> P:
    return P(*(a or None for a in axes))

  return jax.shard_map(
    run,
    mesh=sharding.mesh,
    in_specs=(spec(vocab, parts), spec(rows, slots)),
    out_specs=P(rows or None, slots or None, None),
  )(table_VD, tokens_BT)
