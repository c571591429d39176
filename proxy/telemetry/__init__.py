"""Traces and metrics for OpenTelemetry collectors, by the GenAI semantic conventions."""
