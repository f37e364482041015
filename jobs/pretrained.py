"""Published models as inputs of steps."""

from __future__ import annotations

from ratchet.models.model_files import UNUSED_FILES, resolve
from ratchet.orchestrator.job_interface import Source


def pretrained(name: str) -> Source:
    """Return the model folder of a path or hub id. All its files enter the fingerprint but `UNUSED_FILES`.

    A hub id is taken from the hub's cache or downloaded. Raises ModelError if neither works.
    """
    return Source(resolve(name), label=name, ignored=UNUSED_FILES)
