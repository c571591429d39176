"""Functions of the user's own Python files, each in a child process without secrets and with limits."""
