"""`rlproxy retrain`."""
