"""Throw-away worlds for rollouts and verifiers: bwrap, docker, fake."""

from __future__ import annotations

from typing import Any

from clawjax.errors import SandboxError

NAMES = ('bwrap', 'docker', 'fake')


def load(name: str, **options: Any):
  """A sandbox backend by name; see its class for the options."""
  if name == 'bwrap':
    from clawjax.sandbox.bwrap import BwrapBackend

    return BwrapBackend(**options)
  if name == 'docker':
    from clawjax.sandbox.docker import DockerBackend

    return DockerBackend(**options)
  if name == 'fake':
    from clawjax.sandbox.fake import FakeBackend

    return FakeBackend(**options)
  raise SandboxError(
    f'unknown sandbox backend {name!r}; there are {", ".join(NAMES)}'
  )
