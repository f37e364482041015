"""The metric by which training selected a model, with its adapter not merged, and what merging cost of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "selection.json"
MERGING_COST = "merging_cost"
"""The held-out metric of the selected model before merging, minus that after it."""


def write_selection(folder: Path, metric: str, value: float, *, exact: bool = True) -> None:
    """Write the held-out metric of the model that is kept. exact: over the whole corpus, not over a pool of it."""
    (folder / NAME).write_text(json.dumps({"metric": metric, "value": value, "exact": exact}) + "\n")


def list_cutoffs(selection: Path | None, ks: tuple[int, ...]) -> list[int]:
    """Return the cut-offs `ks`, with that of the metric that selected the model."""
    wanted = {*ks} if selection is None else {*ks, *map(int, _read(selection)["metric"].split("@")[1:])}
    return sorted(wanted)


def compute_merging_cost(selection: Path | None, values: Mapping[str, float], queries: int) -> dict[str, float]:
    """Return `MERGING_COST` for the metrics of the merged model on the held-out rows, and the number of these; nothing
    without a selection by metrics over the whole corpus."""
    if selection is None or not (given := _read(selection))["exact"]:
        return {}
    cost = round(given["value"] - float(values[given["metric"]]), 6)
    return {MERGING_COST: cost, f"{MERGING_COST}/queries": queries}


def _read(selection: Path) -> dict[str, Any]:
    return json.loads(selection.read_text())
