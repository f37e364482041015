"""The systems that Ratchet runs: one Python function each, which returns the steps behind its final table."""
