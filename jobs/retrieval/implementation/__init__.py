"""Implementations of the retrieval jobs. Workers import these modules; plans do not."""
