"""Keys and values in pages on the device, and attention over them, plainly.

A pool holds one layer, keys and values of a head next to each other (k0 v0 k1
v1 ...): `[pages, 2K, page_size, C]` for the functions of this file, where a head
of a page is one stretch of memory (a CPU gathers it four times as fast), or
`[pages, page_size, 2K, C]`, the layout that JAX's TPU kernel reads. A sequence
is a row of page numbers; position t lives in page `table[t // size]` at
`t % size`. Page 0 is scratch: padding writes there and nobody reads it.

Decode on a CPU would drown in gathers if every step read pages, so a burst of
steps gathers its context once (`gather`), keeps new keys and values in a short
tail, and writes the tail to the pages when it ends (`write`). Prefill writes
first and then walks the pages in blocks with a running softmax, so its program
does not depend on the length of the context.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_LOW = -1e30  # stands for minus infinity; keeps empty rows free of nan


def join(k_NKC: jax.Array, v_NKC: jax.Array) -> jax.Array:
  """Keys and values side by side: [..., K, C] twice -> [..., 2K, C]."""
  both = jnp.stack([k_NKC, v_NKC], axis=-2)
  return both.reshape(*k_NKC.shape[:-2], -1, k_NKC.shape[-1])


def write(
  pool: jax.Array, kv_N2KC: jax.Array, page_N: jax.Array, offset_N: jax.Array
) -> jax.Array:
  """The pool with N tokens' keys and values stored at (page, offset)."""
  return pool.at[page_N, :, offset_N].set(kv_N2KC.astype(pool.dtype))


def write_for_kernel(
  pool: jax.Array, kv_N2KC: jax.Array, page_N: jax.Array, offset_N: jax.Array
) -> jax.Array:
  """The same for the kernel's layout."""
  return pool.at[page_N, offset_N].set(kv_N2KC.astype(pool.dtype))


def page_at(
  table_BP: jax.Array, position_BN: jax.Array, size: int, real_BN: jax.Array
) -> jax.Array:
  """Page numbers of positions; scratch where `real_BN` is false."""
  slot_BN = jnp.minimum(position_BN // size, table_BP.shape[1] - 1)
  return jnp.where(real_BN, jnp.take_along_axis(table_BP, slot_BN, axis=1), 0)


def gather(pool: jax.Array, table_BP: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Keys and values of whole rows of pages, each [B, K, P * size, C]."""
  batch, pages = table_BP.shape
  heads2, size, width = pool.shape[1:]

  def half(first):
    head_K1 = jnp.arange(first, heads2, 2)[:, None]
    rows = pool[table_BP[:, None], head_K1]  # [B, K, P, size, C]
    return rows.reshape(batch, heads2 // 2, pages * size, width)

  return half(0), half(1)


def decode_attention(
  q_BHC: jax.Array,
  context: tuple[jax.Array, jax.Array],
  length_B: jax.Array,
  tail: tuple[jax.Array, jax.Array],
  step: jax.Array,
) -> jax.Array:
  """One query per row over its gathered context and the burst's tail.

  Args:
    q_BHC: queries.
    context: keys and values [B, K, S, C]; row b holds `length_B[b]` tokens.
    length_B: int32.
    tail: keys and values [B, K, N, C]; slots 0..step are filled.
    step: int32 scalar.

  Returns:
    [B, H, C] in the dtype of the queries.
  """
  k_BKSC, v_BKSC = context
  k_BKNC, v_BKNC = tail
  batch, heads, width = q_BHC.shape
  kv_heads, size = k_BKSC.shape[1:3]
  q = q_BHC.reshape(batch, kv_heads, heads // kv_heads, width)
  q = (q.astype(jnp.float32) * width**-0.5).astype(k_BKSC.dtype)

  def scores(k):
    return jnp.einsum('bkgc,bksc->bkgs', q, k).astype(jnp.float32)

  old = scores(k_BKSC)
  new = scores(k_BKNC)
  seen = jnp.arange(size) < length_B[:, None]
  old = jnp.where(seen[:, None, None], old, _LOW)
  new = jnp.where(jnp.arange(new.shape[-1]) <= step, new, _LOW)
  top = jnp.maximum(old.max(-1), new.max(-1))[..., None]
  old, new = jnp.exp(old - top), jnp.exp(new - top)
  total = old.sum(-1) + new.sum(-1)
  out = jnp.einsum('bkgs,bksc->bkgc', old.astype(v_BKSC.dtype), v_BKSC)
  out += jnp.einsum('bkgs,bksc->bkgc', new.astype(v_BKNC.dtype), v_BKNC)
  out = out.astype(jnp.float32) / total[..., None]
  return out.reshape(batch, heads, width).astype(q_BHC.dtype)


def prefill_attention(
  q_THC: jax.Array,
  pool: jax.Array,
  table_P: jax.Array,
  start: jax.Array,
  length: jax.Array,
  *,
  block_pages: int,
  block_rows: int = 128,
) -> jax.Array:
  """Consecutive queries of one sequence over its pages, block by block.

  The queries' own keys are already in the pages. Blocks of padding, and of
  pages beyond a block of queries, are not computed: one program serves every
  context at the cost of what is there.

  Args:
    q_THC: queries at positions start, start + 1, ...; T is padded.
    pool: one layer's pages.
    table_P: int32, P a multiple of `block_pages`.
    start: int32 position of the first query.
    length: int32, tokens in the cache with this chunk (padding excluded).
    block_pages: pages per block.
    block_rows: rows of a matmul: queries times heads of a group.

  Returns:
    [T, H, C]; zeros in whole blocks of padding.
  """
  count, heads, width = q_THC.shape
  heads2, size = pool.shape[1:3]
  kv_heads, block = heads2 // 2, block_pages * size
  rows = min(max(16, block_rows * kv_heads // heads), count)
  blocks = -(-count // rows)
  q = q_THC.astype(jnp.float32) * width**-0.5
  q = q.astype(pool.dtype).reshape(count, kv_heads, -1, width)
  q = jnp.pad(q, ((0, blocks * rows - count), (0, 0), (0, 0), (0, 0)))
  q = q.reshape(blocks, rows, kv_heads, -1, width)
  # Heads of a group stand below each other: one matmul per key head.
  q = q.transpose(0, 2, 3, 1, 4).reshape(blocks, kv_heads, -1, width)
  row_M = jnp.tile(jnp.arange(rows), heads // kv_heads)

  used = -(-(length - start) // rows)

  def over_queries(j, k, v, carry):
    """Block j of the pages for every block of queries that sees it."""
    slot_S = j * block + jnp.arange(block)

    def body(carry):
      i, top, total, out = carry
      s = jnp.einsum('kmc,ksc->kms', q[i], k).astype(jnp.float32)
      seen = slot_S <= (start + i * rows + row_M)[:, None]
      s = jnp.where(seen, s, _LOW)
      new_top = jnp.maximum(top[i], s.max(-1))
      shrink = jnp.exp(top[i] - new_top)
      p = jnp.exp(s - new_top[..., None])
      part = jnp.einsum('kms,ksc->kmc', p.astype(v.dtype), v)
      return (
        i + 1,
        top.at[i].set(new_top),
        total.at[i].set(total[i] * shrink + p.sum(-1)),
        out.at[i].set(out[i] * shrink[..., None] + part.astype(jnp.float32)),
      )

    first = jnp.maximum(0, (j * block - start) // rows)
    return jax.lax.while_loop(lambda c: c[0] < used, body, (first, *carry))[1:]

  def over_pages(carry):
    j, *rest = carry
    pages = jax.lax.dynamic_slice(table_P, (j * block_pages,), (block_pages,))
    k, v = gather(pool, pages[None])
    return j + 1, *over_queries(j, k[0], v[0], rest)

  _, _, total, out = jax.lax.while_loop(
    lambda carry: carry[0] * block < length,
    over_pages,
    (
      jnp.int32(0),
      jnp.full(q.shape[:-1], _LOW, jnp.float32),
      jnp.zeros(q.shape[:-1], jnp.float32),
      jnp.zeros(q.shape, jnp.float32),
    ),
  )
  out = out / jnp.maximum(total, 1e-30)[..., None]
  out = out.reshape(blocks, kv_heads, -1, rows, width).transpose(0, 3, 1, 2, 4)
  out = out.reshape(blocks * rows, heads, width)[:count]
  return out.astype(q_THC.dtype)
