"""Captured calls -> prefix tree -> rows of slots. Pure numpy.

build(calls) -> Trie            one rollout's calls as a tree
filter(trie) -> Trie, report    which calls are trained, with reasons
pack(tries)  -> TreeBatch       rows and loss terms for a training step
"""

from clawjax.trie.batch import Branch, TreeBatch
from clawjax.trie.build import build, inserted
from clawjax.trie.filter import (
  FilterConfig,
  FilterReport,
  adaptive_leaf_limit,
  filter,  # noqa: A004
)
from clawjax.trie.pack import PackConfig, pack
from clawjax.trie.trie import Trie

__all__ = [
  'Branch',
  'FilterConfig',
  'FilterReport',
  'PackConfig',
  'TreeBatch',
  'Trie',
  'adaptive_leaf_limit',
  'build',
  'filter',
  'inserted',
  'pack',
]
