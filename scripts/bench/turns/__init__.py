"""Conversations of two turns, of which only the last is rated."""
