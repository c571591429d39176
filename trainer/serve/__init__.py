"""The built-in backend."""
