"""Implementations of the export jobs. Workers import these modules; plans do not."""
