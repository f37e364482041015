"""What the quickstart runs on: questions that are generated on any machine, without a download."""
