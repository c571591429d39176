"""One request to the backend, and its answer."""
