"""Few held-out queries: a cross-validation of the training queries decides whether the model is kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from embedder_finetuning import FAST, context
from step_process import run_step

from ratchet.data.tables import read_shards, write_table
from ratchet.jobs.retrieval import finetune_embedder
from ratchet.jobs.retrieval.finetune_embedder import Inputs
from ratchet.jobs.training.cross_validation import FOLDS, join_histories, needs_cross_validation
from ratchet.jobs.training.schedule import TrainHistory

CONFIG = dataclasses.replace(FAST, significance_level=0.05)


@pytest.fixture(scope="module")
def inputs(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Eight valid queries."""
    folder = tmp_path_factory.mktemp("few")
    write_table(
        folder / "valid" / "shard-00000.parquet", read_shards(concepts / "valid").slice(0, 8)
    )
    return Inputs(concepts / "base", concepts / "mined", concepts / "corpus", folder / "valid")


@pytest.mark.soak
def test_a_gain_in_all_folds_replaces_the_base(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    result = run_step(finetune_embedder.run, context(tmp_path), CONFIG, inputs)
    assert (result.metrics["tested"], result.metrics["tested_on"]) == (
        "eval_loss",
        "folds of the training queries",
    )
    assert result.metrics["improved"]
    assert result.metrics["changed"]
    assert str(result.metrics["kept"]).startswith("epoch ")
    assert float(result.metrics["p_value"]) < 0.01
    ids = [
        set(read_shards(tmp_path / f"work/fold-{n}/valid")["id"].to_pylist()) for n in range(FOLDS)
    ]
    every = set(read_shards(inputs.mined)["id"].to_pylist())
    assert set.union(*ids) == every
    assert sum(map(len, ids)) == len(every), "a query is held out in one fold"
    for number, own in enumerate(ids):
        trained = set(read_shards(tmp_path / f"work/fold-{number}/mined")["id"].to_pylist())
        assert trained == every - own


@pytest.mark.soak
def test_labels_that_tell_nothing_keep_the_base(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    mined = read_shards(inputs.mined)
    order = np.random.default_rng(1).permutation(len(mined))
    column = mined.column_names.index("positives")
    exchanged = mined.set_column(column, "positives", mined["positives"].take(pa.array(order)))
    write_table(tmp_path / "mined" / "shard-00000.parquet", exchanged)
    given = dataclasses.replace(inputs, mined=tmp_path / "mined")
    result = run_step(finetune_embedder.run, context(tmp_path / "run"), CONFIG, given)
    assert result.metrics["kept"] == "base"
    assert not result.metrics["changed"]
    assert result.note.endswith("(cross-validation of the training queries)")


def test_when_it_decides(inputs: Inputs, concepts: Path) -> None:
    assert needs_cross_validation(CONFIG, inputs)
    many = dataclasses.replace(inputs, valid=concepts / "valid")
    trained = dataclasses.replace(inputs, current_best=concepts / "base")
    for other in (many, trained, dataclasses.replace(inputs, valid=None)):
        assert not needs_cross_validation(CONFIG, other)
    for name, value in {
        "keep": "last",
        "patience": 1,
        "eval_steps": 2,
        "warmup_steps": 1,
        "allow_regression": True,
    }.items():
        assert not needs_cross_validation(dataclasses.replace(CONFIG, **{name: value}), inputs)


def test_histories_of_folds_are_joined_by_rows() -> None:
    first = TrainHistory(start_sums={"all": [0.5, 0.0], "loss": [-1.0, -2.0]})
    first.sums = [
        {"all": [1.0, 0.0], "loss": [-0.5, -2.0]},
        {"all": [1.0, 0.5], "loss": [-0.5, -1.0]},
    ]
    second = TrainHistory(start_sums={"all": [0.2], "loss": [-3.0]})
    second.sums = [{"all": [0.2], "loss": [-2.0]}, {"all": [0.1], "loss": [-4.0]}]
    found = join_histories("map@25", [first, second], 4)  # one of the groups has two rows
    assert found.start == pytest.approx({"map@25": 0.7 / 4, "eval_loss": 6 / 4})
    assert found.evaluations[1] == pytest.approx({"map@25": 1.6 / 4, "eval_loss": 5.5 / 4})
    assert found.sums[0]["all"] == [1.0, 0.0, 0.2]
    assert found.best == 1
