"""Infrastructure of jobs with several workers: maps over shards, vLLM engines."""
