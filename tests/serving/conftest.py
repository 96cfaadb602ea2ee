"""A tiny random model, an engine on it and a plain forward to compare with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.models import qwen3
from clawjax.serving import engine as engine_lib
from clawjax.serving import scheduler as scheduler_lib

CONFIG = qwen3.Config.tiny(
  vocab=97, width=32, layers=2, heads=4, kv_heads=2, head_size=8,
  experts=4, experts_per_token=2, expert_width=16,
)  # fmt: skip


def make_params(seed=0, config=CONFIG, scale=6.0):
  """Random weights; the head is scaled so that distributions are not flat."""
  init = jax.jit(qwen3.init, static_argnums=0)  # one program, not twenty
  params = init(config, jax.random.key(seed))
  return {**params, 'embed': params['embed'] * scale}


def make_engine(params=None, **options):
  options = {
    'slots': 4,
    'window': 256,
    'page_size': 8,
    'burst': 8,
    'max_chunk': 64,
  } | options
  return engine_lib.Engine(
    CONFIG, make_params() if params is None else params, **options
  )


@pytest.fixture(scope='session')
def params():
  return make_params()


@pytest.fixture(scope='session')
def shared_engine(params):
  """One engine for many tests: its programs compile once."""
  return make_engine(params)


@pytest.fixture
def scheduler(shared_engine, params):
  """A running scheduler whose engine serves `params` as version 0."""
  shared_engine.load_params(params, 0)
  running = scheduler_lib.Scheduler(
    shared_engine, decode_text=lambda ids: ''.join(chr(48 + i) for i in ids)
  ).start()
  yield running
  running.stop()
  running.cache.check(0)


@functools.partial(jax.jit, static_argnames='config')
def plain_forward(params, ids_T, config=CONFIG):
  """(logits [T, V], routes [T, L, A]) of a plain causal forward, no cache."""
  hidden, _, routes = qwen3.apply(
    params, config, ids_T[None], jnp.arange(len(ids_T))[None]
  )
  return qwen3.logits(params, config, hidden[0]), routes[0]


def reference_logits(params, ids, config=CONFIG):
  """Float32 logits [T, V]; padded so that one program serves all lengths."""
  padded = np.zeros(-(-len(ids) // 256) * 256, np.int32)
  padded[: len(ids)] = ids
  return np.asarray(plain_forward(params, padded, config)[0])[: len(ids)]


def reference_logprobs(params, prompt, output, temperature=1.0, config=CONFIG):
  """float64 log-probs [T] of `output` after `prompt`, from the definition."""
  ids = [*map(int, prompt), *map(int, output)]
  logits = reference_logits(params, ids, config).astype(np.float64)
  logits = logits[len(prompt) - 1 : -1] / temperature
  top = logits.max(-1, keepdims=True)
  norm = np.log(np.exp(logits - top).sum(-1)) + top[:, 0]
  return logits[np.arange(len(output)), output] - norm
