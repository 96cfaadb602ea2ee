"""Training state on disk, through Orbax: whole or absent, newest first.

A checkpoint is one folder per finished step: the `TrainState` and a small JSON
of facts (step, policy version, the model's config). Orbax copies the arrays to
the host, and writes into a temporary folder while training goes on, which it
then renames: a kill leaves the previous ones whole. With several processes each
writes what it holds, and the folder is one that all of them reach. At restore the newest readable one wins: a truncated one is named and skipped, one
of another model stops the run with both shapes in the text.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from clawjax import errors

log = logging.getLogger(__name__)


class Checkpoints:
  """Keeps the last `keep` checkpoints in a folder, or at a `gs://` address."""

  def __init__(self, folder: pathlib.Path | str, *, keep: int = 2):
    import orbax.checkpoint as ocp

    self._ocp = ocp
    self._folder = folder
    self._writing: int | None = None
    where = epath.Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    self._manager = ocp.CheckpointManager(
      where if '://' in str(folder) else where.absolute(),
      # Named here so that a fresh process can read an item's metadata.
      item_handlers={
        'state': ocp.StandardCheckpointHandler(),
        'facts': ocp.JsonCheckpointHandler(),
      },
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep, enable_async_checkpointing=True
      ),
    )

  def save(self, step: int, state: Any, facts: Mapping[str, Any]) -> None:
    """Begins to write `state` (a pytree of arrays) as finished step `step`.

    Waits for the one before it, not for this one; the caller may give the
    arrays away at once.

    Raises:
      CheckpointError: the disk is full or not writable, found here or while the
        checkpoint before was written.
    """
    ocp = self._ocp
    self.wait()
    with self._told(step):
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(state),
          facts=ocp.args.JsonSave({'step': step, **facts}),
        ),
        force=True,
      )
    self._writing = step

  def wait(self) -> None:
    """Returns when everything saved is on disk.

    Raises:
      CheckpointError: it could not be written.
    """
    if self._writing is None:
      return
    step, self._writing = self._writing, None
    with self._told(step):
      self._manager.wait_until_finished()
      self._manager.check_for_errors()

  @contextlib.contextmanager
  def _told(self, step: int) -> Iterator[None]:
    try:
      yield
    except (OSError, ValueError) as error:
      raise errors.CheckpointError(
        f'cannot write checkpoint {step} in {self._folder}: {error};'
        ' free some space or give another --run_dir'
      ) from error

  def steps(self) -> list[int]:
    """Finished steps on disk, oldest first."""
    self.wait()
    return sorted(self._manager.all_steps())

  def restore(self, like: Any) -> tuple[int, Any, dict[str, Any]] | None:
    """The newest readable checkpoint.

    Args:
      like: a pytree with the wanted structure, shapes, dtypes and shardings.

    Returns:
      (step, state, facts), or None when the folder holds no checkpoint.

    Raises:
      CheckpointError: there are checkpoints but none can be read, or one is
        of another model.
    """
    ocp = self._ocp
    failures = []
    for step in reversed(self.steps()):
      try:
        self._check_shapes(step, like)
        out = self._manager.restore(
          step,
          args=ocp.args.Composite(
            state=ocp.args.StandardRestore(_abstract(like)),
            facts=ocp.args.JsonRestore(),
          ),
        )
      except errors.CheckpointError:
        raise
      except Exception as error:  # Orbax raises many kinds
        line = str(error).strip().splitlines()
        text = line[0] if line else type(error).__name__
        failures.append(f'{step}: {text[:200]}')
        log.warning('checkpoint %s is not readable: %s', step, text[:200])
        continue
      return step, out['state'], dict(out['facts'])
    if failures:
      raise errors.CheckpointError(
        f'none of the checkpoints in {self._folder} can be read'
        f' ({"; ".join(failures)}); remove the folder to start anew'
      )
    return None

  def _check_shapes(self, step: int, like: Any) -> None:
    """Raises when the stored tree is of another model."""
    found = self._manager.item_metadata(step)['state']
    if found is None:
      raise ValueError('no state in it')
    tree = getattr(found, 'tree', found)
    stored = _shapes(tree)
    wanted = _shapes(like)
    for name in sorted(stored.keys() | wanted.keys()):
      if stored.get(name) != wanted.get(name):
        raise errors.CheckpointError(
          f'checkpoint {step} in {self._folder} is of another model: {name}'
          f' is {stored.get(name, "absent")} there,'
          f' {wanted.get(name, "absent")} here; give another --run_dir'
        )

  def close(self) -> None:
    """Waits for writes and frees the manager."""
    try:
      self.wait()
    finally:
      self._manager.close()


def _abstract(like: Any) -> Any:
  def leaf(x):
    sharding = x.sharding if isinstance(x, jax.Array) else None
    return jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=sharding)

  return jax.tree.map(leaf, like)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  flat = jax.tree_util.tree_flatten_with_path(tree)[0]
  return {_name(path): tuple(leaf.shape) for path, leaf in flat}


def _name(path: tuple[Any, ...]) -> str:
  """'params/layers/0/q': the same for attributes, keys and indices."""
  parts = []
  for key in path:
    for attribute in ('key', 'name', 'idx'):
      if hasattr(key, attribute):
        parts.append(str(getattr(key, attribute)))
        break
  return '/'.join(parts)
