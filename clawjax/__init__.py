"""clawjax: RL of language models through the agent harnesses people use."""

__version__ = '0.1.0'
