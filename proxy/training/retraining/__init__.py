"""The history of ratings once more, on another base."""
