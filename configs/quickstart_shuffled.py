"""The control of the quickstart: rewards dealt out at random in each group.

  launch/run.sh --config=configs/quickstart_shuffled.py

Everything else is the quickstart, so what is gained here is not learning.
"""

from configs import quickstart


def get_config():
  """The quickstart with nothing to learn."""
  c = quickstart.get_config()
  c.name = 'quickstart_shuffled'
  c.loop.credit.shuffle_rewards = True
  return c
