"""Commands for the database as a whole."""
