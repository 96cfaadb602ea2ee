"""Runs in a process of its own: loads a folder, saves it again, prints peaks.

load_cases.py FOLDER TARGET SHARD_BYTES ->
  {"load": bytes beyond the start, "save": bytes beyond what was there when it
   began, "params": bytes}
"""

import json
import pathlib
import re
import sys

import jax

from clawjax.models import checkpoint


def status(name: str) -> int:
  """VmRSS (now) or VmHWM (peak) in bytes."""
  text = pathlib.Path('/proc/self/status').read_text()
  return int(re.search(rf'{name}:\s+(\d+) kB', text)[1]) * 1024


def begin() -> int:
  """Resets the peak; returns what is resident."""
  pathlib.Path('/proc/self/clear_refs').write_text('5')
  return status('VmRSS')


def main(folder: str, target: str, shard_bytes: str) -> None:
  jax.block_until_ready(jax.numpy.zeros(8) + 1)  # the runtime's own memory
  start = begin()
  params, config = checkpoint.load_hf(folder, dtype='bfloat16')
  jax.block_until_ready(params)
  load = status('VmHWM') - start
  size = sum(x.nbytes for x in jax.tree.leaves(params))
  start = begin()
  checkpoint.save_hf(params, config, target, shard_bytes=int(shard_bytes))
  save = status('VmHWM') - start
  print(json.dumps({'load': load, 'save': save, 'params': size}))


if __name__ == '__main__':
  main(*sys.argv[1:])
