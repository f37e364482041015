"""Implementations of the statement jobs. Workers import these modules; plans do not."""
