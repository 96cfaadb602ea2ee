"""CPU time of tree attention: blocks against the whole mask, trees against chains.

  python tests/bench/attention.py --json [--full]

Forward and backward, one row, 4 query heads of 32 on 2 key heads, float32.
`chunked_over_naive` is chunked / naive CPU time by T (below 1: chunked wins).
`trees` compares a tree with a chain of as many slots, both chunked:
`pairs` is the share of pairs that the tree needs, `blocks` that of live blocks,
`cpu_time` that of CPU time; they should agree.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from clawjax.kernels import blocks, tree_attention

H, K, C, BLOCK = 4, 2, 32, 128


def chain(T):
  return np.full((1, T), T, np.int32)


def star(T, stem, leaves):
  """A stem of `stem` slots and `leaves` equal branches."""
  out = np.full((1, T), T, np.int32)
  length = (T - stem) // leaves
  for i in range(leaves):
    stop = stem + (i + 1) * length if i < leaves - 1 else T
    out[0, stem + i * length : stop] = stop
  return out


def seconds(impl, end, repeats=3):
  """Least CPU seconds of forward and backward, after compilation."""
  T = end.shape[1]
  rng = np.random.default_rng(0)
  draw = lambda n: jnp.asarray(rng.normal(size=(1, T, n, C)), jnp.float32)  # noqa: E731
  args, d_out = (draw(H), draw(K), draw(K)), draw(H)

  @jax.jit
  def run(q, k, v, end):
    _, back = jax.vjp(
      lambda *x: tree_attention(*x, end, impl=impl, block=BLOCK), q, k, v
    )
    return back(d_out)

  end = jnp.asarray(end)
  jax.block_until_ready(run(*args, end))
  best = float('inf')
  for _ in range(repeats):
    start = time.process_time()
    jax.block_until_ready(run(*args, end))
    best = min(best, time.process_time() - start)
  return best


def shares(end, T):
  full = T * (T + 1) / 2
  depth = (np.asarray(blocks.tree_mask(jnp.asarray(end)))).sum()
  live = (blocks.block_kinds(jnp.asarray(end), BLOCK, BLOCK) != 0).sum()
  n = T // BLOCK
  return {
    'pairs': float(depth / full),
    'blocks': float(live / (n * (n + 1) / 2)),
    'cpu_time': seconds('chunked', end) / seconds('chunked', chain(T)),
  }


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--json', action='store_true')
  parser.add_argument('--full', action='store_true')
  full = parser.parse_args().full
  sizes = (256, 1024, 2048) if full else (256, 1024)
  T = 8192 if full else 2048
  report = {
    'chunked_over_naive': {
      t: seconds('chunked', chain(t)) / seconds('naive', chain(t))
      for t in sizes
    },
    'trees': {
      'star, half shared': shares(star(T, T // 2, 8), T),
      'star, short stem': shares(star(T, T // 8, 7), T),
    },
  }
  print(json.dumps(report))


if __name__ == '__main__':
  main()
