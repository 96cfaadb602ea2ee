"""Trains the shipped `tiny` tokenizer on what the tiny model will read.

  python -m clawjax.train.tiny_tokenizer RUN_FOLDER [OUT.json]

The texts are those of the generated tasks, and the conversations of a few
trajectories captured in RUN_FOLDER (a run of `configs/tiny_cold_start.py` with a
handful of trajectories), so that the harness's own prompt is read in as few
tokens as it deserves. Changing the tokenizer means making the cold-start
checkpoint again.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence

from clawjax import errors
from clawjax.chat import tokenizers, train_tiny
from clawjax.tasks import synth
from clawjax.train import records

VOCABULARY = 2048
# The prompt is one text among thousands: seen so often it earns its merges.
PROMPT_WEIGHT = 50


def texts(run_dir: pathlib.Path, tokenizer: tokenizers.Tokenizer) -> list[str]:
  """Texts of tasks and of captured conversations.

  Raises:
    ConfigError: the folder holds no trajectories.
  """
  captured = [r for r in records.load(run_dir, 'expert', 0) if r.calls]
  if not captured:
    raise errors.ConfigError(
      f'no captured trajectories in {run_dir}; run'
      ' launch/run.sh --config=configs/tiny_cold_start.py'
      ' --config.expert.trajectories=9 first'
    )
  prompts = [tokenizer.decode(r.calls[-1].prompt_ids) for r in captured]
  return synth.corpus() + prompts * max(1, PROMPT_WEIGHT // len(prompts))


def main(argv: Sequence[str]) -> int:
  """Command line; returns the exit status."""
  if not 2 <= len(argv) <= 3:
    print(__doc__, file=sys.stderr)
    return 2
  tokenizer = tokenizers.load('tiny')
  out = pathlib.Path(argv[2]) if len(argv) > 2 else tokenizer.path
  try:
    found = texts(pathlib.Path(argv[1]), tokenizer)
  except errors.ClawjaxError as error:
    print(f'clawjax: {error}', file=sys.stderr)
    return 2
  size = train_tiny.train(found, VOCABULARY, out)
  print(f'{size} entries in {out}')
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
