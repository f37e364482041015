"""Published models as inputs of steps."""

from ratchet.models.model_files import UNUSED_FILES, resolve
from ratchet.models.presets import find_preset
from ratchet.orchestrator.job_interface import Source


def pretrained(name: str) -> Source:
    """Return the model folder of a path or hub id. The fingerprint contains all its files except `UNUSED_FILES`, and
    the presets that its name selects.

    A hub id is read from the hub's cache, or downloaded. Raises ModelError if neither works."""
    folder = resolve(name)
    families = []
    for kind in ("embedder", "reranker"):
        preset = find_preset(folder, kind)
        if preset is not None:
            families.append(preset.family)
    return Source(folder, label=name, ignored=UNUSED_FILES, told_by_name=",".join(families))
