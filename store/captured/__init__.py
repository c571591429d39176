"""Captured data: completions, conversations, requests."""
