"""`evaluate_retrieval` with system=knn: the nearest training queries vote for their documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from shard_work import process_shard

from ratchet.data.tables import (
    CORPUS,
    QUERIES,
    embeddings_schema,
    read_shards,
    write_mapped,
    write_shards,
)
from ratchet.jobs.retrieval.evaluate_retrieval import Config, Inputs
from ratchet.jobs.retrieval.ranking import Worker

DOCUMENTS, TRAIN, ASKED, DIMENSIONS = 40, 60, 9, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 training queries in three shards, for the first 30 of 40 documents, a third of them for two."""
    made = tmp_path_factory.mktemp("knn")
    random = np.random.default_rng(0)
    write_shards(
        made / "corpus", [{"id": f"d{n}", "text": "a"} for n in range(DOCUMENTS)], CORPUS, 100
    )
    labels = [random.choice(30, 1 + (n % 3 == 0), replace=False) for n in range(TRAIN)]
    write_rows(made, "train", random, labels, 20)
    write_rows(
        made,
        "test",
        random,
        [random.choice(DOCUMENTS, 2, replace=False) for _ in range(ASKED)],
        100,
    )
    return made


def write_rows(folder: Path, name: str, random: Any, labels: list[np.ndarray], size: int) -> None:
    names = [f"{name}{n}" for n in range(len(labels))]
    rows: list[dict[str, Any]] = [
        {"id": one, "text": "b", "positives": [f"d{n}" for n in own], "grades": [1] * len(own)}
        for one, own in zip(names, labels, strict=True)
    ]
    write_shards(folder / name, rows, QUERIES, size)
    vectors = random.standard_normal((len(labels), DIMENSIONS)).astype(np.float32)
    for number, start in enumerate(range(0, len(names), size)):
        part = zip(names[start : start + size], vectors[start : start + size].tolist(), strict=True)
        table = pa.Table.from_pylist(
            [{"id": n, "embedding": v} for n, v in part], embeddings_schema(DIMENSIONS)
        )
        write_mapped(folder / f"{name}_embeddings" / f"shard-{number:05d}.arrow", table)


def count_votes(folder: Path, neighbors: int) -> np.ndarray:
    """Return the votes of each query for each document, by loops in float64."""
    vectors = {name: read_vectors(folder / f"{name}_embeddings") for name in ("test", "train")}
    labels = [
        [int(name[1:]) for name in own]
        for own in read_shards(folder / "train")["positives"].to_pylist()
    ]
    votes = np.zeros((ASKED, DOCUMENTS))
    for query, vector in enumerate(vectors["test"]):
        near = sorted(
            ((float(vector @ other), n) for n, other in enumerate(vectors["train"])), reverse=True
        )
        near = near[: neighbors + 1]
        for score, n in near[:-1]:
            votes[query, labels[n]] += score - near[-1][0]
    return votes


def read_vectors(folder: Path) -> np.ndarray:
    tables = [pa.ipc.open_file(path).read_all() for path in sorted(folder.glob("*.arrow"))]
    return np.array([row for table in tables for row in table["embedding"].to_pylist()], np.float64)


@pytest.mark.parametrize("neighbors", [1, 5, 20, 59, 60, 1000])
def test_votes_of_nearest_queries(folder: Path, tmp_path: Path, neighbors: int) -> None:
    vectors = {
        "query_embeddings": folder / "test_embeddings",
        "train_embeddings": folder / "train_embeddings",
    }
    inputs = Inputs(folder / "test", folder / "corpus", train=folder / "train", **vectors)
    worker = Worker(Config(system="knn", neighbors=neighbors, top=10), inputs, "cpu")
    process_shard(worker, folder / "test/shard-00000.parquet", tmp_path / "shard-00000.parquet")
    votes_QN = count_votes(folder, neighbors)
    for row, vote_N, query in zip(
        read_shards(tmp_path).to_pylist(),
        votes_QN,
        read_shards(folder / "test").to_pylist(),
        strict=True,
    ):
        order = sorted(range(DOCUMENTS), key=lambda n: (-round(vote_N[n], 5), n))
        assert row["documents"] == [f"d{n}" for n in order[:10]]
        assert row["scores"] == pytest.approx([vote_N[n] for n in order[:10]], abs=1e-5)
        assert row["ranks"] == [order.index(int(name[1:])) + 1 for name in query["positives"]]
    assert (votes_QN[:, 30:] == 0).all(), "no training query is for these"
