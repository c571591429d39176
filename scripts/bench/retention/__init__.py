"""Tastes in sequence on one line of versions."""
