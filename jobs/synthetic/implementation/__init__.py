"""The work of the jobs of synthetic queries."""
