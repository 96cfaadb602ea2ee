"""A mixture of experts on a mesh: pairs travel to the devices of their experts.

A pair is a token and one of its experts. Experts are spread over the mesh's
expert axis, tokens over all devices. On TPU and GPU a device sends exactly its
pairs (`_sent`), elsewhere whole buffers (`_exchanged`, the plain twin): what it
may get is bounded only by all tokens choosing its experts, and no token is ever
dropped.

Axes as in experts.py, and: R rows received from elsewhere, L experts of a device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from clawjax.models import experts


def run_sharded(
  x_BTD: jax.Array,
  weights: experts.Weights,
  routing: experts.Routing,
  sharding: Any,
  *,
  impl: str = 'auto',
  exchange: str = 'auto',
) -> jax.Array:
  """`experts.run` with tokens, experts and expert width spread over a mesh.

  Each device holds X / P experts (P along the mesh's expert axis) and its own
  tokens. A pair travels to the device of its expert and its result back. What
  a device may receive is bounded only by the worst case (every token of the P
  devices choosing its experts), because a smaller buffer would drop tokens.

  Args:
    x_BTD: inputs.
    weights: global, X cut along 'expert', F along 'expert_mlp'.
    routing: with leading [B, T] instead of N.
    sharding: a `sharding.Sharding`.
    impl: how a device runs its experts (what is exchanged 'ragged' is run so).
    exchange: 'ragged' sends what there is (`ragged_all_to_all`: TPU and GPU);
      'padded' sends whole buffers, and runs anywhere; 'auto' by platform.
  """
  ep, tensor = sharding.axes('expert'), sharding.axes('expert_mlp')
  if exchange == 'auto':
    exchange = 'padded' if jax.default_backend() == 'cpu' else 'ragged'
  tokens = PartitionSpec(sharding.axes('batch'), sharding.axes('length'), None)
  wide = sharding.spec(('expert', 'expert_embed', 'expert_mlp'))
  high = sharding.spec(('expert', 'expert_mlp', 'expert_embed'))
  embed = sharding.axes('expert_embed')

  def body(x_BTD, gate, up, down, expert_BTA, gate_BTA):
    if embed:
      # Gathered here and not by the partitioner: then their gradients are
      # summed and cut in one go on the way back.
      gate, up, down = (
        jax.lax.all_gather(w, embed, axis=axis, tiled=True)
        for w, axis in ((gate, 1), (up, 1), (down, 2))
      )
    x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
    picks = expert_BTA.shape[-1]
    here = experts.Weights(gate, up, down)
    local = experts.Routing(
      expert_BTA.reshape(-1, picks),
      gate_BTA.reshape(-1, picks),
      jnp.zeros((0,)),
    )
    if ep and exchange == 'ragged':
      y_ND = _sent_in_turns(x_ND, here, local, ep[0])
    elif ep:
      y_ND = _exchanged(x_ND, here, local, ep, impl)
    else:
      y_ND = experts.run(x_ND, here, local, impl=impl)
    if tensor:
      y_ND = jax.lax.psum(y_ND, tensor)
    return y_ND.reshape(x_BTD.shape)

  return jax.shard_map(
    body,
    mesh=sharding.mesh,
    in_specs=(tokens, wide, wide, high, tokens, tokens),
    out_specs=tokens,
    check_vma=False,
  )(x_BTD, *weights, routing.expert_NA, routing.gate_NA)


def _sent_in_turns(x_ND, weights, routing, axis):
  """`_sent` with an equal part of the tokens at a time, as many as peers.

  So the buffers for what arrives, of the worst case, are no larger than the
  pairs of all tokens. Each turn is run again on the way back.
  """
  peers = jax.lax.axis_size(axis)
  n = x_ND.shape[0]
  if n % peers:
    return _sent(x_ND, weights, routing, axis)

  @jax.checkpoint
  def turn(weights, x_ND, expert_NA, gate_NA):
    part = experts.Routing(expert_NA, gate_NA, routing.prob_NX)
    return _sent(x_ND, weights, part, axis)

  some = jax.tree.map(
    lambda y: y.reshape(peers, n // peers, *y.shape[1:]),
    (x_ND, routing.expert_NA, routing.gate_NA),
  )
  _, y_PND = jax.lax.scan(
    lambda _, some: (None, turn(weights, *some)), None, some
  )
  return y_PND.reshape(x_ND.shape)


def _sent(x_ND, weights, routing, axis):
  """Sends pairs to their experts' devices, runs them there, brings them back.

  A pair lands where its expert's pairs are: each device is told by the others
  how many pairs they have for each of its experts, and tells them where to put
  them, one slice for each peer and expert. So nothing is sorted on arrival, and
  only what arrives needs a buffer for the worst case.
  """
  n, a = routing.expert_NA.shape
  local = weights.gate_XDF.shape[0]
  peers = jax.lax.axis_size(axis)

  def swapped(numbers):
    return jax.lax.all_to_all(numbers, axis, 0, 0, tiled=True)

  flat_M = routing.expert_NA.reshape(-1)
  order_M = jnp.argsort(flat_M, stable=True)
  slot_NA = experts.inverse(order_M).reshape(n, a)
  # Experts are numbered device by device, so X = peers x local; slice i is of
  # (peer, its expert) where it leaves and of (peer, my expert) where it lands.
  leaving_X = jnp.bincount(flat_M, length=peers * local).astype(jnp.int32)
  landing_X = swapped(leaving_X)
  from_X = jnp.cumsum(leaving_X) - leaving_X
  by_expert = landing_X.reshape(peers, local).T.reshape(-1)
  to_X = (jnp.cumsum(by_expert) - by_expert).reshape(local, peers).T.reshape(-1)
  there = _Slices(from_X, leaving_X, swapped(to_X), landing_X)
  back = _Slices(to_X, landing_X, swapped(from_X), leaving_X)
  room = peers * n * min(a, local)  # should all choose this device's experts
  in_RD = _carry(
    experts.spread(x_ND, slot_NA, order_M), room, there, back, axis
  )
  sizes_L = landing_X.reshape(peers, local).sum(0)
  hidden_RF = jax.nn.silu(jax.lax.ragged_dot(in_RD, weights.gate_XDF, sizes_L))
  hidden_RF *= jax.lax.ragged_dot(in_RD, weights.up_XDF, sizes_L)
  # Past the last group a kernel may leave anything, nan too.
  used_R = jnp.arange(room) < sizes_L.sum()
  hidden_RF = jnp.where(used_R[:, None], hidden_RF, 0)
  done_RD = jax.lax.ragged_dot(hidden_RF, weights.down_XFD, sizes_L)
  back_MD = _carry(done_RD, n * a, back, there, axis)
  out_NAD = experts.collect(back_MD, slot_NA, order_M)
  gate_NA = routing.gate_NA.astype(x_ND.dtype)
  return jnp.einsum('nad,na->nd', out_NAD, gate_NA)


class _Slices(NamedTuple):
  """What a device sends; int32 [slices], the same number for each peer.

  Attributes:
    start, size: of each slice, here.
    place: where it is put, on the peer.
    coming: sizes of what the peers send here.
  """

  start: jax.Array
  size: jax.Array
  place: jax.Array
  coming: jax.Array


def _carry(x, rows, there, back, axis):
  """Slices of `x` [S, D] put into an array [rows, D] of their peers.

  What is in no slice is zero, in the result and in the gradient.
  """

  @jax.custom_vjp
  def carry(x, there, back):
    zeros = jnp.zeros((rows, x.shape[1]), x.dtype)
    return jax.lax.ragged_all_to_all(x, zeros, *there, axis_name=axis)

  def backward(saved, grad):
    there, back = saved
    zeros = jnp.zeros((x.shape[0], grad.shape[1]), grad.dtype)
    sent = jax.lax.ragged_all_to_all(grad, zeros, *back, axis_name=axis)
    return sent, None, None

  carry.defvjp(
    lambda x, there, back: (carry(x, there, back), (there, back)), backward
  )
  return carry(x, there, back)


def _exchanged(x_ND, weights, routing, axis, impl):
  """The plain twin of `_sent`: whole buffers are exchanged.

  Every buffer has one region per peer, as long as the worst case, in which the
  pairs lie sorted by expert; so the counts alone tell where each pair is.
  """
  n, a = routing.expert_NA.shape
  width = x_ND.shape[1]
  local = weights.gate_XDF.shape[0]
  peers = jax.lax.axis_size(axis)
  room = n * min(a, local)  # pairs that one peer can have for another
  flat_M = routing.expert_NA.reshape(-1)
  order_M = jnp.argsort(flat_M, stable=True)
  counts_X = jnp.bincount(flat_M, length=peers * local).astype(jnp.int32)
  # counts[s, x]: pairs of peer s for my x-th expert.
  mine_X = jax.lax.all_to_all(
    counts_X.reshape(peers, local), axis, 0, 0, tiled=True
  )
  sent = counts_X.reshape(peers, local).sum(1)
  start = jnp.cumsum(sent) - sent
  # My sorted pairs, region by region.
  dest_M = flat_M[order_M] // local
  slot_M = dest_M * room + jnp.arange(n * a) - start[dest_M]
  pair_R = jnp.full(peers * room, n * a, jnp.int32).at[slot_M].set(order_M)
  slot_NA = jnp.zeros(n * a, jnp.int32).at[order_M].set(slot_M).reshape(n, a)
  out_RD = experts.spread(x_ND, slot_NA, pair_R)
  in_RD = jax.lax.all_to_all(out_RD, axis, 0, 0, tiled=True)
  # Which of my experts each received row is for; `local` where there is none.
  rank = jnp.arange(room)
  ends = jnp.cumsum(mine_X, axis=1)
  expert_R = (rank[None, :, None] >= ends[:, None, :]).sum(-1).reshape(-1)
  if impl == 'auto':
    impl = experts.choose(expert_R.shape[0], local, 1)
  done_RD = experts.run_pairs(in_RD, weights, expert_R[:, None], impl)[:, 0]
  back_RD = jax.lax.all_to_all(done_RD, axis, 0, 0, tiled=True)
  out_NAD = experts.collect(back_RD.reshape(-1, width), slot_NA, pair_R)
  gate_NA = routing.gate_NA.astype(x_ND.dtype)
  return jnp.einsum('nad,na->nd', out_NAD, gate_NA)
