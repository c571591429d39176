"""Capture: a request and its answer on their way into the store."""
