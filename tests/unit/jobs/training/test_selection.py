"""How much merging lowers the metric that selected a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.jobs.training.merging_cost import (
    NAME,
    compute_merging_cost,
    list_cutoffs,
    write_selection,
)


@pytest.mark.parametrize(
    ("metric", "cutoffs"),
    [("map@7", [1, 5, 7]), ("map@5", [1, 5]), ("mrr", [1, 5]), ("eval_loss", [1, 5])],
)
def test_the_cut_off_of_the_metric_is_measured(
    metric: str, cutoffs: list[int], tmp_path: Path
) -> None:
    write_selection(tmp_path, metric, 0.5)
    assert list_cutoffs(tmp_path / NAME, (5, 1)) == cutoffs
    assert list_cutoffs(None, (5, 1)) == [1, 5]
    assert compute_merging_cost(tmp_path / NAME, {metric: 0.4, "map": 0.9}, 7) == {
        "merging_cost": 0.1,
        "merging_cost/queries": 7,
    }
    assert compute_merging_cost(None, {metric: 0.4}, 7) == {}
    write_selection(tmp_path, metric, 0.5, exact=False)
    assert compute_merging_cost(tmp_path / NAME, {metric: 0.4}, 7) == {}, "ranked against a pool"
