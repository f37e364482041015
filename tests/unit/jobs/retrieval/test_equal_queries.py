"""Queries with different ids and equal texts: a positive of one query is never a negative of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from embedder_finetuning import FAST
from shard_work import process_shard

from ratchet.data.tables import (
    CORPUS,
    MINED,
    QUERIES,
    add_carried,
    embeddings_schema,
    read_shards,
    write_mapped,
    write_shards,
)
from ratchet.data.triplets import Triplets
from ratchet.jobs.retrieval import finetune_embedder, mine
from ratchet.jobs.retrieval.embedder_training import EmbedderTask
from ratchet.jobs.retrieval.mining import Worker
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Resources

DOCUMENTS, DIMENSIONS, QUERIES_PER_SHARD = 40, 6, 12


@pytest.fixture(scope="module", params=[(), ("task",), ("task", "prompt")], ids=str)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """36 queries in 3 shards. There are 8 texts, some in all shards; documents 36 to 39 repeat texts of others."""
    made, random = tmp_path_factory.mktemp("equal"), np.random.default_rng(5)
    documents = [{"id": f"d{n}", "text": f"document {n % 36}"} for n in range(DOCUMENTS)]
    write_shards(made / "corpus", documents, CORPUS, 15)
    queries: list[dict[str, Any]] = []
    for n in range(3 * QUERIES_PER_SHARD):
        positives = [f"d{row}" for row in random.choice(DOCUMENTS, 1 + n % 2, replace=False)]
        query = {"id": f"q{n}", "text": f"query {random.integers(8)}", "positives": positives}
        query["grades"] = [1] * len(positives)
        query |= {name: f"{name} {random.integers(2)}" for name in request.param}
        right = {documents[int(name[1:])]["text"] for name in positives}
        wrong = [
            one["id"]
            for one in random.choice(documents, 6, replace=False)
            if one["text"] not in right
        ]
        queries.append(query | {"negatives": wrong})
    write_shards(made / "queries", queries, add_carried(QUERIES, request.param), QUERIES_PER_SHARD)
    for name, ids in (
        ("corpus", [one["id"] for one in documents]),
        ("query", [one["id"] for one in queries]),
    ):
        for number, start in enumerate(
            range(0, len(ids), size := QUERIES_PER_SHARD if name == "query" else DOCUMENTS)
        ):
            rows = [
                {"id": one, "embedding": random.standard_normal(DIMENSIONS)}
                for one in ids[start : start + size]
            ]
            table = pa.Table.from_pylist(rows, embeddings_schema(DIMENSIONS))
            write_mapped(made / f"{name}_embeddings" / f"shard-{number:05d}.arrow", table)
    return made


def find_known(folder: Path) -> list[set[str]]:
    """Return, for each query, the texts of the positives of all queries with its text and instructions, one by one."""
    texts = {row["id"]: row["text"] for row in read_shards(folder / "corpus").to_pylist()}
    queries = read_shards(folder / "queries").to_pylist()
    names = [name for name in ("text", "task", "prompt") if name in queries[0]]
    return [
        {
            texts[name]
            for other in queries
            if all(one[own] == other[own] for own in names)
            for name in other["positives"]
        }
        for one in queries
    ]


@pytest.mark.parametrize("candidates", ["corpus", "labelled"])
def test_no_positive_of_an_equal_query_is_mined(
    folder: Path, tmp_path: Path, candidates: Any
) -> None:
    """The window is the whole ranking: each other document is a negative, of equal texts the best-ranked."""
    config = mine.Config(window=(0, DOCUMENTS), num_negatives=DOCUMENTS, candidates=candidates)
    names = ("queries", "corpus", "query_embeddings", "corpus_embeddings")
    worker = Worker(config, mine.Inputs(*(folder / name for name in names)), "cpu")
    for number in range(3):
        name = f"shard-{number:05d}.parquet"
        process_shard(worker, folder / "queries" / name, tmp_path / name)
    texts = {row["id"]: row["text"] for row in read_shards(folder / "corpus").to_pylist()}
    queries = read_shards(folder / "queries").to_pylist()
    labelled = {texts[name] for query in queries for name in query["positives"]}
    among = set(texts.values()) if candidates == "corpus" else labelled
    for row, known in zip(read_shards(tmp_path).to_pylist(), find_known(folder), strict=True):
        assert {texts[name] for name in row["negatives"]} == among - known
        assert not row["suspects"]


def test_equal_queries_in_batches(folder: Path, concepts: Path, tmp_path: Path) -> None:
    scores: dict[str, Any] = {"positive_scores": [], "negative_scores": []}
    rows = [row | scores for row in read_shards(folder / "queries").to_pylist()]
    given = [name for name in ("task", "prompt") if name in rows[0]]
    write_shards(tmp_path, rows, add_carried(MINED, given), 10)
    inputs = finetune_embedder.Inputs(
        concepts / "base", tmp_path, folder / "corpus", folder / "queries"
    )
    task = EmbedderTask(WorkerInfo(0, 1, "cpu"), FAST, inputs, Resources(1, cpus=1.0, gpus=0.0))
    known, texts, masked = find_known(folder), read_shards(folder / "corpus")["text"].to_pylist(), 0
    for step in range(task.triplets.num_batches):
        batch = task.prepare(0, step)
        assert batch.mask_QP is not None
        for q, query in enumerate(batch.drawn.query_Q.tolist()):
            for p, row in enumerate(batch.drawn.passage_P.tolist()):
                expected = texts[row] in known[query] and p != batch.drawn.own_Q[q][0]
                assert bool(batch.mask_QP[q, p]) == expected
                masked += expected
    assert masked


def test_equal_queries_in_draws(folder: Path) -> None:
    """So it is for the reranker too, which sees the drawn negatives only."""
    corpus, queries = read_shards(folder / "corpus"), read_shards(folder / "queries")
    data, texts = Triplets(queries, corpus, num_negatives=DOCUMENTS), corpus["text"].to_pylist()
    for query, (row, known) in enumerate(zip(queries.to_pylist(), find_known(folder), strict=True)):
        wrong = [int(name[1:]) for name in row["negatives"]]
        drawn = data.draw(0, query)[1].tolist()
        assert sorted(drawn) == sorted(one for one in wrong if texts[one] not in known)
