"""Our engine behind JetStream's interface, so that its orchestrator can drive it.

JetStream (google-jetstream 0.2.2) calls `prefill -> insert -> generate` from
its own threads. A prefix, here, is a request whose prompt (but its last token)
is in pages; inserting it binds it to a slot; generating feeds every slot's last
token and draws one more, greedily or as `sampling` says. The prefix cache works
as it does under our scheduler. What JetStream's interface cannot carry
(log-probs, versions, new weights) is in `third_party/jetstream/README.md`.

Installing JetStream whole brings TensorFlow along for a tokenizer that is not
used here. `prepare` supplies the two names that it imports from there, and the
`jax.tree_map` that newer JAX has dropped, and undoes what importing the
orchestrator does to the root logger. All of it is a no-op where not needed.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from clawjax.errors import EngineError
from clawjax.serving.engine import Engine
from clawjax.serving.request import Request, check_request
from clawjax.serving.sequences import Sequences
from clawjax.types import SamplingParams

# JetStream prepends a tokenizer's BOS to every prompt; models without one get
# this, and `prefill` takes it off again.
NO_BOS = -1
_PREFILL_LENGTHS = tuple(16 << i for i in range(12))


@contextlib.contextmanager
def _quiet_root() -> Iterator[None]:
  root = logging.getLogger()
  level, handlers = root.level, list(root.handlers)
  try:
    yield
  finally:
    root.setLevel(level)
    root.handlers[:] = handlers


def prepare() -> Any:
  """Makes JetStream importable; returns its `engine_api` module.

  Raises:
    EngineError: google-jetstream is not installed.
  """
  if not hasattr(jax, 'tree_map'):
    jax.tree_map = jax.tree.map
  if 'seqio' not in sys.modules:
    try:
      import seqio
    except ImportError:
      seqio = types.ModuleType('seqio')
      vocabularies = types.ModuleType('seqio.vocabularies')
      for name in ('Vocabulary', 'SentencePieceVocabulary'):
        setattr(vocabularies, name, type(name, (), {}))
      seqio.__dict__['vocabularies'] = vocabularies
      sys.modules['seqio'] = seqio
      sys.modules['seqio.vocabularies'] = vocabularies
  try:
    with _quiet_root():
      from jetstream.core import orchestrator  # noqa: F401
      from jetstream.engine import engine_api
  except ImportError as error:
    raise EngineError(
      f'google-jetstream cannot be imported ({error}); install it as '
      'third_party/jetstream/README.md says',
      kind='closed',
    ) from error
  return engine_api


class _Prefix:
  """A prefilled request; opaque to JetStream (a pytree leaf, no arrays)."""

  def __init__(self, request: Request):
    self.request = request


def make_engine(
  engine: Engine,
  tokenizer: Any,
  *,
  sampling: SamplingParams = SamplingParams(temperature=0.0),
) -> Any:
  """An instance of JetStream's `Engine` on ours.

  Args:
    engine: used by this adapter alone from now on.
    tokenizer: `encode`, `decode`, `eos_ids`, `pad_id` (see clawjax.chat).
    sampling: how every slot samples (JetStream's requests do not say).
  """
  api = prepare()
  from jetstream.engine import token_utils, tokenizer_api, tokenizer_pb2

  class JetStreamTokenizer(tokenizer_api.Tokenizer):
    """Our tokenizer in JetStream's clothes."""

    def encode(self, s: str, **kwargs: Any) -> tuple[Any, int]:
      return token_utils.pad_tokens(
        np.asarray(tokenizer.encode(s)),
        self.bos_id,
        self.pad_id,
        is_bos=False,
        max_prefill_length=kwargs.get('max_prefill_length'),
        jax_padding=kwargs.get('jax_padding', True),
      )

    def decode(self, token_ids: list[int], **kwargs: Any) -> str:
      return tokenizer.decode(token_ids)

    @property
    def pad_id(self) -> int:
      return tokenizer.pad_id

    @property
    def eos_id(self) -> int:
      return tokenizer.eos_ids[0]

    @property
    def bos_id(self) -> int:
      return NO_BOS

    @property
    def stop_tokens(self) -> set[int]:
      return set(tokenizer.eos_ids)

  class JetStreamEngine(api.Engine):
    """See the top of the file."""

    def __init__(self) -> None:
      self._on = Sequences(engine)
      self._lock = threading.Lock()
      self._slots: list[Request | None] = [None] * engine.slots

    def load_params(self, *args: Any, **kwargs: Any) -> Any:
      """The weights are the engine's own; JetStream gets a token for them."""
      return None

    def prefill(
      self,
      *,
      params: Any,
      existing_prefix: Any = None,
      padded_tokens: Any,
      true_length: int,
    ) -> _Prefix:
      """Puts a prompt into pages; see the class's base."""
      # JetStream cuts an over-long prompt but reports its whole length.
      ids = np.asarray(padded_tokens, np.int32)[:true_length]
      if len(ids) and ids[0] == NO_BOS:
        ids = ids[1:]
      if existing_prefix is not None:
        ids = np.concatenate([existing_prefix.request.prompt, ids])
      check_request(
        ids,
        sampling,
        vocab=engine.config.vocab,
        window=engine.window,
        has_text=False,
      )
      stops = tuple(tokenizer.eos_ids)
      request = Request(
        ids,
        SamplingParams(**{**vars(sampling), 'stop_ids': stops}),
        engine.window - len(ids),
        lambda sample, error: None,
      )
      with self._lock:
        if not self._on.begin(request):
          raise EngineError('no pages left for a prompt', kind='busy')
        while request.left_to_prefill:
          self._on.prefill(request)
      return _Prefix(request)

    def insert(self, prefix: _Prefix, decode_state: Any, slot: int) -> Any:
      """Binds a prefilled prompt to a slot, ending what was there."""
      with self._lock:
        self._end(slot)
        self._slots[slot] = prefix.request
      return decode_state

    def _end(self, slot: int) -> None:
      old = self._slots[slot]
      if old is not None:
        self._on.share(old, last=True)
        self._on.release(old)
        self._slots[slot] = None

    def generate(self, params: Any, decode_state: Any) -> tuple[Any, Any]:
      """Draws one token for every slot that is still going."""
      data = np.zeros((engine.slots, 3), np.int32)  # token, valid, length
      with self._lock:
        for slot, request in enumerate(self._slots):
          if request is not None and not self._on.grow(request, 1):
            # JetStream cannot wait: the slot ends short.
            self._end(slot)
        rows = list(self._slots)
        if any(rows):
          burst = engine.decode(self._on.batch(rows), steps=1)
          for slot, request in enumerate(rows):
            if request is None:
              continue
            count = self._on.take_in(request, burst, slot)
            fine = count and bool(burst.finite_B[slot])
            data[slot] = request.ids[-1], fine, request.drawn
            if not fine or burst.stopped_B[slot] or request.budget <= 0:
              self._end(slot)
      return decode_state, api.ResultTokens(
        data=data,
        tokens_idx=(0, 1),
        valid_idx=(1, 2),
        length_idx=(2, 3),
        samples_per_slot=1,
      )

    def init_decode_state(self, *args: Any, **kwargs: Any) -> Any:
      """Nothing: the state is this object."""
      return None

    def get_prefix_destination_sharding(self) -> Any:
      """None: prefixes stay in the pages of this engine (interleaved mode)."""
      return None

    def get_tokenizer(self) -> Any:
      """An empty message; `build_tokenizer` needs none."""
      return tokenizer_pb2.TokenizerParameters()

    def build_tokenizer(self, metadata: Any) -> Any:
      """The tokenizer given to `make_engine`."""
      return JetStreamTokenizer()

    @property
    def max_concurrent_decodes(self) -> int:
      """Slots."""
      return engine.slots

    @property
    def samples_per_slot(self) -> int:
      """One."""
      return 1

    @property
    def max_prefill_length(self) -> int:
      """The largest of JetStream's lengths within the window."""
      return max(n for n in _PREFILL_LENGTHS if n <= engine.window)

    @property
    def mesh(self) -> Any:
      """The mesh of the default device."""
      return jax.sharding.Mesh(np.array(jax.devices()[:1]), ('x',))

    @property
    def colocated_cpus(self) -> None:
      """Unknown."""
      return None

    def check(self) -> None:
      """Asserts that no page is lost."""
      with self._lock:
        own = sum(len(r.own) for r in self._slots if r is not None)
        self._on.cache.check(own)

  return JetStreamEngine()
