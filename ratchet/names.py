"""The names that `import ratchet` offers: the use from Python, and what recipes and jobs need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

PLACES = {
    "ratchet.orchestrator.api": ("run", "sweep", "plan", "list_models", "Run"),
    "ratchet.orchestrator.step": ("step", "Metric", "Output", "Row", "Source", "Step", "Summary"),
    "ratchet.orchestrator.job_interface": ("Context", "Job", "Progress", "Resources", "Result"),
}
"""Module -> those of its names."""


def find(name: str) -> Any:
    """Import a name: the command and the workers need few of them. Raises AttributeError for another one."""
    for module, names in PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'ratchet' has no attribute '{name}'")
