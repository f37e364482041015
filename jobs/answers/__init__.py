"""Jobs on tasks that a causal language model answers: prepare, finetune, generate, verify."""
