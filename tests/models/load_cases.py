"""Runs in a process of its own: loads a folder and prints its peak memory.

load_cases.py FOLDER  ->  {"grown": bytes beyond the start, "params": bytes}
"""

import json
import resource
import sys

import jax

from clawjax.models import checkpoint


def peak() -> int:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(folder: str) -> None:
  jax.block_until_ready(jax.numpy.zeros(8) + 1)  # the runtime's own memory
  before = peak()
  params, _ = checkpoint.load_hf(folder)
  jax.block_until_ready(params)
  size = sum(x.nbytes for x in jax.tree.leaves(params))
  print(json.dumps({'grown': peak() - before, 'params': size}))


if __name__ == '__main__':
  main(sys.argv[1])
