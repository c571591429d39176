"""Backups, encryption, integrity, forgetting."""
