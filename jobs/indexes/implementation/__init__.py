"""Implementations of the index jobs. Workers import these modules; plans do not."""
