"""The held-out metric of the selected model before its adapter is merged, and how much of it merging costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "selection.json"
MERGING_COST = "merging_cost"
"""Metric: the held-out metric of the selected model before merging minus after merging."""


def write_selection(folder: Path, metric: str, value: float, *, exact: bool = True) -> None:
    """Write the held-out metric of the kept model. exact: whether it is over the whole corpus, not `eval_pool`."""
    (folder / NAME).write_text(
        json.dumps({"metric": metric, "value": value, "exact": exact}) + "\n"
    )


def list_cutoffs(selection: Path | None, ks: tuple[int, ...]) -> list[int]:
    """Return the cut-offs `ks` and the cut-off of the metric that selected the model, ascending."""
    if selection is None:
        wanted = {*ks}
    else:
        wanted = {*ks, *map(int, _read(selection)["metric"].split("@")[1:])}
    return sorted(wanted)


def compute_merging_cost(
    selection: Path | None, values: Mapping[str, float], queries: int
) -> dict[str, float]:
    """Return the metrics `MERGING_COST` and its number of queries. values: metrics of the merged model on the held-out
    rows. Empty if the model was not selected by a metric over the whole corpus."""
    if selection is None:
        return {}
    given = _read(selection)
    if not given["exact"]:
        return {}
    cost = round(given["value"] - float(values[given["metric"]]), 6)
    return {MERGING_COST: cost, f"{MERGING_COST}/queries": queries}


def _read(selection: Path) -> dict[str, Any]:
    return json.loads(selection.read_text())
