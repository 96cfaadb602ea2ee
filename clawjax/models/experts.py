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
  block   pairs sorted by expert, each expert's share padded to whole blocks,
          one batched matmul over blocks: FLOPs near the ideal A / X.
  ragged  `jax.lax.ragged_dot` over sorted pairs: the accelerator's path.
  roomy   one batched matmul over experts, each with room for somewhat more
          than its mean share; what is beyond goes through one expert at a
          time. No pair is sorted and hardly a weight copied, so this is the
          fastest on a CPU; forward only (the number of extra rounds is data).
exchange.py does the same on a mesh, with the experts spread over it.

Axes: N tokens, D width, X experts, A experts per token, F expert width,
M = N A pairs of a token and one of its experts, R rows received from elsewhere,
P blocks of S slots.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Format, Layout

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


class Weights(NamedTuple):
  """Weights of the experts of one layer, in the compute dtype.

  Attributes:
    gate_XDF, up_XDF, down_XFD: the three matrices of a SwiGLU.
  """

  gate_XDF: jax.Array
  up_XDF: jax.Array
  down_XFD: jax.Array


def formats(places: Any) -> Any:
  """Shardings of parameters, with the layout that grouped matmuls want.

  On a TPU they read weights [X, D, F] by rows. Left alone, XLA keeps an F that
  is no multiple of 128 the other way round (it needs no padding then), and every
  program begins with a copy of all experts.

  Args:
    places: shardings in the parameters' tree, layers listed.
  """
  by_rows = Layout(major_to_minor=(0, 1, 2))

  def of(layer):
    if 'router' not in layer:
      return layer
    wide = {k: Format(by_rows, layer[k]) for k in ('gate', 'up', 'down')}
    return {**layer, **wide}

  return {**places, 'layers': [of(layer) for layer in places['layers']]}


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
  x_ND: jax.Array, weights: Weights, routing: Routing, *, impl: str = 'auto'
) -> jax.Array:
  """Sum over a token's experts of gate * down(silu(gate_proj x) * up x).

  Args:
    x_ND: inputs in the compute dtype.
    weights: of all experts.
    routing: see `route`.
    impl: one of the ways above; 'auto' picks by platform and sizes.

  Returns:
    [N, D] in the dtype of `x_ND`.
  """
  expert_NA, gate_NA, _ = routing
  experts = weights.gate_XDF.shape[0]
  if impl == 'auto':
    impl = choose(x_ND.shape[0], experts, expert_NA.shape[1])
  gate_NA = gate_NA.astype(x_ND.dtype)
  if impl == 'roomy':
    if _few(x_ND.shape[0], expert_NA.shape[1], experts):
      impl = 'gather'
    else:
      return _roomy(x_ND, weights, expert_NA, gate_NA)
  if impl in ('block', 'ragged'):
    out_NAD = run_pairs(x_ND, weights, expert_NA, impl)
    return jnp.einsum('nad,na->nd', out_NAD, gate_NA)
  if impl == 'gather':
    return _gathered(x_ND, weights, expert_NA, gate_NA)
  hot_NAX = jax.nn.one_hot(expert_NA, experts, dtype=x_ND.dtype)
  share_NX = jnp.einsum('nax,na->nx', hot_NAX, gate_NA)
  if impl == 'dense':
    hidden_NXF = jax.nn.silu(jnp.einsum('nd,xdf->nxf', x_ND, weights.gate_XDF))
    hidden_NXF *= jnp.einsum('nd,xdf->nxf', x_ND, weights.up_XDF)
    hidden_NXF *= share_NX[:, :, None]
    return jnp.einsum('nxf,xfd->nd', hidden_NXF, weights.down_XFD)
  assert impl == 'loop', impl
  out_ND = jnp.zeros_like(x_ND)
  for i in range(experts):
    gate_DF, up_DF, down_FD = (w[i] for w in weights)
    hidden_NF = jax.nn.silu(x_ND @ gate_DF) * (x_ND @ up_DF)
    out_ND += (hidden_NF * share_NX[:, i : i + 1]) @ down_FD
  return out_ND


def choose(tokens: int, experts: int, experts_per_token: int) -> str:
  """The fastest way for this platform and these (static) sizes.

  On CPU, two cores, D 160, F 128, X 8, A 2, float32, milliseconds of CPU time
  forward (forward and backward): 1 token: gather 0.19, loop 0.47, block 0.63;
  8 tokens: loop 0.52, gather 0.85, block 1.0; 2048 tokens: block 17 (72), loop
  45 (193), dense 73 (396), ragged 107 (383).
  """
  if jax.default_backend() != 'cpu':
    return 'ragged'
  if _few(tokens, experts_per_token, experts):
    return 'gather'
  if tokens < 32 and experts <= 16:
    return 'loop'
  return 'block'


def _few(tokens: int, experts_per_token: int, experts: int) -> bool:
  """Whether most experts' weights would be read for nothing."""
  return tokens * experts_per_token <= experts // 2


# ---- pairs grouped by expert -----------------------------------------------


def run_pairs(
  x_ND: jax.Array, weights: Weights, expert_NA: jax.Array, impl: str
) -> jax.Array:
  """Outputs [N, A, D] of every pair, not yet weighed; an id of X gives zeros.

  Args:
    impl: 'block' or 'ragged'.
  """
  grouped = _block if impl == 'block' else _ragged
  return grouped(x_ND, weights, expert_NA)


def _gathered(x_ND, weights, expert_NA, gate_NA):
  """A matmul per pair, with the weights of its expert.

  Each has its row twice: of one row XLA:CPU makes a loop on one core, of two a
  matmul (CPU microseconds, D 256, F 256, two pairs: 94 against 133; as an
  einsum over tokens and picks 329).
  """
  n, a = expert_NA.shape
  picked = Weights(*(w[expert_NA.reshape(-1)] for w in weights))
  x_M2D = jnp.broadcast_to(x_ND[:, None, None], (n, a, 2, x_ND.shape[1]))
  x_M2D = x_M2D.reshape(n * a, 2, -1)
  hidden_M2F = jax.nn.silu(jnp.matmul(x_M2D, picked.gate_XDF))
  hidden_M2F *= jnp.matmul(x_M2D, picked.up_XDF)
  out_MD = jnp.matmul(hidden_M2F, picked.down_XFD)[:, 0]
  return jnp.einsum('nad,na->nd', out_MD.reshape(n, a, -1), gate_NA)


def _roomy(x_ND, weights, expert_NA, gate_NA):
  """See the top of the file.

  CPU milliseconds forward (two loaded cores, D 256, F 256, X 8, A 2, float32,
  uneven shares) against loop and block: 8 tokens 0.7, 1.4, 1.7; 32 tokens 1.1,
  2.4, 7.0; 256 tokens 4.5, 9.4, 14; 512 tokens 8.3, 18, 19.
  """
  n, a = expert_NA.shape
  experts = weights.gate_XDF.shape[0]
  mean = n * a / experts
  room = min(n, 4 * math.ceil((mean + 2 * math.sqrt(mean)) / 4))
  flat_M = expert_NA.reshape(-1)
  mine_MX = jax.nn.one_hot(flat_M, experts, dtype=jnp.int32)
  rank_M = ((jnp.cumsum(mine_MX, axis=0) - mine_MX) * mine_MX).sum(-1)

  def add(out_ND, weights, here_M, slot_M):
    """Adds the pairs `here_M`, each at its slot of the experts in `weights`."""
    count = weights.gate_XDF.shape[0]
    slot_M = jnp.where(here_M, slot_M, count * room)
    pair_S = jnp.zeros(count * room, jnp.int32)  # empty slots: any token
    pair_S = pair_S.at[slot_M].set(jnp.arange(n * a), mode='drop')
    x_XRD = x_ND[pair_S // a].reshape(count, room, -1)
    hidden_XRF = jax.nn.silu(jnp.matmul(x_XRD, weights.gate_XDF))
    hidden_XRF *= jnp.matmul(x_XRD, weights.up_XDF)
    out_SD = jnp.matmul(hidden_XRF, weights.down_XFD)
    out_SD = out_SD.reshape(count * room, -1)
    out_NAD = _rows(out_SD, slot_M.reshape(n, a))
    return out_ND + jnp.einsum('nad,na->nd', out_NAD, gate_NA)

  out_ND = add(
    jnp.zeros_like(x_ND), weights, rank_M < room, flat_M * room + rank_M
  )
  if room == n:
    return out_ND
  extra_X = (mine_MX.sum(0) - 1) // room  # -1 // room is -1: nothing there
  ends_X = jnp.cumsum(jnp.maximum(extra_X, 0))

  def more(carry):
    i, out_ND = carry
    expert = jnp.searchsorted(ends_X, i, side='right')
    local_M = rank_M - room * (i - ends_X[expert] + extra_X[expert] + 1)
    here_M = (flat_M == expert) & (local_M >= 0) & (local_M < room)
    one = Weights(*(w[expert][None] for w in weights))
    return i + 1, add(out_ND, one, here_M, local_M)

  _, out_ND = jax.lax.while_loop(
    lambda carry: carry[0] < ends_X[-1], more, (jnp.int32(0), out_ND)
  )
  return out_ND


def _ragged(x_ND, weights, expert_NA):
  """See `run_pairs`."""
  n, a = expert_NA.shape
  experts = weights.gate_XDF.shape[0]
  flat_M = expert_NA.reshape(-1)
  order_M = jnp.argsort(flat_M, stable=True)
  place_M = inverse(order_M)
  sizes_X = jnp.bincount(flat_M, length=experts).astype(jnp.int32)
  x_MD = spread(x_ND, place_M.reshape(n, a), order_M)
  hidden_MF = jax.nn.silu(jax.lax.ragged_dot(x_MD, weights.gate_XDF, sizes_X))
  hidden_MF *= jax.lax.ragged_dot(x_MD, weights.up_XDF, sizes_X)
  out_MD = jax.lax.ragged_dot(hidden_MF, weights.down_XFD, sizes_X)
  # Rows past the last group: a kernel may leave anything there.
  used_M = jnp.arange(n * a) < sizes_X.sum()
  out_MD = jnp.where(used_M[:, None], out_MD, 0)
  return collect(out_MD, place_M.reshape(n, a), order_M)


def _block(x_ND, weights, expert_NA):
  """The same as `_ragged`, for a CPU."""
  n, a = expert_NA.shape
  experts = weights.gate_XDF.shape[0]
  size = _block_size(n * a, experts)
  flat_M = expert_NA.reshape(-1)
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
  slot_M = jnp.where(sorted_M < experts, slot_M, count * size)
  pair_S = jnp.full(count * size, n * a, jnp.int32).at[slot_M].set(order_M)
  slot_NA = jnp.zeros(n * a, jnp.int32).at[order_M].set(slot_M).reshape(n, a)
  x_PSD = spread(x_ND, slot_NA, pair_S).reshape(count, size, -1)
  hidden_PSF = jax.nn.silu(jnp.matmul(x_PSD, weights.gate_XDF[expert_P]))
  hidden_PSF *= jnp.matmul(x_PSD, weights.up_XDF[expert_P])
  out_PSD = jnp.matmul(hidden_PSF, weights.down_XFD[expert_P])
  return collect(out_PSD.reshape(count * size, -1), slot_NA, pair_S)


def _block_size(pairs: int, experts: int) -> int:
  """Rows of a block: about half of an expert's mean share, 16 to 128."""
  for size in (128, 64, 32):
    if pairs >= 2 * size * experts:
      return size
  return 16


def inverse(order: jax.Array) -> jax.Array:
  """The inverse of a permutation."""
  places = jnp.arange(order.shape[0], dtype=order.dtype)
  return jnp.zeros_like(order).at[order].set(places, unique_indices=True)


# Moving tokens to slots and back. The transpose of a gather is a scatter-add,
# which XLA:CPU runs one row at a time (and a TPU sorts for); but slots and pairs
# are one to one, so each direction can be the other's transpose as a gather.


# Where there are as many slots as pairs every index is in range, and nothing is
# filled in.


@jax.custom_vjp
def spread(x_ND: jax.Array, slot_NA: jax.Array, pair_S: jax.Array) -> jax.Array:
  """Row of the pair in each slot [S, D]; zeros in empty slots (pair N A)."""
  return _rows(x_ND, pair_S // slot_NA.shape[1], pair_S.size == slot_NA.size)


def _spread_bwd(slot_NA, grad_SD):
  full = len(grad_SD) == slot_NA.size
  return _rows(grad_SD, slot_NA, full).sum(1), None, None


spread.defvjp(
  lambda x, slot_NA, pair_S: (spread(x, slot_NA, pair_S), slot_NA),
  _spread_bwd,
)


@jax.custom_vjp
def collect(
  out_SD: jax.Array, slot_NA: jax.Array, pair_S: jax.Array
) -> jax.Array:
  """Result of each (token, expert) pair; zeros where it has no slot."""
  return _rows(out_SD, slot_NA, pair_S.size == slot_NA.size)


def _collect_bwd(pair_S, grad_NAD):
  grad_MD = grad_NAD.reshape(-1, grad_NAD.shape[-1])
  return _rows(grad_MD, pair_S, pair_S.size == len(grad_MD)), None, None


collect.defvjp(
  lambda out, slot_NA, pair_S: (collect(out, slot_NA, pair_S), pair_S),
  _collect_bwd,
)


def _rows(x, index, full=False):
  if full:
    return jnp.take(x, index, axis=0, mode='clip')
  return jnp.take(x, index, axis=0, mode='fill', fill_value=0)
