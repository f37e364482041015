"""The work of the jobs of export."""
