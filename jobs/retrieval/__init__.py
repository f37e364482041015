"""Retrieval jobs: prepare, embed, mine, rerank, finetune, merge, evaluate."""
