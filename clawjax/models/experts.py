"""Dropless mixture of experts: a router and several ways to run the experts.

`route` turns router logits into A expert ids and gates per token; `run` applies
the chosen SwiGLU experts and sums them by gate. No token is ever dropped, so
the result of a token depends on that token alone, whatever shares its row: a
packed tree and its unpacked calls agree.

All ways in `run` give the same numbers (tested); they differ in speed:
  dense   every expert on every token, three big matmuls. The oracle.
  loop    the same, one expert after the other: no big transposes on CPU.
  gather  the weights of each token's experts are gathered: best when tokens
          are few (decode at batch 1).
  block   tokens sorted by expert, each expert's share padded to whole blocks,
          one batched matmul over blocks: FLOPs near the ideal A / X.
  ragged  `jax.lax.ragged_dot` over sorted tokens: the accelerator's path.

Axes: N tokens, D width, X experts, A experts per token, F expert width.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

NOT_REPLAYED = -1


class Routing(NamedTuple):
  """Which experts a token uses and how much of each.

  Attributes:
    expert_NA: int32, chosen experts, largest gate first.
    gate_NA: float32 weights of their outputs.
    prob_NX: float32 softmax over all experts (for auxiliary losses).
  """

  expert_NA: jax.Array
  gate_NA: jax.Array
  prob_NX: jax.Array


def route(
  logits_NX: jax.Array,
  experts_per_token: int,
  *,
  norm_topk: bool,
  bias_X: jax.Array | None = None,
  replay_NA: jax.Array | None = None,
) -> Routing:
  """Picks experts from router logits, or takes them from a recording.

  Args:
    logits_NX: float32; float32 because a near-tie decided in bfloat16 picks
      other experts than the engine did.
    experts_per_token: A.
    norm_topk: scale the A gates to sum to 1.
    bias_X: added to the probabilities for choosing only.
    replay_NA: int experts to use instead (routing replay, R3); a row that
      holds `NOT_REPLAYED` is chosen afresh. Gates always come from these
      logits, so the router learns through replayed rows too.
  """
  assert logits_NX.dtype == jnp.float32
  prob_NX = jax.nn.softmax(logits_NX, axis=-1)
  score_NX = prob_NX if bias_X is None else prob_NX + bias_X
  _, expert_NA = jax.lax.top_k(
    jax.lax.stop_gradient(score_NX), experts_per_token
  )
  if replay_NA is not None:
    replay_NA = replay_NA.astype(jnp.int32)
    known_N1 = (replay_NA >= 0).all(-1, keepdims=True)
    expert_NA = jnp.where(known_N1, replay_NA, expert_NA)
  gate_NA = jnp.take_along_axis(prob_NX, expert_NA, axis=-1)
  if norm_topk:
    gate_NA = gate_NA / gate_NA.sum(-1, keepdims=True)
  return Routing(expert_NA, gate_NA, prob_NX)


def run(
  x_ND: jax.Array,
  gate_XDF: jax.Array,
  up_XDF: jax.Array,
  down_XFD: jax.Array,
  routing: Routing,
  *,
  impl: str = 'auto',
) -> jax.Array:
  """Sum over a token's experts of gate * down(silu(gate_proj x) * up x).

  Args:
    x_ND: inputs in the compute dtype.
    gate_XDF, up_XDF, down_XFD: expert weights in the compute dtype.
    routing: see `route`.
    impl: one of the ways above; 'auto' picks by platform and sizes.

  Returns:
    [N, D] in the dtype of `x_ND`.
  """
  if impl == 'auto':
    impl = choose(x_ND.shape[0], gate_XDF.shape[0], routing.expert_NA.shape[1])
  return _IMPLS[impl](x_ND, gate_XDF, up_XDF, down_XFD, routing)


def choose(tokens: int, experts: int, experts_per_token: int) -> str:
  """The fastest way for this platform and these (static) sizes.

  On CPU, two cores, D 160, F 128, X 8, A 2, float32, milliseconds of CPU time
  forward (forward and backward): 1 token: gather 0.19, loop 0.47, block 0.63;
  8 tokens: loop 0.52, gather 0.85, block 1.0; 2048 tokens: block 17 (72), loop
  45 (193), dense 73 (396), ragged 107 (383).
  """
  if jax.default_backend() != 'cpu':
    return 'ragged'
  if tokens * experts_per_token <= experts // 2:
    return 'gather'
  if tokens < 32 and experts <= 16:
    return 'loop'
  return 'block'


def _weights_NX(routing: Routing, experts: int, dtype) -> jax.Array:
  hot_NAX = jax.nn.one_hot(routing.expert_NA, experts, dtype=jnp.float32)
  return jnp.einsum('nax,na->nx', hot_NAX, routing.gate_NA).astype(dtype)


def _dense(x_ND, gate_XDF, up_XDF, down_XFD, routing):
  weight_NX = _weights_NX(routing, gate_XDF.shape[0], x_ND.dtype)
  hidden_NXF = jax.nn.silu(jnp.einsum('nd,xdf->nxf', x_ND, gate_XDF))
  hidden_NXF *= jnp.einsum('nd,xdf->nxf', x_ND, up_XDF)
  hidden_NXF *= weight_NX[:, :, None]
  return jnp.einsum('nxf,xfd->nd', hidden_NXF, down_XFD)


def _loop(x_ND, gate_XDF, up_XDF, down_XFD, routing):
  weight_NX = _weights_NX(routing, gate_XDF.shape[0], x_ND.dtype)
  out_ND = jnp.zeros_like(x_ND)
  for i in range(gate_XDF.shape[0]):
    hidden_NF = jax.nn.silu(x_ND @ gate_XDF[i]) * (x_ND @ up_XDF[i])
    out_ND += (hidden_NF * weight_NX[:, i : i + 1]) @ down_XFD[i]
  return out_ND


def _gather(x_ND, gate_XDF, up_XDF, down_XFD, routing):
  pick = routing.expert_NA
  hidden_NAF = jax.nn.silu(jnp.einsum('nd,nadf->naf', x_ND, gate_XDF[pick]))
  hidden_NAF *= jnp.einsum('nd,nadf->naf', x_ND, up_XDF[pick])
  hidden_NAF *= routing.gate_NA[:, :, None].astype(x_ND.dtype)
  return jnp.einsum('naf,nafd->nd', hidden_NAF, down_XFD[pick])


def _ragged(x_ND, gate_XDF, up_XDF, down_XFD, routing):
  n, a = routing.expert_NA.shape
  flat_M = routing.expert_NA.reshape(-1)
  order_M = jnp.argsort(flat_M, stable=True)
  sizes_X = jnp.bincount(flat_M, length=gate_XDF.shape[0]).astype(jnp.int32)
  sorted_MD = x_ND[order_M // a]
  hidden_MF = jax.nn.silu(jax.lax.ragged_dot(sorted_MD, gate_XDF, sizes_X))
  hidden_MF *= jax.lax.ragged_dot(sorted_MD, up_XDF, sizes_X)
  out_MD = jax.lax.ragged_dot(hidden_MF, down_XFD, sizes_X)
  back_M = jnp.argsort(order_M)
  out_NAD = out_MD[back_M].reshape(n, a, -1)
  return jnp.einsum('nad,na->nd', out_NAD, routing.gate_NA.astype(x_ND.dtype))


def _block(x_ND, gate_XDF, up_XDF, down_XFD, routing):
  n, a = routing.expert_NA.shape
  experts = gate_XDF.shape[0]
  size = _block_size(n * a, experts)
  flat_M = routing.expert_NA.reshape(-1)
  order_M = jnp.argsort(flat_M, stable=True)
  sizes_X = jnp.bincount(flat_M, length=experts)
  blocks_X = -(-sizes_X // size)
  count = -(-n * a // size) + experts  # static bound on sum(blocks_X)
  ends_X = jnp.cumsum(blocks_X)
  expert_P = jnp.searchsorted(ends_X, jnp.arange(count), side='right')
  expert_P = jnp.minimum(expert_P, experts - 1)  # unused tail blocks
  # Slot of each sorted pair: where its expert's blocks begin, plus its rank.
  sorted_M = flat_M[order_M]
  rank_M = jnp.arange(n * a) - (jnp.cumsum(sizes_X) - sizes_X)[sorted_M]
  slot_M = (ends_X - blocks_X)[sorted_M] * size + rank_M
  pair_S = jnp.full(count * size, n * a, jnp.int32).at[slot_M].set(order_M)
  slot_NA = jnp.zeros(n * a, jnp.int32).at[order_M].set(slot_M).reshape(n, a)
  x_PSD = _spread(x_ND, slot_NA, pair_S).reshape(count, size, -1)
  hidden_PSF = jax.nn.silu(jnp.matmul(x_PSD, gate_XDF[expert_P]))
  hidden_PSF *= jnp.matmul(x_PSD, up_XDF[expert_P])
  out_PSD = jnp.matmul(hidden_PSF, down_XFD[expert_P])
  out_NAD = _collect(out_PSD.reshape(count * size, -1), slot_NA, pair_S)
  return jnp.einsum('nad,na->nd', out_NAD, routing.gate_NA.astype(x_ND.dtype))


def _block_size(pairs: int, experts: int) -> int:
  """Rows of a block: about a quarter of an expert's mean share."""
  for size in (128, 64, 32, 16):
    if pairs >= 4 * size * experts:
      return size
  return 8


# Moving tokens to slots and back. The transpose of a gather is a scatter-add,
# which XLA:CPU runs one row at a time; but slots and pairs are one to one, so
# each direction can be the other's transpose as a gather.


@jax.custom_vjp
def _spread(x_ND, slot_NA, pair_S):
  """Row of the pair in each slot; zeros in empty slots."""
  return _rows(x_ND, pair_S // slot_NA.shape[1])


def _spread_bwd(slot_NA, grad_SD):
  return grad_SD[slot_NA].sum(1), None, None


_spread.defvjp(
  lambda x, slot_NA, pair_S: (_spread(x, slot_NA, pair_S), slot_NA),
  _spread_bwd,
)


@jax.custom_vjp
def _collect(out_SD, slot_NA, pair_S):
  """Result of each (token, expert) pair."""
  return out_SD[slot_NA]


def _collect_bwd(pair_S, grad_NAD):
  return _rows(grad_NAD.reshape(-1, grad_NAD.shape[-1]), pair_S), None, None


_collect.defvjp(
  lambda out, slot_NA, pair_S: (_collect(out, slot_NA, pair_S), pair_S),
  _collect_bwd,
)


def _rows(x, index):
  return jnp.take(x, index, axis=0, mode='fill', fill_value=0)


_IMPLS = {
  'dense': _dense,
  'loop': _loop,
  'gather': _gather,
  'ragged': _ragged,
  'block': _block,
}
