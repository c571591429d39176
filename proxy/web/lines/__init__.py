"""The HTTP of lines."""
