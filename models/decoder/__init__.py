"""Causal language models: chat templates and generation."""
