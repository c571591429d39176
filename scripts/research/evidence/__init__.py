"""Ratings that show a taste beside what was asked, and not in replies alone."""
