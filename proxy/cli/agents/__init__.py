"""Pointing agents at rlproxy: what to write into each one's own configuration, and how to take it out again."""
