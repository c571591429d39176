"""The files between the proxy and a run."""
