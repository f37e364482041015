"""Comparison of systems: paired differences of their metrics."""
