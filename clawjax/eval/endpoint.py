"""What answers the harness in an evaluation, from one word on a command line.

  scripted:FILE    answers from a JSONL script, no model (see `proxy.scripted`)
  FOLDER           weights in the Hugging Face layout, served by our engine
  builtin:tiny     the small model that ships with us (or builtin:tiny_mix)
  openai:URL       a hosted model; requests are passed on as the harness made
  anthropic:URL    them, in the API's own dialect (see `passthrough.py`)

`serve` opens one of them and gives the proxy that rollouts talk to. jax is
loaded only when weights are to be served.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

from clawjax import errors
from clawjax.chat import tokenizers

KINDS = ('scripted', 'openai', 'anthropic', 'builtin')
# Dialects of a harness that a hosted API of each kind speaks.
DIALECTS = {'openai': ('chat', 'responses'), 'anthropic': ('messages',)}


@dataclasses.dataclass(frozen=True)
class EndpointConfig:
  """How to serve a model.

  Attributes:
    tokenizer: name; '': the model's own ('tiny' where it has none).
    thinking: see `chat.render`.
    family: template family.
    slots: sequences that decode side by side.
    window: tokens of prompt and answer together.
    page_size: tokens of a cache page.
    upstream_model: model name to ask a hosted API for.
    api_key_env: variable that holds the API key; '': the usual one.
  """

  tokenizer: str = ''
  thinking: str = 'auto'
  family: str = 'qwen3'
  slots: int = 8
  window: int = 32768
  page_size: int = 16
  upstream_model: str = ''
  api_key_env: str = ''


class Proxy(Protocol):
  """See `clawjax.proxy.Proxy`; only what is used here and in `rollout`."""

  app: Any


@dataclasses.dataclass(frozen=True)
class Endpoint:
  """A model that is being served.

  Attributes:
    name: for tables: the last part of a path, the name of a hosted model.
    proxy: what rollouts talk to.
    tokenizer: of its token ids; None for a hosted model.
    identity: JSON values that say which model this is.
  """

  name: str
  proxy: Any
  tokenizer: tokenizers.Tokenizer | None
  identity: dict[str, Any]


def kind_of(spec: str) -> str:
  """'scripted', 'openai', 'anthropic', 'builtin' or 'folder'."""
  kind = spec.partition(':')[0]
  return kind if kind in KINDS else 'folder'


def name_of(spec: str, config: EndpointConfig) -> str:
  """Short name of a model for tables and folders."""
  kind = kind_of(spec)
  if kind in DIALECTS:
    return config.upstream_model or spec
  if kind == 'folder':
    return pathlib.Path(spec).resolve().name
  return spec if kind == 'builtin' else 'scripted'


@contextlib.asynccontextmanager
async def serve(
  spec: str,
  config: EndpointConfig,
  *,
  record_dir: pathlib.Path | None = None,
) -> AsyncIterator[Endpoint]:
  """Opens a model; what it started is stopped at the end.

  Args:
    spec: see the top of the file.
    config: see `EndpointConfig`.
    record_dir: where the proxy records its sessions.

  Raises:
    ClawjaxError: it is not there or does not fit.
  """
  kind = kind_of(spec)
  rest = spec.partition(':')[2]
  if kind in DIALECTS:
    from clawjax.eval import passthrough

    async with passthrough.Passthrough.connect(
      rest,
      kind=kind,
      model=config.upstream_model,
      api_key_env=config.api_key_env,
      record_dir=record_dir,
    ) as proxy:
      yield Endpoint(
        name_of(spec, config),
        proxy,
        None,
        {'endpoint': spec, 'model': config.upstream_model},
      )
    return
  with contextlib.ExitStack() as stack:
    if kind == 'scripted':
      from clawjax.proxy import scripted

      tokenizer = tokenizers.load(config.tokenizer or 'tiny')
      client: Any = scripted.ScriptedClient(
        rest, tokenizer, window=config.window
      )
    else:
      folder = _folder(spec)
      tokenizer = tokenizers.load(config.tokenizer or _tokenizer_of(folder))
      client = stack.enter_context(_engine(folder, tokenizer, config))
    from clawjax.proxy import app

    proxy = app.Proxy(
      client,
      tokenizer,
      config=app.ProxyConfig(thinking=config.thinking, family=config.family),  # type: ignore[arg-type]
      record_dir=record_dir,
    )
    yield Endpoint(
      name_of(spec, config),
      proxy,
      tokenizer,
      {
        'endpoint': spec,
        'tokenizer': tokenizer.name,
        'thinking': config.thinking,
        'family': config.family,
        'window': config.window,
      },
    )


def _folder(spec: str) -> pathlib.Path:
  if kind_of(spec) == 'builtin':
    home = pathlib.Path(__file__).resolve().parents[1]
    folder = home / 'train' / 'data' / spec.partition(':')[2]
  else:
    folder = pathlib.Path(spec).expanduser()
  if not (folder / 'config.json').is_file():
    raise errors.CheckpointError(
      f'--model {spec!r}: wanted a folder with config.json and safetensors, '
      f'got {folder}; or use scripted:FILE, openai:URL, anthropic:URL'
    )
  return folder


def _tokenizer_of(folder: pathlib.Path) -> str:
  return f'hf:{folder}' if (folder / 'tokenizer.json').is_file() else 'tiny'


@contextlib.contextmanager
def _engine(folder: pathlib.Path, tokenizer, config: EndpointConfig):
  """Our engine on the weights of a folder; yields its client."""
  from clawjax.models import checkpoint
  from clawjax.serving.engine import Engine
  from clawjax.serving.scheduler import Scheduler

  params, model = checkpoint.load_hf(folder)
  engine = Engine(
    model,
    params,
    slots=config.slots,
    window=config.window,
    page_size=config.page_size,
  )
  scheduler = Scheduler(engine, decode_text=tokenizer.decode)
  scheduler.start()
  try:
    yield scheduler.client()
  finally:
    scheduler.stop()
