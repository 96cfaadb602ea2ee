"""Losses on trees: functions from arrays to arrays, never calling a model.

logprobs     log-prob and entropy of the trained tokens, at the parent slot
advantages   rewards of a group -> one advantage per rollout
weights      how terms are averaged (rollout_mean, token_mean, ...)
grpo         the clipped policy loss of GRPO and PPO, with its options
ppo          values -> advantages along each rollout's own chain
value        the value model's loss
correction   importance weights between sampler and trainer
diagnostics  sums that become metrics
"""
