"""Reads GGUF files (llama.cpp's format) into our parameters.

Uses the `gguf` package (extra `[gguf]`) for the container and for undoing the
quantisation; names and axes come from `checkpoint.mapping`, so the same checks
apply. Architectures llama, qwen2, qwen3 and qwen3moe. llama.cpp stores the rows
of a llama's q and k for its own rotary order (pairs next to each other); they
are put back to halves here.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from clawjax.errors import CheckpointError
from clawjax.models import checkpoint
from clawjax.models.config import Config
from clawjax.models.qwen3 import Params

_FAMILY = {
  'llama': 'llama',
  'qwen2': 'qwen2',
  'qwen3': 'qwen3',
  'qwen3moe': 'qwen3_moe',
}
_TOP = {
  'model.embed_tokens.weight': 'token_embd.weight',
  'model.norm.weight': 'output_norm.weight',
  'lm_head.weight': 'output.weight',
}
_PARTS = {
  'input_layernorm': 'attn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'post_attention_layernorm': 'ffn_norm',
  'mlp.gate': 'ffn_gate_inp',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
}


def load(
  path: str | os.PathLike, *, dtype: str = 'float32', scan_layers: bool = False
) -> tuple[Params, Config]:
  """Parameters and config of a GGUF file.

  Raises:
    CheckpointError: the file is of another architecture, or tensors are
      missing, surplus or of a wrong shape.
  """
  try:
    import gguf
  except ImportError as e:
    raise CheckpointError('reading GGUF needs the package gguf') from e
  try:
    reader = gguf.GGUFReader(os.fspath(path))
  except (ValueError, IndexError) as e:
    raise CheckpointError(f'{path} is no readable GGUF file: {e}') from e
  tensors = {t.name: t for t in reader.tensors}
  config = _config(reader, tensors, path).replace(
    param_dtype=dtype, scan_layers=scan_layers
  )
  sources = checkpoint.mapping(config)
  names = {s.name: _gguf_name(s) for s in sources}
  missing = sorted(set(names.values()) - set(tensors))
  surplus = sorted(set(tensors) - set(names.values()))
  if missing or surplus:
    raise CheckpointError(
      f'{path} does not hold this model: missing {missing[:4] or "nothing"}; '
      f'surplus {surplus[:4] or "nothing"}'
    )
  placer = checkpoint._Placer(config, None)
  for source in sources:
    tensor = tensors[names[source.name]]
    array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    if source.expert is not None:
      array = array[source.expert]
    if config.family == 'llama' and source.key in ('q', 'k'):
      array = _halves(array, config.head_size)
    placer.put(source, _Stored(array), os.fspath(path))
  return placer.params, config


def _gguf_name(source: checkpoint.Source) -> str:
  if source.layer is None:
    return _TOP[source.name]
  inner = source.name.split('.', 3)[3]
  part, kind = inner.rsplit('.', 1)
  if source.expert is not None:
    part = 'mlp.' + part.rsplit('.', 1)[1]
    return f'blk.{source.layer}.{_PARTS[part]}_exps.{kind}'
  return f'blk.{source.layer}.{_PARTS[part]}.{kind}'


def _halves(array: np.ndarray, head_size: int) -> np.ndarray:
  """Rows 0 1 2 3 ... of each head, as pairs -> all firsts, all seconds."""
  pairs = array.reshape(-1, head_size // 2, 2, *array.shape[1:])
  return pairs.swapaxes(1, 2).reshape(array.shape)


class _Stored:
  """An array with the face of a safetensors slice."""

  def __init__(self, array: np.ndarray):
    self.array = array

  def get_shape(self) -> tuple[int, ...]:
    return self.array.shape

  def get_dtype(self) -> str:
    return 'F32'

  def __getitem__(self, index: Any) -> np.ndarray:
    return self.array[index]


def _config(reader: Any, tensors: dict[str, Any], path: Any) -> Config:
  def field(name: str, default: Any = None) -> Any:
    found = reader.get_field(name)
    return default if found is None else found.contents()

  arch = field('general.architecture')
  if arch not in _FAMILY:
    raise CheckpointError(
      f'{path} holds a {arch!r} model; wanted one of {", ".join(_FAMILY)}'
    )
  get = lambda name, default=None: field(f'{arch}.{name}', default)  # noqa: E731
  if get('rope.scaling.type', 'none') not in ('none', None) or (
    'rope_freqs.weight' in tensors
  ):
    raise CheckpointError(f'{path}: rotary scaling in GGUF is not supported')
  width, heads = get('embedding_length'), get('attention.head_count')
  eos = field('tokenizer.ggml.eos_token_id')
  moe = arch == 'qwen3moe'
  return Config(
    vocab=int(tensors['token_embd.weight'].shape[-1]),
    width=width,
    layers=get('block_count'),
    heads=heads,
    kv_heads=get('attention.head_count_kv', heads),
    head_size=get('attention.key_length', width // heads),
    mlp_width=get('feed_forward_length', 0),
    experts=get('expert_count', 0) if moe else 0,
    experts_per_token=get('expert_used_count', 0) if moe else 0,
    expert_width=get('expert_feed_forward_length', 0) if moe else 0,
    qk_norm=arch in ('qwen3', 'qwen3moe'),
    qkv_bias=arch == 'qwen2',
    tied='output.weight' not in tensors,
    rope_theta=get('rope.freq_base', 10_000.0),
    norm_eps=get('attention.layer_norm_rms_epsilon'),
    window=get('context_length'),
    eos_ids=() if eos is None else (int(eos),),
    family=_FAMILY[arch],
  )
