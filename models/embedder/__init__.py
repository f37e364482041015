"""Embedders map texts to vectors."""
