"""Lessons measured: what a comment changes in the next answer, how soon, and when the weights do without it."""
