"""Implementations of the synthetic-query jobs. Workers import these modules; plans do not."""
