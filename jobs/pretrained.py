"""Models as inputs of steps: published ones, folders, and those that runs made."""

from __future__ import annotations

from pathlib import Path

from ratchet.models.model_files import UNUSED_FILES, resolve
from ratchet.models.presets import find_preset
from ratchet.orchestrator.finished_run import find_model_output
from ratchet.orchestrator.job_interface import Source
from ratchet.orchestrator.run_models import NAME
from ratchet.orchestrator.step import Output


def pretrained(name: str) -> Source | Output:
    """Return the model folder of a path, a hub id, or the name of a run's model (`ratchet models` lists them).

    All files of a folder enter the fingerprint but `UNUSED_FILES`, and so do the presets that its name selects. A hub
    id is taken from the hub's cache or downloaded. Raises ModelError if neither works, and InputError for an unknown
    model of a run.
    """
    if NAME.fullmatch(name) and not Path(name).exists():
        return find_model_output(name)
    folder = resolve(name)
    families = [found.family for kind in ("embedder", "reranker") if (found := find_preset(folder, kind))]
    return Source(folder, label=name, ignored=UNUSED_FILES, told_by_name=",".join(families))
