"""Jobs that make training queries of documents: prompts for `generate`, its answers as queries, and the filter."""
