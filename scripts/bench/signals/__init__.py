"""Benchmarks of signals and judges."""
