"""The work of the jobs of predictions."""
