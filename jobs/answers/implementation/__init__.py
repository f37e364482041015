"""The work of the jobs in ratchet.jobs.answers."""
