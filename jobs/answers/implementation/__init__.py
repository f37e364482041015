"""Implementations of the answering jobs. Workers import these modules; plans do not."""
