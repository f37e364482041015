"""Parts that finetuning jobs share: settings, training loop, Ray Train, checkpoints, tracking."""
