"""Several servers with one model."""
