"""What is known of a model from its config.json alone, on the meta device: its memory, and what an adapter trains."""
