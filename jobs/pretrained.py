"""A published model as a step's input: no job, only where its files are and which of them make it what it is."""

from __future__ import annotations

from jobs.job import Source


def pretrained(name: str) -> Source:
    """The model folder of a path or hub id. It enters identity by its weights, tokenizer and configuration files.

    A hub id is taken from the hub's cache, or downloaded. Raises ModelError where neither works.
    """
    from models.weights import IDENTITY_FILES, resolve

    return Source(resolve(name), label=name, only=tuple(IDENTITY_FILES))
