"""The database file itself, and the threads that read and write it."""
