"""Data of the quickstart: questions that are generated on any machine, without a download."""
