"""New weights from the trainer's mesh to whatever samples for the rollouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

from clawjax.serving import weights
from clawjax.train.pod import Pod


class Serving(Protocol):
  """What the loop wants of it."""

  def load_params(self, params: Any, version: int) -> None:
    """Puts new weights in place; returns when they serve."""


class Gathered:
  """An engine in process 0, fed from the mesh of all processes.

  Weights are gathered leaf by leaf: each device holds one whole leaf for a
  moment, and the host of process 0 the whole model. What does not fit there is
  served elsewhere (`Published`).

  Args:
    pod: the processes; all of them call `load_params`.
    inner: the engine; None where this process does not lead.
  """

  def __init__(self, pod: Pod, inner: Serving | None):
    self._pod, self._inner = pod, inner

  def load_params(self, params: Any, version: int) -> None:
    """See `Serving`."""
    whole = gathered(params, keep=self._pod.leads)

    def put() -> None:
      assert self._inner is not None
      self._inner.load_params(whole, version)

    self._pod.lead(put)


class Published:
  """Servers elsewhere, fed through a folder that they and the trainer share.

  Every process writes the part of the weights that it holds; process 0 tells
  the servers.

  Args:
    pod: the processes; all of them call `load_params`.
    folder: absolute path or `gs://` address; keeps the last two versions.
    tell: has the servers read a path as a version (`remote.Servers.load`).
  """

  def __init__(self, pod: Pod, folder: str, tell: Callable[[str, int], None]):
    self._pod, self._folder, self._tell = pod, folder, tell

  def load_params(self, params: Any, version: int) -> None:
    """See `Serving`."""
    where = weights.publish(params, self._folder, version)

    def tell() -> None:
      self._tell(where, version)
      weights.forget(self._folder, before=version - 1)

    self._pod.lead(tell)


def gathered(params: Any, *, keep: bool = True) -> Any:
  """Host copies of arrays that are spread over processes.

  Args:
    params: a pytree of global arrays.
    keep: whether this process wants them (else None each); all take part.
  """

  def one(leaf: jax.Array) -> np.ndarray | None:
    sharding = leaf.sharding
    assert isinstance(sharding, jax.sharding.NamedSharding), sharding
    whole = jax.sharding.NamedSharding(
      sharding.mesh, jax.sharding.PartitionSpec()
    )
    out = jax.device_put(leaf, whole)
    return np.asarray(out.addressable_data(0)) if keep else None

  return jax.tree.map(one, params)
