"""Rerankers map (query, passage) pairs to relevance scores."""
