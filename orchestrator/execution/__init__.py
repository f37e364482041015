"""Execution of a plan: Ray, scheduling, leases to commits, retries, submission to a cluster."""
