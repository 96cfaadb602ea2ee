"""Hugging Face folders: values by hand, round trips, and every kind of damage."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from clawjax.errors import CheckpointError
from clawjax.models import checkpoint, qwen3
from clawjax.models.config import Config

MOE = Config.tiny(
  vocab=48, width=16, layers=2, heads=4, kv_heads=2, head_size=6,
  experts=4, experts_per_token=2, expert_width=10, tied=True,
)  # fmt: skip
DENSE = MOE.replace(
  experts=0, experts_per_token=0, expert_width=0, mlp_width=20, family='qwen3',
  tied=False,
)  # fmt: skip
QWEN2 = DENSE.replace(family='qwen2', qk_norm=False, qkv_bias=True, tied=True)
LLAMA = DENSE.replace(
  family='llama', qk_norm=False, qkv_bias=True, out_bias=True
)


def _params(config):
  """Random parameters; biases and norms too, so that a mix-up shows."""
  rng = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32),
    qwen3.abstract(config),
  )


def _equal(one, two):
  jax.tree.map(np.testing.assert_array_equal, one, two)


@pytest.mark.parametrize('config', [MOE, DENSE, QWEN2, LLAMA])
@pytest.mark.parametrize('shard_bytes', [2**30, 3000])
def test_a_round_trip_loses_nothing(config, shard_bytes, tmp_path):
  params = _params(config)
  checkpoint.save_hf(params, config, tmp_path, shard_bytes=shard_bytes)
  loaded, read = checkpoint.load_hf(tmp_path)
  if config.experts:  # HF wants some intermediate_size in any case
    read = read.replace(mlp_width=config.mlp_width)
  assert read == config
  _equal(params, loaded)
  many = len(list(tmp_path.glob('*.safetensors')))
  assert (many > 3) == (shard_bytes == 3000)
  assert not list(tmp_path.glob('*.part'))


def test_layers_listed_or_stacked_on_either_side(tmp_path):
  params = _params(MOE)
  stacked = qwen3.stack_layers(params)
  checkpoint.save_hf(stacked, MOE.replace(scan_layers=True), tmp_path)
  loaded, config = checkpoint.load_hf(tmp_path, scan_layers=True)
  assert config.scan_layers
  _equal(stacked, loaded)
  _equal(params, checkpoint.load_hf(tmp_path)[0])


def test_bfloat16_on_disk_rounds_once(tmp_path):
  params = _params(DENSE)
  checkpoint.save_hf(params, DENSE, tmp_path, dtype='bfloat16')
  loaded, _ = checkpoint.load_hf(tmp_path, dtype='float32')
  _equal(
    jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), params),
    loaded,
  )
  assert json.loads((tmp_path / 'config.json').read_text())['torch_dtype'] == (
    'bfloat16'
  )


def test_files_are_as_open_as_any_other(tmp_path):
  checkpoint.save_hf(_params(MOE), MOE, tmp_path)
  (tmp_path / 'plain').touch()
  mode = (tmp_path / 'plain').stat().st_mode
  assert {p.stat().st_mode for p in tmp_path.iterdir()} == {mode}


def test_projections_by_hand(tmp_path):
  """HF computes x @ W.T and cuts rows into heads; so must the loaded q."""
  checkpoint.save_hf(_params(MOE), MOE, tmp_path)
  hf = load_file(tmp_path / 'model.safetensors')
  params, _ = checkpoint.load_hf(tmp_path)
  x = np.random.default_rng(0).normal(size=16).astype(np.float32)
  layer = params['layers'][1]
  stem = 'model.layers.1.'
  q = (hf[stem + 'self_attn.q_proj.weight'] @ x).reshape(4, 6)
  np.testing.assert_allclose(
    np.einsum('d,dhc->hc', x, layer['q']), q, atol=1e-5
  )
  o = hf[stem + 'self_attn.o_proj.weight'] @ q.reshape(-1)
  np.testing.assert_allclose(
    np.einsum('hc,hcd->d', q, layer['o']), o, atol=1e-4
  )
  up = hf[stem + 'mlp.experts.3.up_proj.weight'] @ x
  np.testing.assert_allclose(x @ layer['up'][3], up, atol=1e-5)
  router = hf[stem + 'mlp.gate.weight'] @ x
  np.testing.assert_allclose(x @ layer['router'], router, atol=1e-5)


def _damage(folder, change):
  file = folder / 'model.safetensors'
  tensors = dict(load_file(file))
  change(tensors)
  save_file(tensors, file)


NAME = 'model.layers.0.self_attn.k_proj.weight'


@pytest.mark.parametrize(
  ('change', 'text'),
  [
    (lambda t: t.pop(NAME), f'missing {NAME}; surplus nothing'),
    (
      lambda t: t.update({'model.extra': np.zeros(2, np.float32)}),
      'missing nothing; surplus model.extra',
    ),
    (
      lambda t: t.update({NAME: t[NAME][:6]}),
      r'k_proj.weight in model.safetensors has shape \[6, 16\]; this model '
      r'wants \[12, 16\]',
    ),
    (
      lambda t: t.update({NAME: t[NAME].astype(np.int8)}),
      'k_proj.weight in model.safetensors is stored as I8',
    ),
  ],
)
def test_wrong_tensors_are_named(change, text, tmp_path):
  checkpoint.save_hf(_params(MOE), MOE, tmp_path)
  _damage(tmp_path, change)
  with pytest.raises(CheckpointError, match=text):
    checkpoint.load_hf(tmp_path)


def test_a_tied_model_may_carry_its_copy_of_the_head(tmp_path):
  params = _params(MOE)
  checkpoint.save_hf(params, MOE, tmp_path)
  _damage(
    tmp_path,
    lambda t: t.update({'lm_head.weight': t['model.embed_tokens.weight']}),
  )
  _equal(params, checkpoint.load_hf(tmp_path)[0])


def test_damaged_folders_are_named(tmp_path):
  with pytest.raises(CheckpointError, match=r'no config\.json'):
    checkpoint.load_hf(tmp_path)
  checkpoint.save_hf(_params(MOE), MOE, tmp_path, shard_bytes=4000)
  shards = sorted(tmp_path.glob('*.safetensors'))
  good = shards[1].read_bytes()
  shards[1].write_bytes(good[:-100])
  with pytest.raises(CheckpointError, match='model-00002-of.* cut short'):
    checkpoint.load_hf(tmp_path)
  shards[1].unlink()
  with pytest.raises(CheckpointError, match='lacks the shards model-00002'):
    checkpoint.load_hf(tmp_path)
  # The right name with another shard's content.
  shards[1].write_bytes(shards[0].read_bytes())
  with pytest.raises(CheckpointError, match='names tensors that its shards'):
    checkpoint.load_hf(tmp_path)
  (tmp_path / checkpoint.INDEX).write_text('{"weight_map": {')
  with pytest.raises(CheckpointError, match='not valid JSON'):
    checkpoint.load_hf(tmp_path)
  (tmp_path / checkpoint.INDEX).unlink()
  with pytest.raises(CheckpointError, match='neither'):
    checkpoint.load_hf(tmp_path)


def test_a_remote_folder_works_as_a_local_one(tmp_path):
  params = _params(MOE)
  checkpoint.save_hf(params, MOE, 'memory://models/tiny', shard_bytes=4000)
  _equal(params, checkpoint.load_hf('memory://models/tiny')[0])
