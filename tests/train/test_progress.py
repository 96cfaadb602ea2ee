"""Counts shown to a person, on a terminal and in a log."""

import io

import rich.console

from clawjax.train import progress


def test_text_counts_and_averages_only_known_rewards():
  shown = progress.Progress(4)
  shown.started()
  shown.started()
  shown.finished(0.5, failed=False)
  shown.finished(None, failed=True)
  shown.started()
  text = shown.text()
  assert '2/4 done' in text
  assert '1 running' in text
  assert '1 failed' in text
  assert 'reward 0.500' in text
  assert 'left' in text


def test_plain_console_prints_the_last_state():
  out = io.StringIO()
  console = rich.console.Console(file=out, force_terminal=False, width=200)
  with progress.Display(console).rollouts('step 1', 2) as shown:
    shown.started()
    shown.finished(1.0, failed=False)
    shown.started()
    shown.finished(0.0, failed=False)
  assert out.getvalue().strip() == (
    'step 1: 2/2 done, 0 running, 0 failed, reward 0.500'
  )


def test_terminal_keeps_one_final_line():
  out = io.StringIO()
  console = rich.console.Console(file=out, force_terminal=True, width=200)
  with progress.Display(console).rollouts('eval', 1) as shown:
    shown.started()
    shown.finished(0.25, failed=False)
  assert 'eval: 1/1 done' in out.getvalue()
