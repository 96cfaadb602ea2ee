"""Kernels, each beside its plain twin."""

from clawjax.kernels.tree_attention import tree_attention

__all__ = ['tree_attention']
