"""Execution of a plan: Ray, scheduling, leases, commits and retries."""
