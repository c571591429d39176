"""A version as files that other programs load: `rlproxy model export`."""
