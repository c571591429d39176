"""A loss of your own: `train.loss = "~/loss.py:loss"`. Here PPO's clipped surrogate."""

import torch


def loss(logprobs, old_logprobs, advantages):
    """The loss of each token; rlproxy masks and averages it."""
    ratio = torch.exp(logprobs - old_logprobs)
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
