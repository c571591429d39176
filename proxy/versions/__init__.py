"""Which version answers: the live pointer, and what watches it."""
