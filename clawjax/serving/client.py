"""The way from coroutines to the scheduler's thread and back.

A request is queued from the event loop, its sample comes back through
`call_soon_threadsafe`. Cancelling the awaiting task cancels the generation.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from clawjax.serving.request import OnTokens
from clawjax.types import Sample, SamplingParams, sampling_seed

if TYPE_CHECKING:
  from clawjax.serving.scheduler import Scheduler


class LocalClient:
  """A `SamplingClient` on a scheduler of this process."""

  def __init__(self, scheduler: Scheduler, *, priority: int = 0):
    self._scheduler = scheduler
    self._priority = priority

  @property
  def window(self) -> int:
    """Most tokens of prompt and output together."""
    return self._scheduler.engine.window

  @property
  def policy_version(self) -> int:
    """Version of the weights that serve now."""
    return self._scheduler.engine.version

  async def sample(
    self,
    prompt_ids: np.ndarray,
    params: SamplingParams,
    *,
    session_id: str = '',
    call_index: int = 0,
    on_tokens: OnTokens | None = None,
  ) -> Sample:
    """See `clawjax.types.SamplingClient`.

    Args:
      prompt_ids, params, session_id, call_index: see there.
      on_tokens: called from the scheduler's thread after each burst with the
        new ids, their log-probs and the policy version.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Sample] = loop.create_future()

    def settle(sample: Sample | None, error: Exception | None) -> None:
      if future.done():
        return
      if error is not None:
        future.set_exception(error)
      else:
        future.set_result(sample)

    def deliver(sample: Sample | None, error: Exception | None) -> None:
      if not loop.is_closed():
        loop.call_soon_threadsafe(settle, sample, error)

    request = self._scheduler.submit(
      prompt_ids,
      params,
      deliver,
      session_id=session_id,
      priority=self._priority,
      on_tokens=on_tokens,
    )
    try:
      return await future
    except asyncio.CancelledError:
      self._scheduler.cancel(request)
      raise

  async def sample_many(
    self,
    prompt_ids: np.ndarray,
    params: SamplingParams,
    count: int,
    *,
    session_id: str = '',
  ) -> list[Sample]:
    """`count` continuations of one prompt, prefilled once.

    The i-th has the seed `sampling_seed(params.seed, 'sample', i)`. All but the
    first find the prompt's full pages in the prefix cache.
    """
    return list(
      await asyncio.gather(
        *[
          self.sample(
            prompt_ids,
            dataclasses.replace(
              params, seed=sampling_seed(params.seed, 'sample', i)
            ),
            session_id=session_id,
          )
          for i in range(count)
        ]
      )
    )

  async def close(self) -> None:
    """Nothing to release: the scheduler is its owner's."""
