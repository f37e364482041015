"""Indexes: documents that are found by typed queries."""
