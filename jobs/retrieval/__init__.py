"""Jobs on queries, documents and their relevance: prepare, embed, mine, rerank, finetune, merge, evaluate."""
