"""What was thought of it, and what was learned: ratings, samples, runs."""
