"""What several recipes are made of."""
