"""`/rl/retrain`."""
