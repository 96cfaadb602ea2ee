"""What a person sees while rollouts run: done, running, failed, reward, time.

On a terminal this is a live bar (rich); elsewhere (a log file, CI) it is a line
every few seconds, so that neither is silent nor flooded. The bar is fed by the
fleet's callbacks and holds no state that anything else reads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import rich.console
import rich.progress

PLAIN_EVERY_S = 10.0


class Progress:
  """Counts of one batch of rollouts."""

  def __init__(self, total: int):
    self.total = total
    self.done = 0
    self.running = 0
    self.failed = 0
    self.scored = 0
    self.reward_sum = 0.0
    self._ahead = 0
    self._start = time.monotonic()

  def started(self) -> None:
    """A rollout has begun."""
    self.running += 1

  def finished(self, reward: float | None, *, failed: bool) -> None:
    """A rollout has ended; `reward` is None when unknown."""
    self.running = max(self.running - 1, 0)
    self.done += 1
    self.failed += failed
    if reward is not None:
      self.scored += 1
      self.reward_sum += reward

  def ahead(self, count: int) -> None:
    """`count` rollouts were already there (a resumed step)."""
    self.done += count
    self._ahead += count

  def text(self) -> str:
    """'12 done, 8 running, 0 failed, reward 0.41, 0:31 left'."""
    parts = [
      f'{self.done}/{self.total} done',
      f'{self.running} running',
      f'{self.failed} failed',
    ]
    if self.scored:
      parts.append(f'reward {self.reward_sum / self.scored:.3f}')
    spent = time.monotonic() - self._start
    own = self.done - self._ahead
    if own > 0 and self.done < self.total:
      left = spent / own * (self.total - self.done)
      parts.append(f'{int(left // 60)}:{int(left % 60):02d} left')
    return ', '.join(parts)


class Display:
  """Shows `Progress` objects on a console."""

  def __init__(self, console: rich.console.Console | None = None):
    self.console = console or rich.console.Console(stderr=False)

  def say(self, text: str) -> None:
    """One line that stays."""
    self.console.print(text, highlight=False, markup=False, soft_wrap=True)

  @contextlib.contextmanager
  def rollouts(self, label: str, total: int) -> Iterator[_Shown]:
    """Shows a batch of rollouts until the block ends."""
    progress = Progress(total)
    if self.console.is_terminal:
      bar = rich.progress.Progress(
        rich.progress.TextColumn('{task.description}'),
        rich.progress.BarColumn(bar_width=24),
        rich.progress.TextColumn('{task.fields[text]}'),
        console=self.console,
        transient=True,
      )
      with bar:
        task = bar.add_task(label, total=total, text='')
        yield _Shown(
          progress,
          lambda: bar.update(
            task, completed=progress.done, text=progress.text()
          ),
        )
      self.say(f'{label}: {progress.text()}')
      return
    last = [time.monotonic()]

    def plain() -> None:
      now = time.monotonic()
      if now - last[0] >= PLAIN_EVERY_S or progress.done == progress.total:
        last[0] = now
        self.say(f'{label}: {progress.text()}')

    yield _Shown(progress, plain)


class _Shown:
  """A `Progress` that redraws itself at each change."""

  def __init__(self, progress: Progress, redraw):
    self.progress = progress
    self._redraw = redraw

  def started(self) -> None:
    self.progress.started()
    self._redraw()

  def finished(self, reward: float | None, *, failed: bool) -> None:
    self.progress.finished(reward, failed=failed)
    self._redraw()

  def ahead(self, count: int) -> None:
    self.progress.ahead(count)
    self._redraw()
