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
from ratchet.jobs.training.cross_validation import (
    FOLDS,
    count_folds,
    drop_held_out_negatives,
    join_histories,
)
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.models.embedder.encoder import load

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
    assert result.note.endswith(", in a cross-validation of the training queries")


def test_documents_of_held_out_queries_are_no_negatives_of_a_fold() -> None:
    trained = pa.table(
        {
            "id": ["a", "b"],
            "positives": [["1"], ["2", "3"]],
            "negatives": [["2", "9", "7"], ["9"]],
            "negative_scores": [[0.2, 0.9, 0.7], [0.9]],
            "teacher_negative_scores": [[2.0, 9.0, 7.0], [9.0]],
        }
    )
    held_out = pa.table({"positives": [["9", "2"]]})
    found = drop_held_out_negatives(trained, held_out).to_pydict()
    assert found["negatives"] == [["2", "7"], []]
    assert found["negative_scores"] == [[0.2, 0.7], []]
    assert found["teacher_negative_scores"] == [[2.0, 7.0], []]
    assert found["positives"] == [["1"], ["2", "3"]]


def test_when_it_decides(inputs: Inputs, concepts: Path) -> None:
    assert count_folds(CONFIG, inputs) == FOLDS
    assert count_folds(dataclasses.replace(CONFIG, folds=3), inputs) == 3
    many = dataclasses.replace(inputs, valid=concepts / "valid")
    trained = dataclasses.replace(inputs, current_best=concepts / "base")
    for other in (many, trained, dataclasses.replace(inputs, valid=None)):
        assert not count_folds(CONFIG, other)
    for name, value in {
        "keep": "last",
        "patience": 1,
        "eval_steps": 2,
        "warmup_steps": 1,
        "allow_regression": True,
    }.items():
        assert not count_folds(dataclasses.replace(CONFIG, **{name: value}), inputs)


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


def test_each_query_is_ranked_by_a_model_that_was_not_trained_on_it(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    mined = read_shards(inputs.mined)
    write_table(tmp_path / "mined" / "shard-00000.parquet", mined)
    given = dataclasses.replace(inputs, mined=tmp_path / "mined", valid=None)
    config = dataclasses.replace(CONFIG, folds=3, significance_level=1.0)
    made = context(tmp_path / "run")
    result = run_step(finetune_embedder.run, made, config, given)
    assert result.metrics["changed"], result
    assert result.metrics["tested_on"] == "folds of the training queries"
    ranking = read_shards(made.out / "ranking")
    assert ranking["id"].to_pylist() == mined["id"].to_pylist()
    corpus = read_shards(inputs.corpus)
    texts = corpus["text"].to_pylist()
    row_of = dict(zip(corpus["id"].to_pylist(), range(len(corpus)), strict=True))
    best = int(result.metrics["best_epoch"])
    row_by_id = {row["id"]: row for row in ranking.to_pylist()}
    precisions = []
    for fold in range(3):
        work = made.work / f"fold-{fold}"
        held_out = read_shards(work / "valid").to_pylist()
        steps = sorted(int(path.name.rpartition("-")[2]) for path in work.glob("checkpoint-step-*"))
        model = load(inputs.base, work / f"checkpoint-step-{steps[best - 1]}", dtype="float32")
        document_ND = model.encode(texts, "passage")
        for row, vector in zip(
            held_out, model.encode([row["text"] for row in held_out], "query"), strict=True
        ):
            scores = document_ND @ vector
            found = row_by_id[row["id"]]
            expected = np.sort(scores)[::-1][: len(found["scores"])]
            np.testing.assert_allclose(found["scores"], expected, atol=1e-5)
            for name, rank in zip(row["positives"], found["ranks"], strict=True):
                own = scores[row_of[name]]
                assert (scores > own + 1e-5).sum() < rank <= (scores >= own - 1e-5).sum()
            ranks = sorted(found["ranks"])
            hits = [number / rank for number, rank in enumerate(ranks, 1) if rank <= 25]
            precisions.append(sum(hits) / min(25, len(ranks)))
    assert result.metrics["valid/map@25"] == pytest.approx(np.mean(precisions), abs=1e-4)


def test_a_base_that_is_kept_ranks_all_queries(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    mined = read_shards(inputs.mined).slice(0, 30)
    write_table(tmp_path / "mined" / "shard-00000.parquet", mined)
    given = dataclasses.replace(inputs, mined=tmp_path / "mined", valid=None)
    config = dataclasses.replace(CONFIG, folds=3, significance_level=1e-9)
    made = context(tmp_path / "run")
    result = run_step(finetune_embedder.run, made, config, given)
    assert result.metrics["kept"] == "base"
    ranking = read_shards(made.out / "ranking")
    assert ranking["id"].to_pylist() == mined["id"].to_pylist()
    model = load(inputs.base, dtype="float32")
    document_ND = model.encode(read_shards(inputs.corpus)["text"].to_pylist(), "passage")
    queries = model.encode(mined["text"].to_pylist(), "query")
    for found, vector in zip(ranking["scores"].to_pylist(), queries, strict=True):
        expected = np.sort(document_ND @ vector)[::-1][: len(found)]
        np.testing.assert_allclose(found, expected, atol=1e-5)
