"""Models as parameters of recipes."""

from __future__ import annotations

from ratchet.jobs.pretrained import pretrained
from ratchet.orchestrator.finished_run import find_model_output
from ratchet.orchestrator.step import Output, Source


def find_model(name: str) -> Source | Output:
    """Return the model that a user names: a folder, a hub id, or a model of a run (`ratchet models` lists them).

    A hub id is taken from the hub's cache or downloaded. Raises ModelError if neither works, and InputError for an
    unknown model of a run.
    """
    return find_model_output(name) or pretrained(name)
