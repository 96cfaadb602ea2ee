"""Makes the reference arrays of the model parity tests, with transformers.

Runs in the environment that model_env.sh makes, not in ours:

  .venv-parity/bin/python tests/parity/model_reference.py make FOLDER
      one NAME.npz per case below: random weights (rounded to bfloat16, so that
      they pack), inputs and what Hugging Face transformers computes from them
      in float32: attention alone, MLP or experts alone, logits with padding
      left and right and with a tree's mask and positions, loss and gradients.
  ... logits FOLDER IDS.npy OUT.npy
      logits of a saved folder, to check what we export.
  ... greedy FOLDER FILE.gguf IDS.npy COUNT OUT.npy
      greedy continuation of a GGUF model.

Weights and gradients carry Hugging Face checkpoint names.
"""

import json
import sys

import numpy as np
import torch
import transformers

# A small tree: the depth-first slots of the paths 0-1-2-3-4, 0-1-5-6 and
# 0-1-5-7-8, and a second tree 9-10-11 in the same row.
TREE_END = [9, 9, 5, 5, 5, 9, 7, 9, 9, 12, 12, 12]
TREE_DEPTH = [0, 1, 2, 3, 4, 2, 3, 3, 4, 0, 1, 2]

SMALL = {
  'vocab_size': 40,
  'hidden_size': 16,
  'intermediate_size': 24,
  'num_hidden_layers': 2,
  'num_attention_heads': 4,
  'num_key_value_heads': 2,
  'head_dim': 8,
  'max_position_embeddings': 64,
  'rms_norm_eps': 1e-6,
  'tie_word_embeddings': False,
  'attn_implementation': 'eager',
}
MOE = {
  'num_experts': 6,
  'num_experts_per_tok': 2,
  'moe_intermediate_size': 12,
  'norm_topk_prob': True,
}
YARN = {
  'rope_type': 'yarn',
  'rope_theta': 10000.0,
  'factor': 4.0,
  'original_max_position_embeddings': 16,
}
LLAMA3 = {
  'rope_type': 'llama3',
  'rope_theta': 10000.0,
  'factor': 8.0,
  'low_freq_factor': 1.0,
  'high_freq_factor': 4.0,
  'original_max_position_embeddings': 32,
}
CASES = {
  'qwen3': ('qwen3', {}),
  'qwen3_tied_yarn': (
    'qwen3',
    {'tie_word_embeddings': True, 'rope_parameters': YARN},
  ),
  'qwen3_moe': ('qwen3_moe', MOE),
  'qwen3_moe_raw_gates': ('qwen3_moe', {**MOE, 'norm_topk_prob': False}),
  'qwen2': ('qwen2', {'tie_word_embeddings': True, 'head_dim': 4}),
  'llama': ('llama', {'rope_parameters': LLAMA3}),
}


def build(family, changes):
  """A random model, norms and biases included, in float32."""
  fields = {**SMALL, **changes}
  if family == 'qwen2':
    fields.pop('head_dim')  # Qwen2 takes hidden_size / heads
  config = transformers.AutoConfig.for_model(family, **fields)
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(
    config, attn_implementation='eager', dtype=torch.float32
  )
  generator = torch.Generator().manual_seed(1)
  with torch.no_grad():
    for name, p in model.named_parameters():
      noise = torch.randn(p.shape, generator=generator)
      if name.endswith('norm.weight'):
        noise = 1 + 0.3 * noise
      elif name.endswith('.bias'):
        noise = 0.3 * noise
      else:
        noise = noise * p.shape[-1] ** -0.5
      p.copy_(noise.to(torch.bfloat16).float())
  return model.eval()


def checkpoint_names(tensors):
  """Splits experts that transformers keeps fused, as its checkpoints do."""
  out = {}
  for name, x in tensors.items():
    if name.endswith('experts.gate_up_proj'):
      stem = name.removesuffix('gate_up_proj')
      for i, both in enumerate(x):
        gate, up = np.split(both, 2, axis=0)
        out[f'{stem}{i}.gate_proj.weight'] = gate
        out[f'{stem}{i}.up_proj.weight'] = up
    elif name.endswith('experts.down_proj'):
      stem = name.removesuffix('down_proj')
      for i, one in enumerate(x):
        out[f'{stem}{i}.down_proj.weight'] = one
    else:
      out[name] = x
  return out


def numpy(x):
  return x.detach().to(torch.float32).numpy()


def tree_mask():
  end = np.array(TREE_END)
  slot = np.arange(len(end))
  seen = (slot[None, :] <= slot[:, None]) & (slot[:, None] < end[None, :])
  return torch.tensor(np.where(seen, 0.0, -1e9), dtype=torch.float32)[
    None, None
  ]


def make_case(family, changes):
  model = build(family, changes)
  rng = np.random.default_rng(0)
  ids = torch.tensor(rng.integers(0, 40, (2, 12)))
  out = {'tokens': ids.numpy().astype(np.int32)}
  weights = {n: numpy(p) for n, p in model.named_parameters()}
  if model.config.tie_word_embeddings:
    weights.pop('lm_head.weight', None)
  for name, x in checkpoint_names(weights).items():
    # The upper half of a float32 that was rounded to bfloat16.
    out[f'weight:{name}'] = (x.view(np.uint32) >> 16).astype(np.uint16)

  # Parts alone, seen by hooks in a plain causal pass.
  seen = {}

  def hook(key):
    def keep(_, args, kwargs, result):
      given = args[0] if args else kwargs['hidden_states']
      seen[key + '_in'] = numpy(given)
      first = result[0] if isinstance(result, tuple) else result
      seen[key + '_out'] = numpy(first)

    return keep

  layer = model.model.layers[1]
  handles = [
    layer.self_attn.register_forward_hook(hook('attention'), with_kwargs=True),
    layer.mlp.register_forward_hook(hook('mlp'), with_kwargs=True),
  ]
  with torch.no_grad():
    out['logits'] = numpy(model(ids).logits)
  for handle in handles:
    handle.remove()
  out |= {k: v.reshape(2, 12, -1) for k, v in seen.items()}

  # Padding: three empty slots at the left of row 0, at the right of row 1.
  mask = torch.ones(2, 12, dtype=torch.long)
  mask[0, :3] = 0
  mask[1, -3:] = 0
  positions = (mask.cumsum(-1) - 1).clamp(min=0)
  with torch.no_grad():
    out['padded_logits'] = numpy(
      model(ids, attention_mask=mask, position_ids=positions).logits
    )
    depth = torch.tensor([TREE_DEPTH, TREE_DEPTH])
    tree = tree_mask().expand(2, 1, -1, -1)
    out['tree_logits'] = numpy(
      model(ids, attention_mask=tree, position_ids=depth).logits
    )
  out['mask'] = mask.numpy().astype(np.int32)
  out['tree_end'] = np.array(TREE_END, np.int32)
  out['tree_depth'] = np.array(TREE_DEPTH, np.int32)

  # Mean cross-entropy of the next token, and its gradient.
  logits = model(ids).logits
  loss = torch.nn.functional.cross_entropy(
    logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1)
  )
  loss.backward()
  out['loss'] = numpy(loss)
  grads = {n: numpy(p.grad) for n, p in model.named_parameters()}
  if model.config.tie_word_embeddings:
    grads.pop('lm_head.weight', None)
  for name, x in checkpoint_names(grads).items():
    out[f'grad:{name}'] = x
  out['config'] = np.array(json.dumps(model.config.to_dict()))
  out['versions'] = np.array(
    f'torch {torch.__version__}, transformers {transformers.__version__}'
  )
  return out


def load(folder, **options):
  return transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32, **options
  ).eval()


def main(command, *args):
  torch.set_num_threads(1)
  if command == 'make':
    for name, (family, changes) in CASES.items():
      arrays = make_case(family, changes)
      np.savez_compressed(f'{args[0]}/{name}.npz', **arrays)
  elif command == 'logits':
    folder, ids, target = args
    model = load(folder)
    with torch.no_grad():
      np.save(target, numpy(model(torch.tensor(np.load(ids))).logits))
  elif command == 'greedy':
    folder, file, ids, count, target = args
    model = load(folder, gguf_file=file)
    with torch.no_grad():
      out = model.generate(
        torch.tensor(np.load(ids)),
        max_new_tokens=int(count),
        do_sample=False,
        eos_token_id=None,
      )
    np.save(target, out.numpy())
  else:
    raise SystemExit(f'unknown command {command!r}')


if __name__ == '__main__':
  main(*sys.argv[1:])
