"""What a task asks of the sandboxes that it runs and is scored in.

Loaders put it into a task's metadata:

  readonly      [host path, inside path] pairs, visible but not writable
  executable    files of the workspace that may be run
  env           variables of every command
  image         what the root is made of ('' and absent: the backend's own)
  build         folder of a Dockerfile, the root's if there is no image
  new_session   per user message: the harness starts afresh, in the same workspace

A backend that cannot give what is asked for refuses; nothing is run in another
world than the one that the task was written for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clawjax import errors, types
from clawjax.sandbox import base

WITH_IMAGES = ('docker', 'fake')  # backends that make a root from an image


def spec(
  task: types.Task,
  limits: base.Limits,
  backend: Any,
  *,
  readonly: Sequence[tuple[str, str]] = (),
  **fields: Any,
) -> base.SandboxSpec:
  """The sandbox that a task asks for.

  Args:
    task: with its metadata.
    limits: of the sandbox.
    backend: that will make it.
    readonly: further mounts (the harness's).
    **fields: further fields of the spec.

  Raises:
    TaskError: the backend cannot give what the task asks for.
  """
  image = str(task.metadata.get('image') or '')
  if not image and (folder := task.metadata.get('build')):
    image = f'build:{folder}'
  if image and backend.name not in WITH_IMAGES:
    raise errors.TaskError(
      f'{task.id}: wants the image {image}, and the backend {backend.name} '
      'has no images; choose the docker backend'
    )
  env = {str(k): str(v) for k, v in (task.metadata.get('env') or {}).items()}
  mounts = [(str(h), str(i)) for h, i in task.metadata.get('readonly') or ()]
  return base.SandboxSpec.of(
    limits,
    readonly=(*readonly, *mounts),
    env=env,
    image=image,
    **fields,
  )


async def fill(
  sandbox: base.Sandbox,
  task: types.Task,
  files: Mapping[str, bytes],
  *,
  executable: Sequence[str] | None = None,
) -> None:
  """Writes the workspace.

  Args:
    sandbox: a fresh one.
    task: says which of its files may be run.
    files: relative path -> content.
    executable: paths that may be run, where they are known better (what an
      agent left).
  """
  if executable is None:
    executable = task.metadata.get('executable') or ()
  runnable = set(executable)
  for path, content in files.items():
    mode = 0o755 if path in runnable else 0o644
    await sandbox.write(f'{base.WORKSPACE}/{path}', content, mode)


def sessions(task: types.Task) -> list[tuple[str, ...]]:
  """User messages, grouped by the session that they belong to.

  Raises:
    TaskError: `new_session` has not one entry per user message.
  """
  fresh = list(task.metadata.get('new_session') or [False] * len(task.turns))
  if len(fresh) != len(task.turns):
    raise errors.TaskError(
      f'{task.id}: wanted new_session with {len(task.turns)} entries, '
      f'got {len(fresh)}'
    )
  groups: list[tuple[str, ...]] = []
  for turn, new in zip(task.turns, fresh, strict=True):
    if groups and not new:
      groups[-1] = (*groups[-1], turn)
    else:
      groups.append((turn,))
  return groups
