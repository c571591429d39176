"""Data that leaves the database, or comes back: backups, exports, other forms of the file."""
