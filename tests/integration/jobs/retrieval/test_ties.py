"""Documents with equal scores: metrics do not depend on the order of the data, and are those of trec_eval."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval

from ratchet.data.tables import (
    CORPUS,
    QUERIES,
    RANKED,
    SCORES,
    embeddings_schema,
    read_shards,
    write_mapped,
    write_shards,
)
from ratchet.jobs.predictions import fuse
from ratchet.jobs.predictions.fuse import run as run_fuse
from ratchet.jobs.retrieval import evaluate_retrieval
from ratchet.jobs.retrieval.evaluate_retrieval import run as run_evaluation
from ratchet.jobs.retrieval.prepare import Config, Inputs
from ratchet.jobs.retrieval.prepare import run as run_prepare
from ratchet.orchestrator.job_interface import Context
from tests.support.clusters.step_process import work_here

COUNT, ROWS, WORDS = 30, 10, ("one", "two", "three")
MakeContext = Callable[..., Context]
MEASURES = {
    "map": "map",
    "recip_rank": "mrr",
    "map_cut_10": "map@10",
    "ndcg_cut_10": "ndcg@10",
    "recall_10": "r@10",
}


@pytest.fixture
def context(local_ray: None, context: MakeContext) -> MakeContext:
    return work_here(context)


def write_beir(folder: Path, seed: int, order: np.ndarray) -> Path:
    """24 documents with three different words: most have the text of another one."""
    random = np.random.default_rng(seed)
    texts = [
        " ".join(random.choice(WORDS, random.integers(1, 4), replace=False)) for _ in range(24)
    ]
    documents = [json.dumps({"_id": f"d{n}", "text": texts[n]}) for n in order]
    queries = [
        json.dumps({"_id": f"q{n}", "text": WORDS[random.integers(3)]}) for n in range(COUNT)
    ]
    labels = [
        (f"q{n}", f"d{random.integers(24)}", random.integers(1, 4))
        for n in range(COUNT)
        for _ in range(2)
    ]
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("\n".join(documents))
    (folder / "queries.jsonl").write_text("\n".join(queries))
    distinct = {(query, document): grade for query, document, grade in labels}
    lines = [f"{query}\t{document}\t{grade}\n" for (query, document), grade in distinct.items()]
    (folder / "qrels" / "train.tsv").write_text(
        "".join(line for line in lines if line.startswith("q1"))
    )
    (folder / "qrels" / "test.tsv").write_text(
        "".join(line for line in lines if not line.startswith("q1"))
    )
    return folder


def embed(table: pa.Table, folder: Path) -> Path:
    """Vectors with a number for each word: equal texts have equal vectors, and many others equal scores."""
    vectors = np.array(
        [[word in text.split() for word in WORDS] for text in table["text"].to_pylist()], np.float32
    )
    columns = [
        table["id"].combine_chunks(),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 3),
    ]
    embeddings = pa.table(columns, schema=embeddings_schema(3))
    for number, start in enumerate(range(0, len(table), ROWS)):
        write_mapped(folder / f"shard-{number:05d}.arrow", embeddings.slice(start, ROWS))
    return folder


def compute_by_trec_eval(folder: Path) -> dict[str, float]:
    """Metrics of the two files that `evaluate_retrieval` writes."""
    run: dict[str, dict[str, float]] = {}
    for line in (folder / "run.trec").read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        run.setdefault(query, {})[document] = float(score)
    labels: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels.trec").read_text().splitlines():
        query, _, document, grade = line.split()
        labels.setdefault(query, {})[document] = int(grade)
    found = pytrec_eval.RelevanceEvaluator(labels, set(MEASURES)).evaluate(run).values()
    return {
        own: float(np.mean([values[name] for values in found])) for name, own in MEASURES.items()
    }


@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_those_of_trec_eval_in_any_order(
    tmp_path: Path, context: MakeContext, seed: int
) -> None:
    corpora = []
    for place, order in enumerate((np.arange(24), np.random.default_rng(seed).permutation(24))):
        data = write_beir(tmp_path / f"beir{place}", seed, order)
        prepared = context(name=f"prepared{place}")
        result = run_prepare(prepared, Config(validation_fraction=0, shard_rows=ROWS), Inputs(data))
        assert result.metrics["documents with the text of another one"] > 0
        corpora.append([path.read_bytes() for path in sorted((prepared.out / "corpus").iterdir())])
    assert corpora[0] == corpora[1]
    check(prepared.out, tmp_path, context)


def check(data: Path, tmp_path: Path, context: MakeContext) -> None:
    corpus, queries, train = (read_shards(data / name) for name in ("corpus", "test", "train"))
    dense = {
        "query_embeddings": embed(queries, tmp_path / "query_embeddings"),
        "corpus_embeddings": embed(corpus, tmp_path / "corpus_embeddings"),
    }
    votes = {
        "query_embeddings": dense["query_embeddings"],
        "train": data / "train",
        "train_embeddings": embed(train, tmp_path / "train_embeddings"),
    }

    def evaluate(system: Any, given: dict[str, Path]) -> Path:
        place = context(name=system)
        config = evaluate_retrieval.Config(system=system, k=(10,), top=24)
        result = run_evaluation(
            place, config, evaluate_retrieval.Inputs(data / "test", data / "corpus", **given)
        )
        assert compute_by_trec_eval(place.out) == pytest.approx(
            {name: result.metrics[name] for name in MEASURES.values()}, abs=1e-6
        ), system
        return place.out / "ranking"

    rankings = tuple(
        evaluate(system, given)
        for system, given in (("bm25", {}), ("dense", dense), ("knn", votes))
    )
    fused = context(name="fused")
    chosen = fuse.Config(names=("bm25", "dense", "knn"), weights=(1.0, 1.0, 1.0))
    run_fuse(fused, chosen, fuse.Inputs(data / "test", rankings, rankings))
    evaluate("reranked", {"scored": fused.out / "ranking"})


def test_equal_scores_of_a_reranker_are_ordered_by_name(
    tmp_path: Path, context: MakeContext
) -> None:
    names = [f"d{n}" for n in range(12)]
    scores = np.random.default_rng(0).integers(0, 3, (COUNT, 12)).astype(np.float32)
    queries = [
        {"id": f"q{q}", "text": "", "positives": [names[q % 12]], "grades": [1], "negatives": []}
        for q in range(COUNT)
    ]
    write_shards(tmp_path / "corpus", [{"id": name, "text": name} for name in names], CORPUS, 100)
    schema = RANKED.append(pa.field("teacher_scores", SCORES))
    write_shards(tmp_path / "queries", queries, QUERIES, 100)
    rows = [
        {"id": f"q{q}", "text": "", "documents": names, "scores": [0.0] * 12, "ranks": [q % 12 + 1]}
        | {"teacher_scores": scores[q].tolist()}
        for q in range(COUNT)
    ]
    write_shards(tmp_path / "scored", rows, schema, 100)
    place = context()
    inputs = evaluate_retrieval.Inputs(
        tmp_path / "queries", tmp_path / "corpus", scored=tmp_path / "scored"
    )
    result = run_evaluation(
        place, evaluate_retrieval.Config(system="reranked", k=(10,), top=12), inputs
    )
    found = compute_by_trec_eval(place.out)
    assert found == pytest.approx(
        {name: result.metrics[name] for name in MEASURES.values()}, abs=1e-6
    )
