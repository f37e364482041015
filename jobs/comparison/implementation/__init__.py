"""Implementations of the comparison jobs. Workers import these modules; plans do not."""
