"""Comparison of systems: paired differences of their metrics, latency and size."""
