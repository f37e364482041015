"""Synthetic queries from documents to the filter on Ray: a tiny random decoder writes, MiniLM judges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.data.tables import CORPUS, QUERIES, read_shards, write_shards
from ratchet.data.tasks.answers import COMPLETIONS
from ratchet.jobs.answers import generate
from ratchet.jobs.retrieval import embed, evaluate_retrieval
from ratchet.jobs.synthetic import clean_queries, filter_queries, prepare_query_generation
from ratchet.models.embedder import encoder
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.job_interface import Context

MakeContext = Callable[..., Context]

DOCUMENTS = {
    "rome": "Rome has been the capital of Italy since 1871.",
    "faust": "Goethe wrote the tragedy Faust.",
    "bread": "Bread is baked from flour and water.",
    "moon": "The moon orbits the earth in 27 days.",
}
WRITTEN = {
    "rome": ["Which city is the capital of Italy?", "Who wrote Faust?"],
    "bread": ["How is bread baked?", "How long does the moon need?"],
    "moon": ["How long does the moon take around the earth?", "Query: moon orbit\nand more"],
}
"""A query of another document must not pass."""


def test_queries_of_a_generator_become_training_queries(
    local_ray: None, tiny_decoder: Path, context: MakeContext, tmp_path: Path
) -> None:
    outs: dict[str, Path] = {}

    def run(name: str, job: Any, config: Any, *inputs: Path) -> Any:
        made = context(name=name)
        outs[name] = made.out
        return job.JOB.run(made, config, job.Inputs(*inputs))

    corpus, train = tmp_path / "corpus", tmp_path / "train"
    write_shards(
        corpus, [{"id": name, "text": text} for name, text in DOCUMENTS.items()], CORPUS, 9
    )
    real = {
        "id": "q",
        "text": "Who wrote Faust?",
        "positives": ["faust"],
        "grades": [1],
        "negatives": [],
    }
    write_shards(train, [real], QUERIES, 9)
    run("prepare", prepare_query_generation, prepare_query_generation.Config(), corpus, train)
    sampling = generate.Config(
        num_completions=2, temperature=0.7, max_new_tokens=8, dtype="float32"
    )
    run("generate", generate, sampling, tiny_decoder, outs["prepare"])
    # Noise, of which each document gets its queries in place.
    rows = read_shards(outs["generate"]).to_pylist()
    assert all(row["id"] in WRITTEN and len(row["answers"]) == 2 for row in rows)
    answers = [[*row["answers"], *([text] for text in WRITTEN[row["id"]])] for row in rows]
    written = [row | {"answers": own} for row, own in zip(rows, answers, strict=True)]
    write_shards(tmp_path / "completions", written, COMPLETIONS, 9)
    (tmp_path / "completions/task.json").write_bytes((outs["generate"] / "task.json").read_bytes())

    cleaned = run("clean", clean_queries, clean_queries.Config(), tmp_path / "completions", train)
    assert cleaned.metrics["completions"] == 12
    assert cleaned.metrics["duplicates"] >= 1, "the training query"
    model = resolve(MINILM)
    run("queries", embed, embed.Config(role="query", dtype="float32"), model, outs["clean"])
    run("corpus", embed, embed.Config(dtype="float32"), model, corpus)
    vectors = outs["queries"], outs["corpus"]
    run("rank", evaluate_retrieval, evaluate_retrieval.Config(), outs["clean"], corpus, *vectors)
    ranking = outs["rank"] / "ranking"
    result = run("filter", filter_queries, filter_queries.Config(), outs["clean"], train, ranking)

    minilm, ids = encoder.load(model, dtype="float32"), list(DOCUMENTS)
    document_ND = minilm.encode(list(DOCUMENTS.values()), "passage")
    queries = read_shards(outs["clean"]).to_pylist()
    best = np.argmax(
        minilm.encode([row["text"] for row in queries], "query") @ document_ND.T, axis=1
    )
    expected = [
        row["text"] for row, n in zip(queries, best, strict=True) if row["positives"] == [ids[n]]
    ]
    rows = read_shards(outs["filter"]).to_pylist()
    assert rows[0] == real
    assert [row["text"] for row in rows[1:]] == expected
    kept = {(row["positives"][0], row["text"]) for row in rows[1:]}
    right = {("rome", 0), ("bread", 0), ("moon", 0)}
    assert {(name, WRITTEN[name][n]) for name, n in right} | {("moon", "moon orbit")} <= kept
    assert ("bread", WRITTEN["bread"][1]) not in kept
    assert result.metrics["failed_round_trip"] == len(queries) - len(expected) > 0
