"""Published models as inputs of steps."""

from pathlib import Path

from ratchet.errors import ModelError
from ratchet.models.model_files import ADAPTER_CONFIG, UNUSED_FILES, resolve
from ratchet.models.model_kind import read_object
from ratchet.models.presets import find_preset
from ratchet.orchestrator.job_interface import Source


def pretrained(name: str) -> Source:
    """Return the model folder of a path or hub id. The fingerprint contains all its files except `UNUSED_FILES`, and
    the presets that its name selects.

    A hub id is read from the hub's cache, or downloaded. Raises ModelError if neither works, and for a model without a
    transformer."""
    folder = resolve(name)
    modules = folder / "modules.json"
    if modules.is_file() and "StaticEmbedding" in modules.read_text(errors="replace"):
        raise ModelError(
            f"model {name}: a StaticEmbedding, a table with one vector per token; expected a transformer, since"
            " adapters, pooling and prompts are those of its layers; give another model"
        )
    families = []
    for kind in ("embedder", "reranker"):
        preset = find_preset(folder, kind)
        if preset is not None:
            families.append(preset.family)
    return Source(folder, label=name, ignored=UNUSED_FILES, told_by_name=",".join(families))


def find_base(folder: Path) -> str | None:
    """Return the base of a folder with an adapter of PEFT and no model, by its adapter_config.json; None for others.
    Raises ModelError for an adapter that names no base."""
    file = folder / ADAPTER_CONFIG
    if not file.is_file() or (folder / "config.json").is_file():
        return None
    base = read_object(file).get("base_model_name_or_path")
    if not base:
        raise ModelError(
            f"{file}: no base_model_name_or_path; expected the folder or the hub id of the adapter's base; add it"
        )
    return str(base)
