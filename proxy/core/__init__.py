"""Foundations of every other package: errors, tasks, events, bytes on the wire."""
