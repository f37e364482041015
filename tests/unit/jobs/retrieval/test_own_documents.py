"""Queries that are also documents, as in ArguAna and Quora: no query finds itself or is its own negative."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval
import torch
from embedder_finetuning import FAST
from shard_work import process_shard

from ratchet.data.tables import (
    CORPUS,
    MINED,
    QUERIES,
    embeddings_schema,
    read_shards,
    write_mapped,
    write_shards,
)
from ratchet.jobs.retrieval import evaluate_retrieval, finetune_embedder, mine
from ratchet.jobs.retrieval.embedder_training import EmbedderTask
from ratchet.jobs.retrieval.mining import Worker as MiningWorker
from ratchet.jobs.retrieval.ranking import Worker as EvaluationWorker
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models.search.rank_metrics import compute_rank_metrics
from ratchet.models.search.ranks import Relevant
from ratchet.orchestrator.job_interface import Resources

DOCUMENTS, DIMENSIONS = 30, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 documents, of which 10 are queries. The text of a query is not that of its document, which has a title."""
    made = tmp_path_factory.mktemp("own")
    random = np.random.default_rng(0)
    vectors = random.standard_normal((DOCUMENTS, DIMENSIONS)).astype(np.float32)
    names = [f"d{n}" for n in range(DOCUMENTS)]
    texts = [f"t{n}x1 t{n}x2" for n in range(DOCUMENTS)]
    write_shards(
        made / "corpus",
        [{"id": name, "text": f"q0x1 {text}"} for name, text in zip(names, texts, strict=True)],
        CORPUS,
        100,
    )
    write_embeddings(made / "corpus_embeddings", names, vectors)
    queries: list[dict[str, Any]] = []
    for n in range(10):
        positives = (
            [names[n + 10], names[n + 11]] if n else [names[0], names[10]]
        )  # the first has itself as a positive
        queries.append(
            {
                "id": names[n],
                "text": texts[n],
                "positives": positives,
                "grades": [1, 1],
                "negatives": [],
            }
        )
    write_shards(made / "queries", queries, QUERIES, 100)
    write_embeddings(made / "query_embeddings", names[:10], vectors[:10] + 0.01)
    return made


def write_embeddings(folder: Path, names: list[str], vectors: np.ndarray) -> None:
    rows = [
        {"id": name, "embedding": vector.tolist()}
        for name, vector in zip(names, vectors, strict=True)
    ]
    write_mapped(
        folder / "shard-00000.arrow", pa.Table.from_pylist(rows, embeddings_schema(DIMENSIONS))
    )


@pytest.mark.parametrize("top", [5, 29, 100])
@pytest.mark.parametrize("system", ["dense", "bm25"])
def test_rankings_and_metrics_are_those_of_beir(
    folder: Path, tmp_path: Path, system: Any, top: int
) -> None:
    inputs = evaluate_retrieval.Inputs(
        folder / "queries",
        folder / "corpus",
        folder / "query_embeddings",
        folder / "corpus_embeddings",
    )
    worker = EvaluationWorker(evaluate_retrieval.Config(system=system, top=top), inputs, "cpu")
    process_shard(worker, folder / "queries/shard-00000.parquet", tmp_path / "shard-00000.parquet")
    found, queries = read_shards(tmp_path).to_pylist(), read_shards(folder / "queries").to_pylist()
    run: dict[str, dict[str, float]] = {}
    for row, query in zip(found, queries, strict=True):
        excluded = row["id"] not in query["positives"]
        assert not (excluded and row["id"] in row["documents"])
        assert len(row["documents"]) == len(row["scores"]) == min(top, DOCUMENTS - excluded)
        run[row["id"]] = {name: -float(rank) for rank, name in enumerate(row["documents"])}
    if system != "dense" or top < DOCUMENTS:
        return
    qrels = {query["id"]: dict.fromkeys(query["positives"], 1) for query in queries}
    expected = pytrec_eval.RelevanceEvaluator(qrels, {"map", "recip_rank"}).evaluate(run)
    names = read_shards(folder / "corpus")["id"].to_pylist()
    relevant = Relevant.from_lists(
        [[names.index(name) for name in query["positives"]] for query in queries]
    )
    metrics = compute_rank_metrics(
        np.concatenate([row["ranks"] for row in found]), relevant, (1,)
    ).values
    assert metrics["map"] == pytest.approx(np.mean([value["map"] for value in expected.values()]))
    assert metrics["mrr"] == pytest.approx(
        np.mean([value["recip_rank"] for value in expected.values()])
    )


def test_no_query_is_its_own_negative(folder: Path, tmp_path: Path) -> None:
    config = mine.Config(window=(0, 5), num_negatives=5)
    names = ("queries", "corpus", "query_embeddings", "corpus_embeddings")
    worker = MiningWorker(config, mine.Inputs(*(folder / name for name in names)), "cpu")
    process_shard(worker, folder / "queries/shard-00000.parquet", tmp_path / "shard-00000.parquet")
    mined = read_shards(tmp_path)
    for row in mined.to_pylist():
        assert row["id"] not in row["negatives"]
        assert len(row["negatives"]) == 5


def test_no_query_is_its_own_negative_in_a_batch(
    folder: Path, concepts: Path, tmp_path: Path
) -> None:
    """Document d11 is a positive of query d1, and a passage of a batch with query d11."""
    rows = [
        {"id": "d1", "text": "t1x1", "positives": ["d11"], "negatives": []},
        {"id": "d11", "text": "t2x1", "positives": ["d12"], "negatives": []},
    ]
    scores: dict[str, Any] = {"positive_scores": [], "negative_scores": []}
    write_shards(tmp_path / "mined", [row | scores for row in rows], MINED, 10)
    inputs = finetune_embedder.Inputs(
        concepts / "base", tmp_path / "mined", folder / "corpus", folder / "queries"
    )
    task = EmbedderTask(WorkerInfo(0, 1, "cpu"), FAST, inputs, Resources(1, cpus=1.0, gpus=0.0))
    batch = task.prepare(0, 0)
    assert batch.mask_QP is not None
    assert batch.mask_QP.sum() == 1
    row = int(torch.nonzero(batch.mask_QP)[0, 0])
    assert task.triplets.query_text[int(batch.drawn.query_Q[row])].as_py() == "t2x1"
