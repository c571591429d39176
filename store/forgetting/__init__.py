"""Removal of what a person wants gone, from rows to copies."""
