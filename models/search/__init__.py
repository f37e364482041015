"""Exact search, exact ranks and metrics of rankings."""
