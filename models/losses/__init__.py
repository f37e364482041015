"""Training objectives and their gradients."""
