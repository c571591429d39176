"""When a run starts, what it receives, and what becomes of it."""
