"""The metric by which training selected a model, with its adapter not merged, and what merging cost of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "selection.json"
MERGING_COST = "merging_cost"
"""The held-out metric of the selected model before merging, minus that after it."""


def write_selection(folder: Path, metric: str, value: float) -> None:
    """Write the held-out metric of the model that is kept."""
    (folder / NAME).write_text(json.dumps({"metric": metric, "value": value}) + "\n")


def list_cutoffs(selection: Path | None, ks: tuple[int, ...]) -> list[int]:
    """Return the cut-offs `ks`, with that of the metric that selected the model."""
    wanted = {*ks} if selection is None else {*ks, *map(int, _read(selection)["metric"].split("@")[1:])}
    return sorted(wanted)


def compute_merging_cost(selection: Path | None, values: Mapping[str, float]) -> dict[str, float]:
    """Return `MERGING_COST` for the metrics of the merged model on the held-out rows; nothing without a selection."""
    if selection is None:
        return {}
    given = _read(selection)
    return {MERGING_COST: round(given["value"] - float(values[given["metric"]]), 6)}


def _read(selection: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(selection.read_text())
    return found
