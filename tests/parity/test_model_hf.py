"""Ours against Hugging Face transformers, part by part, in float32.

`model_golden/` holds what `model_reference.py` computed; the last tests run that
script again and skip where its environment (`model_env.sh`) is absent.
"""

import json
import os
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from clawjax.kernels.tree_attention import tree_attention
from clawjax.models import checkpoint, qwen3, rope

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = sorted((HERE / 'model_golden').glob('*.npz'))
ENV = pathlib.Path(os.environ.get('CLAWJAX_PARITY_ENV', ROOT / '.venv-parity'))
REFERENCE = HERE / 'model_reference.py'
TOLERANCE = 1e-5


@pytest.fixture(params=GOLDEN, ids=lambda p: p.stem)
def golden(request):
  return np.load(request.param)


@pytest.fixture
def loaded(golden, tmp_path):
  """(params, config), loaded from a folder as a user's would be."""
  write_folder(golden, tmp_path)
  return checkpoint.load_hf(tmp_path, scan_layers=False)


def write_folder(golden, folder):
  tensors = {
    name.removeprefix('weight:'): unpack(golden[name])
    for name in golden.files
    if name.startswith('weight:')
  }
  save_file(tensors, folder / 'model.safetensors')
  (folder / 'config.json').write_text(str(golden['config']))


def unpack(bits):
  """bfloat16 bits -> float32."""
  return (bits.astype(np.uint32) << 16).view(np.float32)


def close(got, want):
  scale = max(1.0, np.abs(want).max())
  assert np.abs(np.asarray(got) - want).max() <= TOLERANCE * scale


def masked_attend(seen):
  """Attention where query q sees key k iff seen[b, q, k]; plain numpy style."""

  def attend(state, q, k, v):
    group = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, group, axis=2) for x in (k, v))
    score = jnp.einsum('bqhc,bkhc->bhqk', q, k) * q.shape[-1] ** -0.5
    score = jnp.where(seen[:, None], score, -1e30)
    weight = jax.nn.softmax(score, axis=-1)
    return jnp.einsum('bhqk,bkhc->bqhc', weight, v), state

  return attend


def run(params, config, tokens, positions, attend=None):
  def forward(params, tokens, positions):
    hidden, _, _ = qwen3.apply(params, config, tokens, positions, attend=attend)
    return qwen3.logits(params, config, hidden)

  return jax.jit(forward)(params, tokens, positions)


def chain(tokens):
  return jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)


def test_attention_alone(golden, loaded):
  params, config = loaded
  x = jnp.asarray(golden['attention_in'])
  angles = rope.angles(chain(golden['tokens']), config)
  got, _ = qwen3._attention(
    params['layers'][1],
    config,
    x,
    angles,
    qwen3.causal_attend,
    None,
    lambda x, axes: x,
  )
  close(got, golden['attention_out'])


def test_mlp_or_experts_alone(golden, loaded):
  params, config = loaded
  x = jnp.asarray(golden['mlp_in'])
  layer = params['layers'][1]
  if config.experts:
    got, routes = qwen3._moe(layer, config, x, None, None)
    assert routes.shape == (2, 12, 2)
  else:
    got = qwen3._mlp(layer, x, lambda x, axes: x)
  close(got, golden['mlp_out'])


def test_logits(golden, loaded):
  tokens = golden['tokens']
  close(run(*loaded, tokens, chain(tokens)), golden['logits'])


def test_logits_with_padding_left_and_right(golden, loaded):
  tokens, mask = golden['tokens'], golden['mask'].astype(bool)
  positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
  seen = np.tril(np.ones((12, 12), bool))[None] & mask[:, None, :]
  got = run(*loaded, tokens, positions, masked_attend(seen))
  close(np.asarray(got)[mask], golden['padded_logits'][mask])


def test_logits_of_a_tree_whose_positions_jump(golden, loaded):
  tokens = golden['tokens']
  end = jnp.asarray([golden['tree_end']] * 2)
  depth = jnp.asarray([golden['tree_depth']] * 2)

  def attend(state, q, k, v):
    return tree_attention(q, k, v, end), state

  close(run(*loaded, tokens, depth, attend), golden['tree_logits'])


def test_loss_and_gradients(golden, loaded):
  params, config = loaded
  tokens = jnp.asarray(golden['tokens'])

  def loss(params):
    hidden, _, _ = qwen3.apply(params, config, tokens, chain(tokens))
    logp = jax.nn.log_softmax(qwen3.logits(params, config, hidden)[:, :-1])
    return -jnp.take_along_axis(logp, tokens[:, 1:, None], -1).mean()

  value, grad = jax.jit(jax.value_and_grad(loss))(params)
  close(value, golden['loss'])
  fetch = checkpoint._Fetcher(grad)
  sources = checkpoint.mapping(config)
  want = {n.removeprefix('grad:') for n in golden.files if n[:5] == 'grad:'}
  assert {s.name for s in sources} == want
  for source in sources:
    close(source.to_hf(fetch(source)), golden[f'grad:{source.name}'])


# ---- with transformers at hand ---------------------------------------------


@pytest.fixture(scope='module')
def reference():
  """Runs model_reference.py in its own environment."""
  if not (ENV / '.done').exists():
    pytest.skip(f'no {ENV.name}; tests/parity/model_env.sh makes it')

  def call(*args):
    done = subprocess.run(
      [ENV / 'bin/python', REFERENCE, *map(str, args)],
      capture_output=True,
      text=True,
      timeout=900,
      env={'PATH': os.environ['PATH'], 'HF_HUB_OFFLINE': '1'},
    )
    assert done.returncode == 0, done.stderr[-3000:]

  return call


@pytest.mark.slow
def test_the_golden_files_are_what_the_script_makes(reference, tmp_path):
  reference('make', tmp_path)
  assert [p.name for p in GOLDEN] == sorted(p.name for p in tmp_path.iterdir())
  for path in GOLDEN:
    old, new = np.load(path), np.load(tmp_path / path.name)
    assert old.files == new.files
    for name in old.files:
      if old[name].dtype.kind == 'f':
        np.testing.assert_allclose(old[name], new[name], atol=1e-6)
      elif name.startswith('weight:') or name == 'tokens':
        np.testing.assert_array_equal(old[name], new[name])


@pytest.mark.slow
@pytest.mark.parametrize('stem', ['qwen3_moe', 'qwen2', 'llama'])
def test_transformers_loads_what_we_save(stem, reference, tmp_path):
  golden = np.load(HERE / 'model_golden' / f'{stem}.npz')
  (tmp_path / 'in').mkdir()
  write_folder(golden, tmp_path / 'in')
  params, config = checkpoint.load_hf(tmp_path / 'in')
  checkpoint.save_hf(params, config, tmp_path / 'out', shard_bytes=8000)
  index = json.loads((tmp_path / 'out' / checkpoint.INDEX).read_text())
  assert len(set(index['weight_map'].values())) > 2
  np.save(tmp_path / 'ids.npy', golden['tokens'].astype(np.int64))
  reference(
    'logits', tmp_path / 'out', tmp_path / 'ids.npy', tmp_path / 'out.npy'
  )
  close(np.load(tmp_path / 'out.npy'), golden['logits'])
