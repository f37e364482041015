"""The work of the jobs of indexes."""
