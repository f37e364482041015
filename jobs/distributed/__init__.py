"""Infrastructure for jobs that run on many workers: maps over shards, vLLM engines."""
