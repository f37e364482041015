"""What a model folder is used as."""

from pathlib import Path
from typing import Literal

from ratchet.models.model_files import (
    ENCODING_CONFIG_FILE,
    RERANKER_CONFIG_FILE,
    find_config_folder,
)
from ratchet.models.model_kind import describe_kind, read_config, read_optional
from ratchet.models.presets import find_preset

Usage = Literal["embedder", "reranker", "decoder"]
ADAPTED: dict[str | None, Usage] = {
    "SEQ_CLS": "reranker",
    "CAUSAL_LM": "decoder",
    "FEATURE_EXTRACTION": "embedder",
}
"""PEFT's `task_type` of an adapter -> what it was trained as."""


def read_task(adapter: Path | None) -> str | None:
    """Return PEFT's `task_type` of an adapter; None for no adapter, and if it says nothing."""
    if adapter is None:
        return None
    return read_optional(adapter / "adapter_config.json").get("task_type")


def find_usage(model: Path, adapter: Path | None = None) -> Usage:
    """Return what a model, maybe with an adapter, is used as: by its files, else by the adapter's task, else by its
    config and name."""
    folder = find_config_folder(model, adapter)
    kind = describe_kind(read_config(model))
    if (folder / ENCODING_CONFIG_FILE).is_file():  # also over the base of a reranker
        return "embedder"
    if (
        (folder / RERANKER_CONFIG_FILE).is_file()
        or kind == "a reranker"
        or find_preset(model, "reranker")
    ):
        return "reranker"
    task = read_task(adapter)
    if task in ADAPTED:
        return ADAPTED[task]
    embeds = (folder / "modules.json").is_file() or find_preset(model, "embedder")
    if kind == "a decoder" and not embeds:
        return "decoder"
    return "embedder"
