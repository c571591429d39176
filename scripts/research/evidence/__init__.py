"""What ratings show beside what was asked, and not in replies alone."""
