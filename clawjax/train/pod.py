"""One run over several hosts: one process leads, all of them compute.

Every host of a slice starts the same command. Process 0 runs what exists once:
proxy, rollouts, evaluation, metrics, the page. What the trainer needs of it goes
to the others by `Pod.share`, and since packing and the order of chunks depend on
nothing else, all processes then run the same programs in the same order, as
multi-controller JAX wants it.

Waiting for rollouts takes minutes, so it is done at a barrier of JAX's
coordination service, which has no opinion on how long a collective may take; the
data itself goes over the devices. A process that dies takes the others with it
(the service notices), and the same command resumes the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from clawjax import errors
from clawjax import metrics as metrics_lib

T = TypeVar('T')
# Bytes that go over the devices at once: one shape, one program.
_PIECE = 1 << 22
# Longest wait for one piece of news from process 0, e.g. a group of rollouts.
_PATIENCE_S = 24 * 3600


@dataclasses.dataclass(frozen=True)
class PodConfig:
  """The processes of a run.

  Attributes:
    on: whether there are several; then each calls `jax.distributed.initialize`.
    coordinator: 'HOST:PORT' of process 0; '': JAX finds all three out (TPU pods,
      Slurm, GKE) or takes JAX_COORDINATOR_ADDRESS.
    processes: how many; 0: found out.
    process: which one this is; -1: found out.
  """

  on: bool = False
  coordinator: str = ''
  processes: int = 0
  process: int = -1

  def __post_init__(self):
    given = bool(self.coordinator), self.processes > 0, self.process >= 0
    if any(given) and not all(given):
      raise ValueError(
        'coordinator, processes and process go together; got'
        f' {self.coordinator!r}, {self.processes} and {self.process}'
      )
    if any(given) and not self.on:
      raise ValueError('a coordinator is of no use unless on is True')
    if self.processes and self.process >= self.processes:
      raise ValueError(
        f'process: wanted below {self.processes}, got {self.process}'
      )

  def start(self) -> Pod:
    """Joins the other processes; to be called before anything touches a device.

    Raises:
      ConfigError: they could not be found or did not come.
    """
    if not self.on:
      return Pod()
    known: dict[str, Any] = {}
    if self.coordinator:
      known = {
        'coordinator_address': self.coordinator,
        'num_processes': self.processes,
        'process_id': self.process,
      }
    try:
      jax.distributed.initialize(**known)
    except (ValueError, RuntimeError) as error:
      raise errors.ConfigError(
        f'pod.on: jax.distributed.initialize: {error}; outside of TPU pods and'
        ' Slurm set pod.coordinator, pod.processes and pod.process'
      ) from error
    return Pod()


class Pod:
  """The processes of this program; with one of them everything passes through.

  All processes call `share`, `lead` and `each` in the same order.
  """

  def __init__(self) -> None:
    self._news = 0

  @property
  def alone(self) -> bool:
    """Whether this is the only process."""
    return jax.process_count() == 1

  @property
  def leads(self) -> bool:
    """Whether this is process 0."""
    return jax.process_index() == 0

  def share(self, value: T) -> T:
    """The value of process 0, on every process; what the others give is unused.

    Args:
      value: anything that pickles.
    """
    if self.alone:
      return value
    from jax.experimental import multihost_utils
    from orbax.checkpoint import multihost

    self._news += 1
    multihost.sync_global_processes(
      f'clawjax-news-{self._news}', timeout=_PATIENCE_S
    )
    data = pickle.dumps(value) if self.leads else b''
    size = int(multihost_utils.broadcast_one_to_all(np.int64(len(data))))
    pieces = []
    for start in range(0, size, _PIECE):
      piece = np.zeros(_PIECE, np.uint8)
      part = data[start : start + _PIECE]
      piece[: len(part)] = np.frombuffer(part, np.uint8)
      pieces.append(np.asarray(multihost_utils.broadcast_one_to_all(piece)))
    if self.leads:
      return value
    return pickle.loads(np.concatenate(pieces).tobytes()[:size])

  def lead(self, work: Callable[[], T]) -> T:
    """Runs `work` on process 0 alone; its result, or its error, is everyone's.

    Raises:
      ClawjaxError: on the other processes, whatever process 0 raised.
    """
    [value] = self.each(lambda: iter([work()]))
    return value

  def each(self, work: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What process 0's iterator yields, on every process as it comes.

    Raises:
      ClawjaxError: on the other processes, whatever process 0 raised.
    """
    if self.alone:
      yield from work()
      return
    if not self.leads:
      while True:
        kind, value = self.share(('', None))
        if kind == 'end':
          return
        if kind == 'error':
          raise errors.ClawjaxError(f'process 0: {value}')
        yield value
    source = None
    while True:
      try:
        source = work() if source is None else source
        value = next(source)
      except StopIteration:
        self.share(('end', None))
        return
      except Exception as error:
        self.share(('error', f'{type(error).__name__}: {error}'))
        raise
      self.share(('item', value))
      yield value

  @contextlib.contextmanager
  def metrics(
    self, run_dir: pathlib.Path, resume_step: int | None
  ) -> Iterator[Callable[[int, Mapping[str, float]], object]]:
    """What writes the metrics of a step; on the others it does nothing.

    Args:
      run_dir: the run folder.
      resume_step: see `metrics.Writer`.
    """
    if not self.leads:
      yield lambda step, numbers: None
      return
    writer = metrics_lib.Writer(run_dir, resume_step=resume_step)
    with contextlib.closing(writer):
      yield writer.write
