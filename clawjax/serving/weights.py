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

  Args:
    params: parameters, layers listed or stacked.
    folder: absolute path or `gs://` address.
    version: policy version; names the sub-folder.
  """
  import orbax.checkpoint as ocp

  where = f'{str(folder).rstrip("/")}/{version}'
  with ocp.StandardCheckpointer() as writer:
    writer.save(where, qwen3.unstack_layers(params))
  return where


def read(where: str, config: qwen3.Config) -> Any:
  """Parameters of one version.

  Raises:
    CheckpointError: there is none, it is not complete, or of another model.
  """
  if (Path(where) / 'config.json').is_file():
    params, found = checkpoint.load_hf(where)
    if (found.width, found.layers) != (config.width, config.layers):
      raise CheckpointError(
        f'wanted {config.layers} layers of width {config.width}, found '
        f'{found.layers} of {found.width} in {where}'
      )
    return params
  import orbax.checkpoint as ocp

  target = qwen3.abstract(config.replace(scan_layers=False))
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  target = jax.tree.map(
    lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=device), target
  )
  try:
    with ocp.StandardCheckpointer() as reader:
      return reader.restore(where, target)
  except Exception as error:
    raise CheckpointError(f'cannot read weights at {where}: {error}') from error
