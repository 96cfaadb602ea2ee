"""Weights on a path that trainer and servers share.

`publish` writes parameters with Orbax, which renames its folder into place
when everything is written: a reader sees all of a version or nothing. `read`
takes such a folder, or a Hugging Face one, and gives the parameters in the
form the engine wants. Paths may be `gs://` when gcsfs is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from clawjax.errors import CheckpointError
from clawjax.models import checkpoint, qwen3


def publish(params: Any, folder: str, version: int) -> str:
  """Writes one version below `folder`; returns its path.

  Arrays that are spread over processes are written by all of them together.

  Args:
    params: parameters, layers listed or stacked.
    folder: absolute path or `gs://` address.
    version: policy version; names the sub-folder.
  """
  import orbax.checkpoint as ocp

  where = f'{str(folder).rstrip("/")}/{version}'
  with ocp.StandardCheckpointer() as writer:
    # A version that a run before the last kill had written is replaced.
    writer.save(where, qwen3.unstack_layers(params), force=True)
  return where


def forget(folder: str, *, before: int) -> None:
  """Removes the versions below `folder` that are older than `before`."""
  from etils import epath

  for path in epath.Path(folder).iterdir():
    if path.name.isdigit() and int(path.name) < before:
      path.rmtree()


def read(where: str, config: qwen3.Config, *, shardings: Any = None) -> Any:
  """Parameters of one version.

  Args:
    where: what `publish` returned, or a Hugging Face folder.
    config: the model, as the engine holds it.
    shardings: of its parameters, layers listed; None: the default device.

  Raises:
    CheckpointError: there is none, it is not complete, or of another model.
  """
  if (Path(where) / 'config.json').is_file():
    params, found = checkpoint.load_hf(
      where,
      scan_layers=None if shardings is None else False,
      shardings=shardings,
    )
    if (found.width, found.layers) != (config.width, config.layers):
      raise CheckpointError(
        f'wanted {config.layers} layers of width {config.width}, found '
        f'{found.layers} of {found.width} in {where}'
      )
    return params
  import orbax.checkpoint as ocp

  target = qwen3.abstract(config.replace(scan_layers=False))
  if shardings is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = jax.tree.map(lambda _: device, target)
  target = jax.tree.map(
    lambda s, place: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place),
    target,
    shardings,
  )
  try:
    with ocp.StandardCheckpointer() as reader:
      return reader.restore(where, target)
  except Exception as error:
    raise CheckpointError(f'cannot read weights at {where}: {error}') from error
