"""One exception per boundary.

Code inside a package raises ordinary errors; the boundary of the package turns
them into one of these, with the stage in the text. A message says what was
wanted, what came, and the way out. A failed rollout is a record with a reason
(see `clawjax.types.Rollout.outcome`); a failed invariant stops the run.

The launcher prints `str(error)` as one line and exits with status 2 for any
`ClawjaxError`: these are for people, everything else is a bug of ours.
"""


class ClawjaxError(Exception):
  """Base of all errors that are meant to be read by a person."""


class ConfigError(ClawjaxError):
  """A config key is unknown, of a wrong type, or out of range."""


class TokenizerError(ClawjaxError):
  """A tokenizer or chat template cannot be loaded or does not fit."""


class RequestError(ClawjaxError):
  """A client's HTTP request cannot be served; carries the HTTP status.

  Attributes:
    status: HTTP status code.
    kind: machine-readable kind, e.g. 'invalid_request', 'context_overflow'.
    param: name of the offending field, or None.
  """

  def __init__(
    self,
    message: str,
    *,
    status: int = 400,
    kind: str = 'invalid_request',
    param: str | None = None,
  ):
    super().__init__(message)
    self.status = status
    self.kind = kind
    self.param = param


class CaptureError(ClawjaxError):
  """A call could not be recorded exactly (e.g. a log-prob is missing)."""


class EngineError(ClawjaxError):
  """The serving engine refused or failed a request.

  Attributes:
    kind: 'busy', 'too_long', 'non_finite', 'crashed', 'closed'.
  """

  def __init__(self, message: str, *, kind: str = 'crashed'):
    super().__init__(message)
    self.kind = kind


class SandboxError(ClawjaxError):
  """A sandbox could not be created, used or destroyed."""


class HarnessError(ClawjaxError):
  """A harness is missing, of the wrong version, or misconfigured."""


class TaskError(ClawjaxError):
  """A task set or a task cannot be loaded."""


class VerifierError(ClawjaxError):
  """A verifier gave no usable reward: never to be read as zero."""


class CheckpointError(ClawjaxError):
  """A checkpoint is missing, truncated, or of another model."""
