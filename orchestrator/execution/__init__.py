"""Execution of a plan: Ray, scheduling, leases, commits, retries, and submission to a cluster."""
