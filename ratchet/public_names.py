"""The public names of `import ratchet`: the Python API, and what recipes and jobs import."""

from importlib import import_module
from typing import Any

PLACES = {
    "ratchet.orchestrator.api": ("run", "sweep", "plan", "list_models", "Run"),
    "ratchet.orchestrator.step": ("step", "Metric", "Output", "Row", "Source", "Step", "Summary"),
    "ratchet.orchestrator.job_interface": (
        "Context",
        "Division",
        "Job",
        "Progress",
        "Resources",
        "Result",
    ),
}
"""Module -> its public names."""


def find(name: str) -> Any:
    """Import a public name on use: commands and workers need few. Raises AttributeError for an unknown name."""
    for module, names in PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'ratchet' has no attribute '{name}'")
