"""Jobs on statements grouped by paper: prepare, finetune on pairs, evaluate."""
