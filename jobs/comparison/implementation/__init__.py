"""The work of the jobs of comparison."""
