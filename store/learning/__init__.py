"""Opinions and what was learned from them: ratings, samples, runs."""
