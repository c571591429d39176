"""Rated answers as files that other trainers read: `rlproxy export --format`."""
