"""The effect of rollouts on a real model."""
