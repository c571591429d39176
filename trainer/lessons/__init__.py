"""Sources of a run's learning: samples, teachers, and how much each token is pushed."""
