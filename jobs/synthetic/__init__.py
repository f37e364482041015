"""Jobs that make synthetic queries: prompts for `generate`, queries from its answers, and the round-trip filter."""
