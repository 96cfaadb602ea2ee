"""The shape of a model: one frozen record, its presets and its HF twin.

`Config` covers the Qwen3 family (dense and MoE) and, by switches, its close
relatives: Qwen2 (biases on q, k, v; no QK-norm) and Llama (neither). A config
is made from a preset (`Config.preset('qwen3-8b')`), from the `config.json` of a
Hugging Face folder (`Config.from_hf(dict)`), or small (`Config.tiny(...)`).
`to_hf` is the inverse of `from_hf` up to keys that change nothing here.

What is not supported is refused by name, never ignored: sliding windows, mixed
dense and sparse layers, rotary scalings other than those in `RopeScaling`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from clawjax.errors import ConfigError

Dtype = Literal['float32', 'bfloat16']
ExpertImpl = Literal[
  'auto', 'dense', 'loop', 'gather', 'block', 'ragged', 'roomy'
]
Remat = Literal['none', 'full', 'dots', 'attention']


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How rotary frequencies are stretched beyond the trained window.

  Attributes:
    kind: 'linear', 'yarn' or 'llama3'.
    factor: window now / window trained.
    original_window: tokens that the model was trained on.
    beta_fast, beta_slow: YaRN, rotations over the original window above which
      a frequency is kept and below which it is divided by `factor`.
    attention_factor: YaRN, factor on cos and sin; None: 0.1 ln(factor) + 1.
    low_freq_factor, high_freq_factor: Llama 3's bounds.
    truncate: YaRN, whether the two bounds are rounded to whole dimensions.
  """

  kind: Literal['linear', 'yarn', 'llama3']
  factor: float
  original_window: int
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  attention_factor: float | None = None
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  truncate: bool = True


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes, switches and number formats of a decoder.

  Attributes:
    vocab: V, rows of the embedding.
    width: D, size of the residual stream.
    layers: L.
    heads: H, query heads.
    kv_heads: K, key/value heads; divides `heads`.
    head_size: C.
    mlp_width: F of a dense MLP.
    experts: X; 0 means a dense MLP.
    experts_per_token: A.
    expert_width: F of one expert.
    norm_topk: whether the A gates are scaled to sum to 1.
    router_bias: a learned-elsewhere bias [X] that is added to the router's
      probabilities for *choosing* experts only, not to the gates.
    qk_norm: RMS norm of q and k over C.
    qkv_bias, out_bias: biases of the attention projections.
    tied: logits use the embedding.
    rope_theta: base of the rotary frequencies.
    rope_scaling: None or how they are stretched.
    norm_eps: epsilon of every RMS norm.
    window: most positions that the model was made for (information only).
    eos_ids: ids that end a sample, from the HF config (may be empty).
    family: HF `model_type` to write on export.
    dtype: number format of matmuls and the residual stream.
    param_dtype: number format of stored parameters.
    scan_layers: parameters of all layers stacked along a leading L and the
      layers run as one `lax.scan`; else a list, unrolled. Scan keeps programs
      small on accelerators; on CPU it would use one core.
    remat: what a layer keeps for its backward pass.
    expert_impl: see `experts.py`; 'auto' picks by platform and size.
  """

  vocab: int
  width: int
  layers: int
  heads: int
  kv_heads: int
  head_size: int
  mlp_width: int = 0
  experts: int = 0
  experts_per_token: int = 0
  expert_width: int = 0
  norm_topk: bool = True
  router_bias: bool = False
  qk_norm: bool = True
  qkv_bias: bool = False
  out_bias: bool = False
  tied: bool = False
  rope_theta: float = 1_000_000.0
  rope_scaling: RopeScaling | None = None
  norm_eps: float = 1e-6
  window: int = 40960
  eos_ids: tuple[int, ...] = ()
  family: Literal['qwen3', 'qwen3_moe', 'qwen2', 'llama'] = 'qwen3'
  dtype: Dtype = 'float32'
  param_dtype: Dtype = 'float32'
  scan_layers: bool = False
  remat: Remat = 'none'
  expert_impl: ExpertImpl = 'auto'

  def __post_init__(self):
    if self.heads % self.kv_heads:
      raise ConfigError(
        f'wanted heads divisible by kv_heads, got {self.heads} and '
        f'{self.kv_heads}'
      )
    if self.head_size % 2:
      raise ConfigError(f'wanted an even head_size, got {self.head_size}')
    if self.experts:
      if not 0 < self.experts_per_token <= self.experts:
        raise ConfigError(
          f'wanted 1 <= experts_per_token <= {self.experts}, got '
          f'{self.experts_per_token}'
        )
      if self.expert_width <= 0:
        raise ConfigError('experts need expert_width > 0')
    elif self.mlp_width <= 0:
      raise ConfigError('a dense model needs mlp_width > 0')

  def replace(self, **fields: Any) -> Config:
    """A copy with some fields changed."""
    return dataclasses.replace(self, **fields)

  @property
  def active_params(self) -> int:
    """Parameters that one token passes through (embedding rows excluded)."""
    return self._count(self.experts_per_token) - (
      0 if self.tied else self.vocab * self.width
    )

  @property
  def total_params(self) -> int:
    """All parameters."""
    return self._count(self.experts)

  def _count(self, experts: int) -> int:
    d, c = self.width, self.head_size
    layer = d * c * (2 * self.heads + 2 * self.kv_heads) + 2 * d
    layer += 2 * c if self.qk_norm else 0
    layer += c * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
    layer += d if self.out_bias else 0
    if self.experts:
      layer += 3 * d * self.expert_width * experts + d * self.experts
      layer += self.experts if self.router_bias else 0
    else:
      layer += 3 * d * self.mlp_width
    tables = self.vocab * d * (1 if self.tied else 2)
    return self.layers * layer + tables + d

  # ---- making one ----------------------------------------------------------

  @classmethod
  def tiny(cls, **fields: Any) -> Config:
    """A small MoE for a laptop CPU (2.6 M parameters); any field may change."""
    base: dict[str, Any] = {
      'vocab': 2048,
      'width': 160,
      'layers': 4,
      'heads': 5,
      'kv_heads': 1,
      'head_size': 32,
      'mlp_width': 480,
      'experts': 8,
      'experts_per_token': 2,
      'expert_width': 128,
      'tied': True,
      'rope_theta': 10_000.0,
      'window': 4096,
      'family': 'qwen3_moe',
    }
    base.update(fields)
    if not base['experts']:
      base.setdefault('experts_per_token', 0)
      base.update(experts_per_token=0, expert_width=0)
      if base['family'] == 'qwen3_moe':
        base['family'] = 'qwen3'
    return cls(**base)

  @classmethod
  def preset(cls, name: str, **fields: Any) -> Config:
    """A published size by name, e.g. 'qwen3-8b'; see `PRESETS`."""
    if name == 'tiny':
      return cls.tiny(**fields)
    if name not in PRESETS:
      raise ConfigError(
        f'unknown model preset {name!r}; known: tiny, {", ".join(PRESETS)}'
      )
    return PRESETS[name].replace(**fields)

  @classmethod
  def from_hf(cls, hf: Mapping[str, Any], **fields: Any) -> Config:
    """From the content of a Hugging Face `config.json`.

    Args:
      hf: the parsed file, of model type qwen3, qwen3_moe, qwen2 or llama.
      **fields: fields to set over what the file says.

    Raises:
      ConfigError: the file asks for something this model does not do.
    """
    family = hf.get('model_type')
    if family not in ('qwen3', 'qwen3_moe', 'qwen2', 'llama'):
      raise ConfigError(
        f'model_type {family!r} is not supported; wanted qwen3, qwen3_moe, '
        'qwen2 or llama'
      )
    _refuse(hf)
    heads = hf['num_attention_heads']
    moe = family == 'qwen3_moe'
    bias = bool(hf.get('attention_bias', False))
    theta, scaling = _rope(hf)
    eos = hf.get('eos_token_id')
    base = {
      'vocab': hf['vocab_size'],
      'width': hf['hidden_size'],
      'layers': hf['num_hidden_layers'],
      'heads': heads,
      'kv_heads': hf.get('num_key_value_heads') or heads,
      'head_size': hf.get('head_dim') or hf['hidden_size'] // heads,
      'mlp_width': hf.get('intermediate_size') or 0,
      'qk_norm': family in ('qwen3', 'qwen3_moe'),
      'qkv_bias': True if family == 'qwen2' else bias,
      'out_bias': False if family == 'qwen2' else bias,
      'tied': bool(hf.get('tie_word_embeddings', False)),
      'rope_theta': theta,
      'rope_scaling': scaling,
      'norm_eps': hf.get('rms_norm_eps', 1e-6),
      'window': hf.get('max_position_embeddings', 40960),
      'eos_ids': ()
      if eos is None
      else tuple(eos)
      if isinstance(eos, (list, tuple))
      else (eos,),
      'family': family,
    }
    if moe:
      base.update(
        experts=hf.get('num_experts', hf.get('num_local_experts')),
        experts_per_token=hf['num_experts_per_tok'],
        expert_width=hf['moe_intermediate_size'],
        norm_topk=bool(hf.get('norm_topk_prob', False)),
      )
    base.update(fields)
    return cls(**base)

  def to_hf(self) -> dict[str, Any]:
    """The `config.json` of this model."""
    if self.router_bias:
      raise ConfigError('HF Qwen3Moe has no router bias; it cannot be exported')
    names = {
      'qwen3': 'Qwen3ForCausalLM',
      'qwen3_moe': 'Qwen3MoeForCausalLM',
      'qwen2': 'Qwen2ForCausalLM',
      'llama': 'LlamaForCausalLM',
    }
    hf: dict[str, Any] = {
      'architectures': [names[self.family]],
      'model_type': self.family,
      'vocab_size': self.vocab,
      'hidden_size': self.width,
      'num_hidden_layers': self.layers,
      'num_attention_heads': self.heads,
      'num_key_value_heads': self.kv_heads,
      'head_dim': self.head_size,
      'intermediate_size': self.mlp_width or self.expert_width,
      'hidden_act': 'silu',
      'rms_norm_eps': self.norm_eps,
      'rope_theta': self.rope_theta,
      'max_position_embeddings': self.window,
      'tie_word_embeddings': self.tied,
      'attention_bias': self.qkv_bias,
      'attention_dropout': 0.0,
      'use_sliding_window': False,
      'initializer_range': 0.02,
      'torch_dtype': self.param_dtype,
    }
    if self.eos_ids:
      many = len(self.eos_ids) > 1
      hf['eos_token_id'] = list(self.eos_ids) if many else self.eos_ids[0]
    if self.rope_scaling is not None:
      hf['rope_scaling'] = _rope_to_hf(self.rope_scaling)
    if self.family == 'qwen3_moe':
      hf.update(
        num_experts=self.experts,
        num_experts_per_tok=self.experts_per_token,
        moe_intermediate_size=self.expert_width,
        norm_topk_prob=self.norm_topk,
        decoder_sparse_step=1,
        mlp_only_layers=[],
      )
    return hf


def _refuse(hf: Mapping[str, Any]) -> None:
  """Raises for settings that would silently give other numbers."""
  act = hf.get('hidden_act', 'silu')
  if act not in ('silu', 'swish'):
    raise ConfigError(f'hidden_act {act!r} is not supported; wanted silu')
  if hf.get('use_sliding_window'):
    raise ConfigError('use_sliding_window is not supported')
  if hf.get('mlp_bias'):
    raise ConfigError('mlp_bias is not supported')
  if hf.get('decoder_sparse_step', 1) != 1 or hf.get('mlp_only_layers'):
    raise ConfigError(
      'layers of both kinds (decoder_sparse_step, mlp_only_layers) are not '
      'supported: every layer must be sparse'
    )


def _rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
  """(theta, scaling) from either place where configs keep them."""
  given = dict(hf.get('rope_scaling') or hf.get('rope_parameters') or {})
  theta = given.get('rope_theta', hf.get('rope_theta', 10_000.0))
  kind = given.get('rope_type', given.get('type', 'default'))
  if kind == 'default':
    return theta, None
  if kind not in ('linear', 'yarn', 'llama3'):
    raise ConfigError(
      f'rope scaling {kind!r} is not supported; wanted linear, yarn or llama3'
    )
  window = given.get('original_max_position_embeddings')
  scaling = RopeScaling(
    kind=kind,
    factor=given['factor'],
    original_window=window or hf['max_position_embeddings'],
    beta_fast=given.get('beta_fast') or 32.0,
    beta_slow=given.get('beta_slow') or 1.0,
    attention_factor=given.get('attention_factor'),
    low_freq_factor=given.get('low_freq_factor', 1.0),
    high_freq_factor=given.get('high_freq_factor', 4.0),
    truncate=given.get('truncate', True),
  )
  if given.get('mscale') or given.get('mscale_all_dim'):
    raise ConfigError('rope scaling with mscale is not supported')
  return theta, scaling


def _rope_to_hf(scaling: RopeScaling) -> dict[str, Any]:
  out: dict[str, Any] = {
    'rope_type': scaling.kind,
    'factor': scaling.factor,
    'original_max_position_embeddings': scaling.original_window,
  }
  if scaling.kind == 'yarn':
    out.update(beta_fast=scaling.beta_fast, beta_slow=scaling.beta_slow)
    out.update(truncate=scaling.truncate)
    if scaling.attention_factor is not None:
      out.update(attention_factor=scaling.attention_factor)
  if scaling.kind == 'llama3':
    out.update(
      low_freq_factor=scaling.low_freq_factor,
      high_freq_factor=scaling.high_freq_factor,
    )
  return out


def _dense(width, layers, heads, mlp_width, *, tied):
  return Config(
    vocab=151936,
    width=width,
    layers=layers,
    heads=heads,
    kv_heads=8,
    head_size=128,
    mlp_width=mlp_width,
    tied=tied,
    eos_ids=(151645,),
    dtype='bfloat16',
    param_dtype='bfloat16',
    scan_layers=True,
    remat='full',
  )


def _sparse(width, layers, heads, mlp_width, expert_width):
  return _dense(width, layers, heads, mlp_width, tied=False).replace(
    kv_heads=4,
    experts=128,
    experts_per_token=8,
    expert_width=expert_width,
    family='qwen3_moe',
  )


PRESETS: Mapping[str, Config] = {
  'qwen3-0.6b': _dense(1024, 28, 16, 3072, tied=True),
  'qwen3-1.7b': _dense(2048, 28, 16, 6144, tied=True),
  'qwen3-4b': _dense(2560, 36, 32, 9728, tied=True),
  'qwen3-8b': _dense(4096, 36, 32, 12288, tied=False),
  'qwen3-14b': _dense(5120, 40, 40, 17408, tied=False),
  'qwen3-32b': _dense(5120, 64, 64, 25600, tied=False),
  'qwen3-30b-a3b': _sparse(2048, 48, 32, 6144, 768),
  'qwen3-235b-a22b': _sparse(4096, 94, 64, 12288, 1536),
}
