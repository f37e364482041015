"""Embeddings and scores by models behind HTTP APIs."""
