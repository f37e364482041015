"""Systems are compared query by query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.significance import compute_half_width
from ratchet.data.tables import write_table
from ratchet.errors import InputError
from ratchet.jobs.comparison.compare_systems import JOB, Config, Inputs, run
from ratchet.orchestrator.job_interface import Context

VALUES = {"a": [0.5, 0.5, 1.0, 0.0], "b": [1.0, 0.25, 1.0, 0.5]}


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    names = ["q0", "q1", "q2", "q3"]
    columns: dict[str, Any] = {
        "id": names,
        "text": names,
        "positives": [["d"]] * 4,
        "grades": [[1]] * 4,
    }
    write_table(
        tmp_path / "queries/shard-00000.parquet",
        pa.table({**columns, "group": ["x", "x", "y", "z"]}),
    )
    for name, values in VALUES.items():
        table = pa.table({"id": names, "map@25": values, "r@25": values[::-1]})
        write_table(tmp_path / name / "per_query.parquet", table)
    return Inputs(tmp_path / "queries", (tmp_path / "a", tmp_path / "b"))


def test_differences_intervals_and_queries_won(
    inputs: Inputs, context: Callable[..., Context]
) -> None:
    config = Config(("first", "second"), ("map@25", "r@25"))
    result = run(context(1), config, inputs)
    width = compute_half_width(np.array([0.5, -0.25, 0.0, 0.5]), np.array([0, 0, 1, 2]))
    assert result.metrics == {
        "1/map@25": 0.1875,
        "1/map@25/interval": round(width, 6),
        "1/r@25": 0.1875,
        "1/r@25/interval": result.metrics["1/r@25/interval"],
        "1/won": 2,
        "1/lost": 1,
    }
    assert set(result.metrics) == set(JOB.metrics(config))  # type: ignore[misc]
    ((row,),) = result.tables.values()
    assert (row["system"], row["map@25, low"], row["equal"]) == (
        "second",
        round(0.1875 - width, 6),
        1,
    )


def test_evaluations_of_other_queries_are_refused(
    inputs: Inputs, context: Callable[..., Context]
) -> None:
    other = pa.table({"id": ["q9"], "map@25": [1.0]})
    write_table(inputs.evaluations[1] / "per_query.parquet", other)
    with pytest.raises(InputError, match="rows of other queries given; expected those of"):
        run(context(1), Config(("first", "second"), ("map@25",)), inputs)
    assert JOB.check
    with pytest.raises(InputError, match="2 given; expected one for each of a, b, c"):
        JOB.check(Config(("a", "b", "c")), inputs, {})
