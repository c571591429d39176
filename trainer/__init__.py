"""The trainer: a run folder in, an adapter folder out. No database, no HTTP to the proxy."""
