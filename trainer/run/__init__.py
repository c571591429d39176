"""The course of one run: steps, retries, checkpoints, the gate."""
