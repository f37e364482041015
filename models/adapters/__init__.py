"""LoRA adapters: attach, save, load, merge."""
