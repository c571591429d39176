"""Signals: events after an answer, their meaning, and how far that is trusted."""
