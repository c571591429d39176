"""Shares of what all clients need: turns, memory, file descriptors."""
