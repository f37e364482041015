"""The weight of a label prior, and rankings with it, against sorting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.tables import CORPUS, GROUPED, HELD_OUT, read_shards, write_shards
from ratchet.data.vectors import read_prior, write_vectors
from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval import evaluate_retrieval
from ratchet.jobs.retrieval.fit_label_prior import Config, Inputs
from ratchet.jobs.retrieval.implementation import evaluate_retrieval as evaluating
from ratchet.jobs.retrieval.implementation.fit_label_prior import choose, run
from ratchet.orchestrator.job_interface import Context

MakeContext = Callable[..., Context]
DOCUMENTS, DIM, VALID, UNSEEN = 60, 12, 120, 20


class Labels:
    """Documents of which the first are labels of many queries and the last of none."""

    def __init__(self, folder: Path, frequent: float, unseen: int, length: float = 1.0) -> None:
        random = np.random.default_rng(0)
        chance_N = np.arange(1, DOCUMENTS + 1, dtype=np.float64) ** -frequent
        chance_N[-UNSEEN:] = 0
        drawn = random.choice(DOCUMENTS, 400, p=chance_N / chance_N.sum())
        self.prior_N = np.log1p(np.bincount(drawn, minlength=DOCUMENTS))
        right = random.choice(DOCUMENTS, VALID - unseen, p=chance_N / chance_N.sum())
        self.right_Q = np.concatenate([right, random.integers(DOCUMENTS - UNSEEN, DOCUMENTS, unseen)])
        self.corpus_ND = random.standard_normal((DOCUMENTS, DIM))
        self.query_QD = self.corpus_ND[self.right_Q] + 1.5 * random.standard_normal((VALID, DIM))
        for vectors in (self.corpus_ND, self.query_QD):
            vectors *= length / np.linalg.norm(vectors, axis=1, keepdims=True)
        ids = [f"d{n}" for n in range(DOCUMENTS)]
        write_shards(folder / "corpus", [{"id": name, "text": name} for name in ids], CORPUS, 25)
        train = [{"id": f"t{n}", "text": "", "positives": [ids[row]], "group": f"t{n}"} for n, row in enumerate(drawn)]
        write_shards(folder / "train", train, GROUPED, 100)
        valid = [
            {"id": f"v{q}", "text": "", "positives": [ids[row]], "grades": [1], "group": f"g{q // 2}"}
            | {"seen": bool(self.prior_N[row] > 0)}
            for q, row in enumerate(self.right_Q)
        ]
        write_shards(folder / "valid", valid, HELD_OUT, 50)
        for name, vectors in (("corpus", self.corpus_ND), ("valid", self.query_QD)):
            (folder / f"{name}_vectors").mkdir()
            start = 0
            for path in sorted((folder / name).glob("*.parquet")):
                shard = read_shards(path)["id"] if path.is_dir() else pa.parquet.read_table(path)["id"]
                part = vectors[start : start + len(shard)].astype(np.float32)
                write_vectors(folder / f"{name}_vectors" / f"{path.stem}.arrow", shard, part)
                start += len(shard)
        self.folder = folder
        self.inputs = Inputs(
            folder / "train", folder / "valid", folder / "corpus", folder / "valid_vectors", folder / "corpus_vectors"
        )

    def rank(self, weight: float) -> np.ndarray:
        score_QN = self.query_QD.astype(np.float32) @ self.corpus_ND.astype(np.float32).T + weight * self.prior_N
        own_Q1 = np.take_along_axis(score_QN, self.right_Q[:, None], 1)
        rank_Q: np.ndarray = 1 + (score_QN > own_Q1).sum(1)
        return rank_Q

    def map_at_25(self, weight: float) -> float:
        rank_Q = self.rank(weight)
        return float(np.where(rank_Q <= 25, 1 / rank_Q, 0).mean())


@pytest.mark.parametrize("length", [1.0, 3.0])
def test_the_weight_is_the_best_one_on_held_out_queries(context: MakeContext, tmp_path: Path, length: float) -> None:
    labels = Labels(tmp_path, frequent=1.2, unseen=0, length=length)
    config = Config(weights=(0.02, 0.05, 0.1, 0.2))
    made = context()
    result = run(made, config, labels.inputs)
    rows = result.tables["weights of the label prior"]
    for row, weight in zip(rows, (0.0, *config.weights), strict=True):
        assert row["weight"] == pytest.approx(weight * length**2, rel=1e-5)
        assert row["valid/map@25"] == pytest.approx(labels.map_at_25(row["weight"]), abs=1e-5)
    (best,) = (row for row in rows if row["best"])
    assert result.metrics["weight"] == best["weight"] > 0
    assert result.metrics["valid/map@25_start"] == rows[0]["valid/map@25"] < best["valid/map@25"]
    assert read_prior(made.out / "prior", pa.array([f"d{n}" for n in range(DOCUMENTS)])) == pytest.approx(
        best["weight"] * labels.prior_N, rel=1e-5
    )
    with pytest.raises(DataError, match="scores of other documents given"):
        read_prior(made.out / "prior", pa.array(["d1"]))

    # The ranking of the whole corpus with it.
    inputs = evaluate_retrieval.Inputs(
        labels.inputs.valid,
        labels.inputs.corpus,
        labels.inputs.query_embeddings,
        labels.inputs.corpus_embeddings,
        prior=made.out / "prior",
    )
    worker = evaluating.Worker(evaluate_retrieval.Config(top=10), inputs, "cpu")
    source = labels.inputs.valid / "shard-00001.parquet"
    worker(source, tmp_path / "ranked.parquet", lambda *_: None)
    ranked = pa.parquet.read_table(tmp_path / "ranked.parquet")
    expected = labels.rank(best["weight"])[50:100]
    assert np.mean([own[0] == rank for own, rank in zip(ranked["ranks"].to_pylist(), expected, strict=True)]) > 0.98
    best_documents = np.argsort(
        -(labels.query_QD[50] @ labels.corpus_ND.T + best["weight"] * labels.prior_N), kind="stable"
    )[:10]
    assert ranked["documents"][0].as_py() == [f"d{row}" for row in best_documents]


def test_a_prior_that_does_not_help_is_none(context: MakeContext, tmp_path: Path) -> None:
    """All documents have about as many queries, so that only unseen labels would lose."""
    result = run(context(), Config(), Labels(tmp_path, frequent=0.0, unseen=60).inputs)
    assert result.metrics["weight"] == 0
    assert result.metrics["valid/map@25"] == result.metrics["valid/map@25_start"]
    assert "no weight was significantly better" in result.note


def test_a_weight_that_loses_on_unseen_labels_is_left_out() -> None:
    def sums(seen: float, unseen: float) -> dict[str, Any]:
        random = np.random.default_rng(1)
        noise = random.standard_normal(40) * 0.01
        return {"all": (seen + noise).tolist() + [unseen] * 10, "unseen": [0.0] * 40 + [unseen] * 10}

    found = [sums(0.2, 0.3), sums(0.3, 0.29), sums(0.4, 0.1)]
    values = [float(np.mean(one["all"])) for one in found]
    assert choose(Config(), values, found)[0] == 0, "both lose"
    found[1] = sums(0.3, 0.3)
    assert choose(Config(), values, found)[0] == 1
    assert choose(Config(), values, [{"all": one["all"]} for one in found])[0] == 2
    assert choose(Config(significance_level=1e-9), values, found)[0] == 0
    before = sums(0.1, 0.05)["unseen"]
    assert choose(Config(), values, found, before)[0] == 2, "unseen labels are better than before training"


def test_other_systems_have_no_prior(context: MakeContext, tmp_path: Path) -> None:
    labels = Labels(tmp_path, frequent=1.0, unseen=0)
    inputs = evaluate_retrieval.Inputs(labels.inputs.valid, labels.inputs.corpus, prior=tmp_path)
    with pytest.raises(InputError, match=r"evaluate_retrieval.prior: given, with another system than dense"):
        evaluating.run(context(), evaluate_retrieval.Config(system="bm25"), inputs)
