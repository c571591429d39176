"""Answers that rlproxy samples itself to captured prompts, while nobody asks."""
