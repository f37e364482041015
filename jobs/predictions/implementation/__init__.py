"""Implementations of the prediction jobs. Workers import these modules; plans do not."""
